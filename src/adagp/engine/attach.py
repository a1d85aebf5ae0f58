"""The one line that adopts adagp."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from adagp.core.methods import find_method
from adagp.core.precision import Precision, parse_precision
from adagp.engine.arithmetic import ArithmeticFacts
from adagp.engine.compiled import compile_model
from adagp.engine.guard import Guard
from adagp.engine.length import read_schedule, refuse_foreign_options, run_length
from adagp.engine.outputs import OutputSelector
from adagp.engine.processes import (
    Processes,
    is_spread_model,
    refuse_mixed_weights,
    refuse_unknown_parallelism,
    several_processes,
)
from adagp.engine.trainer import Trainer
from adagp.engine.trial import registered, try_out
from adagp.engine.validate import validate
from adagp.engine.weight_update import WeightUpdateHook, as_hooks
from adagp.errors import OptionError
from adagp.schedules import Schedule
from adagp.sources.base import RunFacts, Source
from adagp.sources.build import build_source, default_source


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    epochs: int | None = None,
    batches_per_epoch: int | None = None,
    batches: int | None = None,
    steps: int | None = None,
    method: str | None = None,
    schedule: Schedule | str | None = None,
    sources: Mapping[str, Source] | None = None,
    warmup: int | None = None,
    warmup_batches: int | None = None,
    exclude: Sequence[str] = (),
    output: OutputSelector = None,
    guard: Guard | None = None,
    metrics_every: int = 10,
    scaler: torch.amp.GradScaler | None = None,
    sample: Any = None,
    compile: bool | str = False,  # noqa: A002  # torch's own name for it
    seed: int = 0,
    synchronize: bool | None = None,
    staged: bool = False,
    precision: Precision | str | None = None,
    weight_hooks: WeightUpdateHook | Sequence[WeightUpdateHook] = (),
    **options: Any,
) -> Trainer:
    """Return a trainer for `model` and `optimizer` (or several of these), which stay in use as they are.

    The length of the run is `epochs` of `batches_per_epoch`, or `steps` batches where there are no epochs. `batches` is its
    length if the last epoch is not whole.

    `method` names one of `adagp.METHODS`; `options` are its own (`features=32`), `seed` is for what it draws. Without it the
    schedule says which sources there are. `schedule` is a `Schedule` or its text form (see `adagp.schedules.text`), by
    default the method's; `warmup` (epochs) or `warmup_batches` go with the text form. `sources` gives ready-made sources by
    the names that the schedule uses; the others are made with their defaults. `exclude` are name patterns of layers that are
    not to be predicted.

    `output` says which outputs of the model the loss depends on, for methods that look at the error there: by default all
    floating-point tensors that it returns; else the name of a field of what it returns (`"logits"`), a function of it, or the
    name of a layer of the model, where the model computes the loss itself.

    `sample` is a batch of inputs, on the model's device, for a trial forward pass: schedules that cut the model in two need
    it, and what does not fit the layers' output sizes is then refused here. Attach after the model has been moved to its
    device. `compile=True` compiles the model in place with torch's compiler, or with another backend of `torch.compile` that
    is named. `model` may be in `DistributedDataParallel`, or sharded by `fully_shard` (FSDP2): attach after that. `synchronize`
    says whether the processes of `torch.distributed` train on shares of one batch; None: if there are several. `staged` says
    that this process runs stages of the model alone, whose weights may be spread, and that the caller exchanges what is needed.

    `precision` is the arithmetic of the sites' products: block floating point, emulated in float, or single precision
    (None). It is a `Precision` or its text form (see `adagp.core.precision`): `"bfp4"`, `"fast"`. Give `sample` too
    where layers run in another order than the model has registered them.

    `weight_hooks` change the weights after each step of the optimizer, in order: `adagp.DropBack(keep=0.1)` keeps a tenth of
    them. They take the model's weights at this call as the initial ones.

    `Trainer.rehearse` tries both kinds of batches in your own loop and puts everything back: do that before a long run.
    """
    hooks = as_hooks(renamed(options, "upkeep", "weight_hooks", weight_hooks))
    optimizers = (optimizer,) if isinstance(optimizer, torch.optim.Optimizer) else tuple(optimizer)
    length = run_length(epochs, batches_per_epoch, batches, steps)
    chosen = None if method is None else find_method(method)
    refuse_foreign_options(chosen, options)
    resolved = read_schedule(chosen, schedule, length, warmup, warmup_batches)
    spread = is_spread_model(model)
    several = not staged and (spread or (several_processes() if synchronize is None else synchronize))
    if not staged:
        refuse_unknown_parallelism(model)
    processes = Processes(model, several=several)
    processes.reshard()
    validation = validate(model, optimizers, exclude)
    validation.raise_problems()
    if not staged:
        refuse_mixed_weights(validation.survey)
    check_weight_hooks(spread, hooks)
    arithmetic = read_precision(precision, compiled=bool(compile), several=several)
    given = dict(sources or {})
    idle = sorted(set(given) - resolved.sources)
    if idle:
        raise OptionError(f"source '{idle[0]}' was given, but the schedule names only: {', '.join(resolved.sources)}.")
    if chosen is not None and chosen.source in resolved.sources:
        given.setdefault(chosen.source, build_source(chosen, RunFacts(seed, length.epochs), options))
    needed = {name: given[name] if name in given else default_source(name) for name in sorted(resolved.sources)}
    refuse_misfits(resolved, needed)
    trial = None if sample is None else try_out(model, validation.survey, sample)
    layout = registered(validation.survey) if trial is None else trial.layout
    resolved = resolved.resolve(layout)
    named = {site.name: site for site in validation.survey.sites}
    total = length.batches or length.epochs * length.batches_per_epoch
    trainer = Trainer(
        model,
        optimizers,
        resolved,
        needed,
        validation.survey,
        batches_per_epoch=length.batches_per_epoch,
        batches=length.batches,
        guard=guard or Guard(),
        metrics_every=metrics_every,
        scaler=scaler,
        output=output,
        processes=processes,
        precision=arithmetic,
        facts=ArithmeticFacts([named[layer.name] for layer in layout.sites], total, seed),
        weight_hooks=hooks,
    )
    try:
        if trial is not None:
            for source in needed.values():
                source.prepare({site: shape for site, shape in trial.shapes.items() if resolved.serves(site.name)})
        if compile:
            compile_model(model, "inductor" if compile is True else compile)
    except BaseException:
        trainer.detach()
        raise
    return trainer


def renamed(options: dict[str, Any], old: str, new: str, value: Any) -> Any:
    """Return the value of a keyword that had another name, taken out of `options` if it was given by that."""
    if old not in options:
        return value
    warnings.warn(f"attach({old}=...) is now attach({new}=...).", DeprecationWarning, stacklevel=3)
    return options.pop(old)


def read_precision(precision: Precision | str | None, *, compiled: bool, several: bool) -> Precision | None:
    """Return the precision of a run, None for single precision; raise where it cannot be used."""
    chosen = parse_precision(precision) if isinstance(precision, str) else precision
    if chosen is None or chosen.native:
        return None
    text = chosen.text
    if compiled:
        raise OptionError(f"precision '{text}' replaces products while the model runs; it cannot be compiled.")
    if several:
        raise OptionError(
            f"precision '{text}' is for runs in one process: exponents and widths depend on the whole batch, of which "
            "each process has a share."
        )
    return chosen


def check_weight_hooks(sharded: bool, hooks: Sequence[WeightUpdateHook]) -> None:
    """Raise if there are hooks on weights that are sharded over processes."""
    if sharded and hooks:
        raise OptionError(
            f"{type(hooks[0]).__name__} ranks the weights of the whole model together; here each process holds a part of them "
            "(fully_shard). Use DDP, or leave out weight_hooks."
        )


def refuse_misfits(schedule: Schedule, sources: Mapping[str, Source]) -> None:
    """Refuse sources that cannot do what the schedule asks of them."""
    for name, source in sources.items():
        if source.skips and schedule.partial:
            raise OptionError(f"source '{name}' leaves out whole batches: it cannot serve some sites of a batch only.")
        if source.needs_backward and schedule.stops:
            raise OptionError(
                f"source '{name}' needs the gradient at the output of its sites: it cannot serve sites below the place "
                "where the backward pass stops."
            )
        if schedule.adapts and not source.learns:
            raise OptionError(
                f"an adaptive schedule measures predictions; source '{name}' learns and predicts nothing."
            )
