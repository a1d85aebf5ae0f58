"""The one line that adopts adagp: `attach` reads and checks its arguments, and makes a `Trainer` of them."""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from adagp.core.methods import DEFAULT_METHOD, Method, find_method
from adagp.core.precision import Precision, parse_precision
from adagp.engine.arithmetic import ArithmeticFacts
from adagp.engine.distributed import (
    Processes,
    check_parallelism,
    check_sharded_alike,
    is_sharded_model,
    several_processes,
)
from adagp.engine.guard import Guard
from adagp.engine.hooks import OutputSelector, compile_model
from adagp.engine.trainer import Trainer
from adagp.engine.validate import registered_layout, trial_forward, validate
from adagp.engine.weight_update import WeightUpdateHook, as_hooks
from adagp.errors import OptionError, unknown_name
from adagp.layers.sites import Survey
from adagp.schedules import Schedule, WarmUp, parse_schedule
from adagp.schedules.ladder import PAPER_EPOCHS, scaled_warmup
from adagp.sources.base import RunFacts, Source, build_source, default_source

EPOCH_MULTIPLE = 60
"""A run without epochs is divided into some, of a multiple of this many batches: schedules restart in each epoch, and
alternations of up to six batches then continue as if there were none."""


@dataclass(frozen=True)
class EngineOptions:
    """How batches are computed, checked and measured.

    `precision` is the arithmetic of the sites' products: block floating point, emulated in float, or single precision (None).
    It is a `Precision` or its text form (see `adagp.core.precision`): `"bfp4"`, `"fast"`. Give `attach` a `sample` too where
    layers run in another order than the model has registered them.

    `compile=True` compiles the model in place with torch's compiler, a name with that backend of `torch.compile`. `scaler` is
    yours, for mixed precision. `guard` rejects predictions that are too large.

    `weight_hooks` change the weights after each step of the optimizer, in order: `adagp.DropBack(keep=0.1)` keeps a tenth of
    them. They take the weights that the model has in `attach` as the initial ones.

    Predictions are compared with true gradients in every `metrics_every`-th BP batch; 0: never.
    """

    precision: Precision | str | None = None
    compile: bool | str = False
    scaler: torch.amp.GradScaler | None = None
    guard: Guard = field(default_factory=Guard)
    weight_hooks: WeightUpdateHook | Sequence[WeightUpdateHook] = ()
    metrics_every: int = 10


@dataclass(frozen=True)
class RunLength:
    """Epochs and their batches; `batches` is the length of the run if its last epoch is not whole.

    A run that has no epochs of its own is divided into some, for schedules that change by epochs.
    """

    epochs: int
    batches_per_epoch: int
    batches: int | None = None
    divided: bool = False

    @property
    def total(self) -> int:
        """The batches of the whole run."""
        return self.batches or self.epochs * self.batches_per_epoch


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    method: str | None = None,
    epochs: int | None = None,
    batches_per_epoch: int | None = None,
    steps: int | None = None,
    schedule: Schedule | str | None = None,
    warmup: int | str | None = None,
    sources: Mapping[str, Source] | None = None,
    exclude: Sequence[str] = (),
    output: OutputSelector = None,
    sample: Any = None,
    seed: int = 0,
    engine: EngineOptions | None = None,
    **options: Any,
) -> Trainer:
    """Return a trainer for `model` and `optimizer` (or several of these), which stay in use as they are.

    The length of the run is `epochs` of `batches_per_epoch`, or `steps` batches where there are no epochs.

    `method` names one of `adagp.METHODS`, by default `feedback`; `options` are its own (`features=32`), `seed` is for its
    random numbers. A `Schedule` object, `source=` in its text form, and `sources` name the sources themselves. `schedule`
    is a `Schedule` or its text form (see `adagp.schedules.text`), by default the method's. With the text form goes
    `warmup`: a number of epochs (of steps, in a run of `steps`), or `"300 batches"`.
    `sources` gives ready-made sources by the names that the schedule uses; the others are made with their defaults. `exclude`
    are name patterns of layers that are not to be predicted.

    `output` selects the outputs of the model that the loss depends on, for methods that use the error there: by default all
    floating-point tensors that it returns; else the name of a field of what it returns (`"logits"`), a function of it, or the
    name of a layer of the model, where the model computes the loss itself.

    `sample` is a batch of inputs, on the model's device, for a trial forward pass: schedules that cut the model in two need
    it, and methods check the layers' output sizes with it. `engine` has further options: precision, compilation, the guard.

    Attach after the model has been moved to its device. `model` may be in `DistributedDataParallel`, or sharded by
    `fully_shard` (FSDP2): attach after that.

    `Trainer.rehearse` tries both kinds of batches in your own loop and restores everything: do that before a long run.
    """
    former = _former_keywords(options)
    length = run_length(epochs, batches_per_epoch, former.pop("batches", None), steps)
    internal = {name: former.pop(name) for name in ("synchronize", "staged") if name in former}
    warmup = former.pop("warmup", warmup)
    chosen = _chosen_method(method, schedule, sources)
    check_method_options(chosen, options)
    resolved = read_schedule(chosen, schedule, length, warmup)
    return attach_run(
        model,
        optimizer,
        length,
        resolved,
        _method_sources(chosen, resolved, sources or {}, RunFacts(seed, length.epochs), options),
        exclude=exclude,
        output=output,
        sample=sample,
        seed=seed,
        engine=replace(engine or EngineOptions(), **former),
        **internal,
    )


def attach_run(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    length: RunLength,
    schedule: Schedule,
    sources: Mapping[str, Source],
    *,
    exclude: Sequence[str] = (),
    output: OutputSelector = None,
    sample: Any = None,
    seed: int = 0,
    engine: EngineOptions,
    synchronize: bool | None = None,
    staged: bool = False,
) -> Trainer:
    """Return a trainer, where schedule and length are known: what `attach` calls, and the programs of adagp.

    `synchronize`: whether the processes of `torch.distributed` train on shares of one batch; None: if there are several.
    `staged`: this process runs some stages of the model alone, whose weights may be sharded, and the caller exchanges what is
    needed.
    """
    optimizers = (optimizer,) if isinstance(optimizer, torch.optim.Optimizer) else tuple(optimizer)
    processes = _processes(model, synchronize, staged)
    survey = _checked_survey(model, optimizers, exclude, staged)
    weight_hooks = as_hooks(engine.weight_hooks)
    check_weight_hooks(is_sharded_model(model), weight_hooks)
    precision = read_precision(engine.precision, compiled=bool(engine.compile), several=processes.several)
    needed = {name: sources[name] if name in sources else default_source(name) for name in sorted(schedule.sources)}
    check_sources(schedule, needed)
    trial = None if sample is None else trial_forward(model, survey, sample)
    layout = registered_layout(survey) if trial is None else trial.layout
    resolved = schedule.resolve(layout)
    sites = {site.name: site for site in survey.sites}
    trainer = Trainer(
        model,
        optimizers,
        resolved,
        needed,
        survey,
        batches_per_epoch=length.batches_per_epoch,
        batches=length.batches,
        guard=engine.guard,
        metrics_every=engine.metrics_every,
        scaler=engine.scaler,
        output=output,
        processes=processes,
        precision=precision,
        facts=ArithmeticFacts([sites[layer.name] for layer in layout.sites], length.total, seed),
        weight_hooks=weight_hooks,
    )
    try:
        if trial is not None:
            for source in needed.values():
                source.prepare({site: shape for site, shape in trial.shapes.items() if resolved.serves(site.name)})
        if engine.compile:
            compile_model(model, "inductor" if engine.compile is True else engine.compile)
    except BaseException:
        trainer.detach()
        raise
    return trainer


def run_length(epochs: int | None, batches_per_epoch: int | None, batches: int | None, steps: int | None) -> RunLength:
    """Return the length of a run, given in one of the two ways."""
    if steps is not None:
        if (epochs, batches_per_epoch, batches) != (None, None, None):
            raise OptionError("steps is the length of a run without epochs; leave out epochs and batches.")
        if steps < 1:
            raise OptionError(f"a run needs at least 1 step; got {steps}.")
        parts = max(1, min(PAPER_EPOCHS, steps // EPOCH_MULTIPLE))
        each = min(steps, -(-steps // (parts * EPOCH_MULTIPLE)) * EPOCH_MULTIPLE)
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


def _chosen_method(
    method: str | None, schedule: Schedule | str | None, sources: Mapping[str, Source] | None
) -> Method | None:
    """Return the method to train with; None if the schedule or the given sources name the sources."""
    if method is not None:
        return find_method(method)
    named = sources or isinstance(schedule, Schedule) or "source=" in (schedule or "")
    return None if named else find_method(DEFAULT_METHOD)


def read_schedule(
    method: Method | None, schedule: Schedule | str | None, length: RunLength, warmup: int | str | None
) -> Schedule:
    """Return the schedule of a run, with its warm-up; by default the method's own, or the ladder."""
    if isinstance(schedule, Schedule):
        if warmup is not None:
            raise OptionError("warmup goes with a schedule in text form; put a WarmUp around a Schedule object.")
        return schedule
    text = schedule or ("ladder" if method is None else method.schedule)
    source = "predicted" if method is None else method.source or "predicted"
    if not length.divided and not isinstance(warmup, str):
        return parse_schedule(text, length.epochs, warmup, source)
    inner = parse_schedule(text, length.epochs, 0, source)
    batches = _warmup_batches(warmup)
    if batches is None:
        # Ten times the epochs: in a short run the schedule's own warm-up would be rounded to none.
        usual = parse_schedule(text, 10 * length.epochs, None, source)
        batches = scaled_warmup(length.total) if isinstance(usual, WarmUp) else 0
    if batches >= length.total:
        raise OptionError(
            f"a warm-up of {batches} batches does not fit a run of {length.total}: nothing would be predicted."
        )
    if not inner.sources or not batches:
        return inner
    return WarmUp(inner, batches=batches, batches_per_epoch=length.batches_per_epoch)


def _warmup_batches(warmup: int | str | None) -> int | None:
    if not isinstance(warmup, str):
        return warmup
    match = re.fullmatch(r"(\d+) batch(?:es)?", warmup)
    if match is None:
        raise OptionError(f"cannot read the warm-up '{warmup}': give a number of epochs, or for example '300 batches'.")
    return int(match[1])


def check_method_options(method: Method | None, options: Mapping[str, Any]) -> None:
    """Raise on options that the method does not have, or values that it does not allow."""
    if not options:
        return
    if method is None:
        raise OptionError(f"attach has no option '{next(iter(options))}'; options of a method go with method=....")
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


def _method_sources(
    method: Method | None, schedule: Schedule, sources: Mapping[str, Source], run: RunFacts, options: Mapping[str, Any]
) -> dict[str, Source]:
    """Return the sources that were given, and the method's own if the schedule names it."""
    unused = sorted(set(sources) - schedule.sources)
    if unused:
        raise OptionError(
            f"source '{unused[0]}' was given, but the schedule names only: {', '.join(schedule.sources)}."
        )
    if method is None or method.source not in schedule.sources or method.source in sources:
        return dict(sources)
    return {**sources, method.source: build_source(method, run, options)}


def _processes(model: nn.Module, synchronize: bool | None, staged: bool) -> Processes:
    """Return the processes that train together; raise if the model is distributed in a way that is not supported."""
    if staged:
        return Processes(model, several=False)
    check_parallelism(model)
    several = is_sharded_model(model) or (several_processes() if synchronize is None else synchronize)
    processes = Processes(model, several=several)
    processes.reshard()
    return processes


def _checked_survey(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], exclude: Sequence[str], staged: bool
) -> Survey:
    validation = validate(model, optimizers, exclude)
    validation.raise_problems()
    if not staged:
        check_sharded_alike(validation.survey)
    return validation.survey


def read_precision(precision: Precision | str | None, *, compiled: bool, several: bool) -> Precision | None:
    """Return the precision of a run, None for single precision; raise where it cannot be used."""
    chosen = parse_precision(precision) if isinstance(precision, str) else precision
    if chosen is None or chosen.native:
        return None
    if compiled:
        raise OptionError(f"precision '{chosen.text}' replaces products while the model runs; it cannot be compiled.")
    if several:
        raise OptionError(
            f"precision '{chosen.text}' is for runs in one process: exponents and widths depend on the whole batch, of which "
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


def check_sources(schedule: Schedule, sources: Mapping[str, Source]) -> None:
    """Raise on sources that cannot do what the schedule needs."""
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


_FORMER = {
    "precision": "engine=adagp.EngineOptions(precision=...)",
    "compile": "engine=adagp.EngineOptions(compile=...)",
    "scaler": "engine=adagp.EngineOptions(scaler=...)",
    "guard": "engine=adagp.EngineOptions(guard=...)",
    "metrics_every": "engine=adagp.EngineOptions(metrics_every=...)",
    "upkeep": "engine=adagp.EngineOptions(weight_hooks=...)",
    "warmup_batches": "warmup='300 batches'",
    "batches": "adagp.engine.attach.attach_run",
    "synchronize": "adagp.engine.attach.attach_run",
    "staged": "adagp.engine.attach.attach_run",
}
"""Keywords of earlier versions, and what has replaced them."""


def _former_keywords(options: dict[str, Any]) -> dict[str, Any]:
    """Take the keywords of earlier versions out of `options`, with a warning; return them by their names of today."""
    former: dict[str, Any] = {}
    for name in [name for name in _FORMER if name in options]:
        warnings.warn(f"attach({name}=...) is deprecated: use {_FORMER[name]}.", DeprecationWarning, stacklevel=3)
        value = options.pop(name)
        if value is None:  # which stood for the default
            continue
        if name == "warmup_batches":
            former["warmup"] = f"{value} batches"
        else:
            former["weight_hooks" if name == "upkeep" else name] = value
    return former
