"""`attach`, the entry point for training loops of your own: it checks its arguments and returns a `Trainer`.

Keywords of earlier versions still work, with a warning that names their replacement (`FormerKeywords`).
"""

import inspect
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, ParamSpec, TypedDict

import torch
from torch import Size, nn

from adagp.core.methods import METHODS
from adagp.core.plan import Epochs, RunLength, check_whole, read_length, shortened_run
from adagp.core.precision import Precision
from adagp.engine.arguments import (
    MethodChoice,
    MethodLike,
    check_model,
    check_patterns,
    check_selector,
    check_sources,
    check_sources_given,
    check_weight_hooks,
    read_method,
    read_optimizers,
    read_precision,
    read_schedule,
    read_weight_hooks,
)
from adagp.engine.distributed import (
    Processes,
    check_parallelism,
    check_sharded_alike,
    is_sharded_model,
    several_processes,
)
from adagp.engine.extensions import ArithmeticFacts, WeightUpdateHook
from adagp.engine.guard import Guard
from adagp.engine.hooks import OutputSelector, compile_model, has_hooks
from adagp.engine.trainer import Trainer
from adagp.engine.trial_forward import registered_layout, trial_forward
from adagp.engine.validate import validate
from adagp.errors import AdagpWarning, OptionError
from adagp.layers.sites import Site, Survey
from adagp.schedules import Schedule
from adagp.sources.base import RunFacts, Source, default_source

Parameters = ParamSpec("Parameters")
Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]


@dataclass(frozen=True)
class EngineOptions:
    """How batches are computed, checked and measured.

    `precision` is the arithmetic of the sites' products: block floating point, emulated in float, or single precision (None).
    It is a `Precision` or its text form (see `adagp.core.precision`): `"bfp4"`, `"fast"`. If layers run in another order than
    the model registers them, also give `attach` a `sample`.

    `compile=True` compiles the model in place with `torch.compile`; a string names the compiler's backend. `scaler` is your own
    gradient scaler, for mixed precision. `guard` rejects predictions that are too large.

    `weight_hooks` change the weights after each step of the optimizer, in order: `adagp.DropBack(keep=0.1)` keeps a tenth of
    them. The weights at the time of `attach` count as the initial ones.

    Predictions are compared with true gradients in every `metrics_every`-th BP batch; 0: never. With `noise`, `read_sites` also
    has `sample_correlation`, how well single samples' gradients are predicted, and `noise_batches`, the gradient noise scale;
    it takes the memory of two gradients.
    """

    precision: Precision | str | None = None
    compile: bool | str = False
    scaler: torch.amp.GradScaler | None = None
    guard: Guard = field(default_factory=Guard)
    weight_hooks: WeightUpdateHook | Sequence[WeightUpdateHook] = ()
    metrics_every: int = 10
    noise: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.guard, Guard):
            raise OptionError(f"guard is {self.guard!r}; it must be an adagp.Guard, for example adagp.Guard(10.0).")
        check_whole(metrics_every=self.metrics_every)


class AttachOptions(TypedDict, total=False):
    """The keywords of `attach`, for frameworks that pass them on."""

    method: MethodLike | None
    length: Epochs | None
    steps: int | None
    schedule: Schedule | str | None
    warmup: int | str | None
    sources: Mapping[str, Source] | None
    exclude: list[str] | tuple[str, ...]
    output: OutputSelector
    sample: Any
    seed: int
    engine: EngineOptions | None


def _accepting_former_keywords(current: Callable[Parameters, Trainer]) -> Callable[Parameters, Trainer]:
    """Let `attach` take the keywords of earlier versions as well; type checkers see only the present ones."""
    parameters = inspect.signature(current).parameters

    @wraps(current)
    def attach_either_way(*arguments: Any, **keywords: Any) -> Trainer:
        if keywords.keys() <= parameters.keys():
            return current(*arguments, **keywords)
        bound = inspect.signature(current).bind_partial(*arguments).arguments
        keywords = {**bound, **keywords}
        former = take_former_keywords(keywords, parameters)
        for note in former.notes:
            warnings.warn(note, DeprecationWarning, stacklevel=2)
        choice = read_method(
            keywords.pop("method", None), keywords.get("schedule"), keywords.get("sources"), former.method
        )
        present = keywords.pop("length", None), keywords.pop("steps", None)
        length = former.length or read_length(*present)
        keywords["engine"] = replace(keywords.get("engine") or EngineOptions(), **former.engine)
        if former.warmup is not None:
            keywords["warmup"] = former.warmup
        return _attach(choice, length, **keywords, **former.run)

    return attach_either_way


@_accepting_former_keywords
def attach(
    model: nn.Module,
    optimizer: Optimizers,
    method: MethodLike | None = None,
    *,
    length: Epochs | None = None,
    steps: int | None = None,
    schedule: Schedule | str | None = None,
    warmup: int | str | None = None,
    sources: Mapping[str, Source] | None = None,
    exclude: list[str] | tuple[str, ...] = (),
    output: OutputSelector = None,
    sample: Any = None,
    seed: int = 0,
    engine: EngineOptions | None = None,
) -> Trainer:
    """Return a trainer for `model` and `optimizer` (or several of these). Both stay your own objects: nothing is wrapped.

    `method` is the name of one of `adagp.METHODS`, by default `"feedback"`, or an object with its options:
    `adagp.Feedback(features=32)`. Use `adagp.NamedMethod` for a method of a plug-in or of your own, or a name in a variable.
    Without a method, the sources can be named by a `Schedule` object, by `source=` in a schedule's text form, or by `sources`.
    `seed` is the seed of the sources' random numbers.

    The length of the run is `length=adagp.Epochs(90, len(loader))`, or `steps` batches if it has no epochs. `schedule` is a
    `Schedule` or its text form (see `adagp.schedules.text`), by default the method's. `warmup` goes with the text form: a
    number of epochs (of steps, in a run of `steps`), or `"300 batches"`. `sources` has ready-made sources by the names that the
    schedule uses; the others are made with their defaults. `exclude` has name patterns of layers that are not predicted.

    `output` selects the outputs of the model that the loss depends on, for methods that use the error there: by default all
    floating-point tensors that the model returns. It is the name of a field of the returned object (`"logits"`), a function of
    that object, or, if the model computes the loss itself, the name of a layer.

    `sample` is a batch of inputs, on the model's device, for a trial forward pass: schedules that cut the model in two need
    it, and methods check the layers' output sizes with it. `engine` has further options: precision, compilation, the guard.

    Methods keep memory between batches: `feedback` up to twice the size of the weights (or 64 MB), `adagp` a predictor with
    its optimizer. `adagp.validate(model, optimizer, method=..., sample=...)` counts this memory, and the cost of batches, in
    advance.

    Call `attach` after the model has been moved to its device, and after it was wrapped in `DistributedDataParallel` or sharded
    by `fully_shard` (FSDP2).

    `Trainer.rehearse` tries both kinds of batches in your own loop and restores everything: call it before a long run.
    """
    return _attach(
        read_method(method, schedule, sources),
        read_length(length, steps),
        model,
        optimizer,
        schedule=schedule,
        warmup=warmup,
        sources=sources,
        exclude=exclude,
        output=output,
        sample=sample,
        seed=seed,
        engine=engine,
    )


def _attach(
    choice: MethodChoice,
    length: RunLength,
    model: nn.Module,
    optimizer: Optimizers,
    *,
    schedule: Schedule | str | None = None,
    warmup: int | str | None = None,
    sources: Mapping[str, Source] | None = None,
    seed: int = 0,
    engine: EngineOptions | None = None,
    **run: Any,
) -> Trainer:
    check_model(model, optimizer)
    check_whole(seed=seed)
    check_sources_given(sources or {})
    resolved = read_schedule(choice, schedule, length, warmup)
    return attach_run(
        model,
        optimizer,
        length,
        resolved,
        choice.build_sources(resolved, sources or {}, RunFacts(seed, length.epochs)),
        method=choice.name,
        seed=seed,
        engine=engine or EngineOptions(),
        **run,
    )


def attach_run(
    model: nn.Module,
    optimizer: Optimizers,
    length: RunLength,
    schedule: Schedule,
    sources: Mapping[str, Source],
    *,
    method: str = "",
    exclude: Sequence[str] = (),
    output: OutputSelector = None,
    sample: Any = None,
    seed: int = 0,
    engine: EngineOptions,
    synchronize: bool | None = None,
    staged: bool = False,
) -> Trainer:
    """Return a trainer for a given schedule and length. `attach` and adagp's own programs call it.

    `synchronize`: whether the processes of `torch.distributed` train on shares of one batch; None: yes, if there are several.
    `staged`: this process runs only some stages of the model, whose weights may be sharded, and the caller exchanges the data
    between processes.
    """
    optimizers = read_optimizers(optimizer)
    warn_if_attached(model)
    check_patterns(exclude)
    check_selector(output)
    processes = _processes(model, synchronize, staged)
    survey = _checked_survey(model, optimizers, exclude, staged)
    weight_hooks = read_weight_hooks(engine.weight_hooks)
    check_weight_hooks(is_sharded_model(model), weight_hooks)
    precision = read_precision(engine.precision, compiled=bool(engine.compile), several=processes.several)
    needed = _needed_sources(schedule, sources)
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
        length=length,
        method=method,
        guard=engine.guard,
        metrics_every=engine.metrics_every,
        noise=engine.noise,
        scaler=engine.scaler,
        output=output,
        processes=processes,
        precision=precision,
        facts=ArithmeticFacts([sites[layer.name] for layer in layout.sites], length.total, seed),
        weight_hooks=weight_hooks,
    )
    try:
        if trial is not None:
            _prepare(needed, {site: shape for site, shape in trial.shapes.items() if resolved.serves(site.name)})
        if engine.compile:
            compile_model(model, "inductor" if engine.compile is True else engine.compile)
    except BaseException:
        trainer.detach()
        raise
    return trainer


def warn_if_attached(model: nn.Module) -> None:
    """Warn if the model has the hooks of another trainer."""
    if any(has_hooks(module) for module in model.modules()):
        warnings.warn(
            "the model, or a part of it, is already attached to another trainer. Two trainers can share a model as "
            "long as one batch is over before the next begins; call detach() on a trainer that you no longer use.",
            AdagpWarning,
            stacklevel=4,
        )


def _needed_sources(schedule: Schedule, sources: Mapping[str, Source]) -> dict[str, Source]:
    needed = {name: sources[name] if name in sources else default_source(name) for name in sorted(schedule.sources)}
    check_sources(schedule, needed)
    return needed


def _prepare(sources: Mapping[str, Source], shapes: Mapping[Site, Size]) -> None:
    for source in sources.values():
        source.prepare(shapes)


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


_REPLACEMENTS = {
    "precision": "engine=adagp.EngineOptions(precision=...)",
    "compile": "engine=adagp.EngineOptions(compile=...)",
    "scaler": "engine=adagp.EngineOptions(scaler=...)",
    "guard": "engine=adagp.EngineOptions(guard=...)",
    "metrics_every": "engine=adagp.EngineOptions(metrics_every=...)",
    "upkeep": "engine=adagp.EngineOptions(weight_hooks=...)",
    "warmup_batches": "warmup='300 batches'",
    "epochs": "length=adagp.Epochs(epochs, batches_per_epoch)",
    "batches": "steps=...",
    "synchronize": "adagp.engine.attach.attach_run",
    "staged": "adagp.engine.attach.attach_run",
}
_ENGINE = ("precision", "compile", "scaler", "guard", "metrics_every", "upkeep")


@dataclass
class FormerKeywords:
    """The present form of keywords of earlier versions, and `notes` (warnings) that name their replacements.

    `engine` has arguments of `EngineOptions`, `run` arguments of `attach_run`, `method` options of the method.
    """

    length: RunLength | None = None
    warmup: str | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def take(self, name: str, value: Any) -> None:
        """Translate one keyword. In earlier versions None stood for the default."""
        self.notes.append(_note(name, _REPLACEMENTS[name]))
        if value is None:
            return
        if name == "warmup_batches":
            self.warmup = f"{value} batches"
        elif name in _ENGINE:
            self.engine["weight_hooks" if name == "upkeep" else name] = value
        else:
            self.run[name] = value


def take_former_keywords(keywords: dict[str, Any], known: Collection[str]) -> FormerKeywords:
    """Remove all keywords that are not `known` from `keywords` and translate them; the rest are options of the method."""
    former = {name: keywords.pop(name) for name in [name for name in keywords if name not in known]}
    taken = FormerKeywords()
    length = {name: former.pop(name, None) for name in ("epochs", "batches_per_epoch", "batches")}
    if any(value is not None for value in length.values()):
        _take_length(taken, length, keywords.get("steps"))
    for name in [name for name in _REPLACEMENTS if name in former]:
        taken.take(name, former.pop(name))
    taken.method = former
    if former and isinstance(keywords.get("method"), str):
        taken.notes.append(_note(next(iter(former)), f"method={_as_object(keywords['method'], former)}"))
    return taken


def _as_object(method: str, options: Mapping[str, Any]) -> str:
    values = ", ".join(f"{option}={value!r}" for option, value in options.items())
    typed = METHODS[method].typed if method in METHODS else None
    return f"adagp.NamedMethod('{method}', {values})" if typed is None else f"adagp.{typed.__name__}({values})"


def _take_length(taken: FormerKeywords, length: Mapping[str, Any], steps: object) -> None:
    epochs, each, batches = length.values()
    if steps is not None:
        raise OptionError("steps is the length of a run without epochs; leave out epochs and batches.")
    if epochs is None or each is None:
        raise OptionError("the length of the run is missing: give length=adagp.Epochs(90, len(loader)), or steps=.")
    name = "epochs" if batches is None else "batches"
    taken.notes.append(_note(name, _REPLACEMENTS[name]))
    taken.length = shortened_run(Epochs(epochs, each), batches)


def _note(name: str, replacement: str) -> str:
    return f"attach({name}=...) is deprecated: use {replacement}."
