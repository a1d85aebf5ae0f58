"""The one line that adopts adagp: `attach` reads and checks its arguments, and makes a `Trainer` of them."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from adagp.core.methods import Method, find_method
from adagp.core.precision import Precision, parse_precision
from adagp.engine.arithmetic import ArithmeticFacts
from adagp.engine.distributed import (
    Processes,
    is_spread_model,
    refuse_mixed_weights,
    refuse_unknown_parallelism,
    several_processes,
)
from adagp.engine.guard import Guard
from adagp.engine.hooks import OutputSelector, compile_model
from adagp.engine.trainer import Trainer
from adagp.engine.validate import registered, try_out, validate
from adagp.engine.weight_update import WeightUpdateHook, as_hooks
from adagp.errors import OptionError, unknown_name
from adagp.schedules import Schedule, WarmUp, parse_schedule
from adagp.schedules.ladder import PAPER_EPOCHS
from adagp.schedules.warmup import scaled_warmup
from adagp.sources.base import RunFacts, Source, build_source, default_source


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


LEAST_BATCHES = 60
"""Where a run without epochs is divided into some, their batches are a multiple of this: schedules begin anew in each epoch,
and alternations of up to six batches then go on as if there were none."""


@dataclass(frozen=True)
class RunLength:
    """Epochs and their batches; `batches` is the length of the run if its last epoch is not whole.

    A run that has no epochs of its own is divided into some, for schedules that change by epochs.
    """

    epochs: int
    batches_per_epoch: int
    batches: int | None = None
    divided: bool = False


def run_length(epochs: int | None, batches_per_epoch: int | None, batches: int | None, steps: int | None) -> RunLength:
    """Return the length of a run, given in one of the two ways."""
    if steps is not None:
        if (epochs, batches_per_epoch, batches) != (None, None, None):
            raise OptionError("steps is the length of a run without epochs; leave out epochs and batches.")
        if steps < 1:
            raise OptionError(f"a run needs at least 1 step; got {steps}.")
        parts = max(1, min(PAPER_EPOCHS, steps // LEAST_BATCHES))
        each = min(steps, -(-steps // (parts * LEAST_BATCHES)) * LEAST_BATCHES)
        return RunLength(-(-steps // each), each, steps, divided=True)
    if epochs is None or batches_per_epoch is None:
        raise OptionError("the length of the run is missing: give epochs and batches_per_epoch, or steps.")
    if epochs < 1 or batches_per_epoch < 1:
        raise OptionError(
            f"a run needs at least 1 epoch and 1 batch per epoch; got {epochs} epochs, {batches_per_epoch} batches."
        )
    if batches is not None and not 0 <= epochs * batches_per_epoch - batches < batches_per_epoch:
        raise OptionError(
            f"{batches} batches do not end in epoch {epochs} of a run with {batches_per_epoch} batches per epoch."
        )
    return RunLength(epochs, batches_per_epoch, batches)


def read_schedule(
    method: Method | None,
    schedule: Schedule | str | None,
    length: RunLength,
    warmup: int | None,
    warmup_batches: int | None,
) -> Schedule:
    """Return the schedule of a run, with its warm-up; by default the method's own, or the ladder."""
    if isinstance(schedule, Schedule):
        if warmup is not None or warmup_batches is not None:
            raise OptionError("warmup goes with a schedule in text form; put a WarmUp around a Schedule object.")
        return schedule
    if warmup is not None and warmup_batches is not None:
        raise OptionError("the warm-up is given in epochs and in batches; give one of them.")
    if length.divided and warmup is not None:
        raise OptionError("a run without epochs has a warm-up in batches: warmup_batches.")
    text = schedule or ("ladder" if method is None else method.schedule)
    source = "predicted" if method is None else method.source or "predicted"
    if not length.divided and warmup_batches is None:
        return parse_schedule(text, length.epochs, warmup, source)
    inner = parse_schedule(text, length.epochs, 0, source)
    usual = parse_schedule(text, 10 * length.epochs, None, source)
    total = length.batches or length.epochs * length.batches_per_epoch
    warm = warmup_batches
    if warm is None:
        warm = scaled_warmup(total) if isinstance(usual, WarmUp) else 0
    if warm >= total:
        raise OptionError(f"a warm-up of {warm} batches does not fit a run of {total}: nothing would be predicted.")
    if not inner.sources or not warm:
        return inner
    return WarmUp(inner, batches=warm, batches_per_epoch=length.batches_per_epoch)


def refuse_foreign_options(method: Method | None, options: Mapping[str, Any]) -> None:
    """Refuse options that the method does not have, or with values that it does not take."""
    if not options:
        return
    first = next(iter(options))
    if method is None:
        raise OptionError(f"attach has no option '{first}'; options of a method go with method=....")
    known = {option.name: option for option in method.options}
    for name, value in options.items():
        if name not in known:
            raise (
                unknown_name(f"option of method '{method.name}'", name, known)
                if known
                else OptionError(f"method '{method.name}' has no options; got '{name}'.")
            )
        known[name].check_type(value, "attach")
        known[name].check(value)
