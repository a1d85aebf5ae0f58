"""The tables of training methods and of weight-update hooks. No torch here: their classes are named by text and imported late.

A method is one declaration: its name and what it does; the source of the gradients of its GP batches, as
`package.module:Class`; the options of its own; the schedule that goes with it; the work it causes on an accelerator; and the
kinds of parallel runs in which it gives the same result.

A method of your own is a class derived from `adagp.Source`, which may declare the same as class attributes (`own_options`,
`own_schedule`, `own_parallel`, `accelerator`). `--method package.module:Class` finds it; `register_method("name")` gives it a
short name.

A weight-update hook changes a run's weights after each step of its optimizer. It is one declaration, too: its class, and its
options, one of which turns it on. `adagp train` offers the options of all methods and hooks.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeVar, cast

from adagp.core.method_options import PANEL, MethodOptions, declare_option
from adagp.core.options import Option
from adagp.core.registry import Registry, import_reference
from adagp.errors import OptionError, unknown_name

DEFAULT_METHOD = "feedback"
"""The method of `attach`, `adagp train`, `compare`, `simulate` and the examples if none is given."""
UNRECORDED_METHOD = "adagp"
"""The method of old run folders and checkpoints that record none: it was the default when they were written."""
WEIGHT_GRADIENTS = ("none", "exact")
EXCHANGES = ("none", "gradients")


@dataclass(frozen=True)
class AcceleratorWork:
    """The work that a source causes on an accelerator for a site, beyond the site's forward pass.

    weight_gradient   the cost of the weight gradient in a GP batch: `none`, `exact` (as in backprop), or a function
    input_gradients   a GP batch needs the chain of input gradients down to the site
    cuts_chain        no input gradient is computed through the site, even if parameters outside of the sites are trained: the
                      source supplies the gradient at the site's input
    output_error      a GP batch needs the error at the model's output
    skips             a GP batch is not run at all
    remembered        gradients of earlier batches that a GP batch reads
    predictor         the accelerator's own predictor runs for each site, and is trained in BP batches
    predictions       a function: the cost of predicting in a GP batch, and of learning in a BP batch
    trains_itself     what `predictions` costs for learning is also spent in GP batches
    variation         a function: how the work differs from batch to batch
    splits            part of a GP batch is trained by backprop, too: its `variation` has a `BatchSplit` for each batch
    exchange          what chips that train on shares of a batch exchange for it: `none`, `gradients` (those of a GP batch are
                      averaged), a function, or '' (not known)

    Functions are named as `package.module:function` and imported when they are first called. Those of `weight_gradient` and
    `predictions` take an `adagp.hw.SiteWork` and return a `Cost` without stalls, and `Predictions` (None: nothing to do). They
    must be pure, because results are cached. `variation` takes the method's options and returns a `BatchVariation`. `exchange`
    takes an `adagp.hw.exchange.ExchangeWork` and returns a `SourceExchange`.
    """

    weight_gradient: str = "none"
    input_gradients: bool = False
    cuts_chain: bool = False
    predictor: bool = False
    skips: bool = False
    remembered: int = 0
    predictions: str = ""
    trains_itself: bool = False
    output_error: bool = False
    variation: str = ""
    splits: bool = False
    exchange: str = "gradients"

    def __post_init__(self) -> None:
        if self.exchange and self.exchange not in EXCHANGES and ":" not in self.exchange:
            raise unknown_name("exchange", self.exchange, (*EXCHANGES, "package.module:function"))
        if self.weight_gradient not in WEIGHT_GRADIENTS and ":" not in self.weight_gradient:
            raise unknown_name("weight gradient", self.weight_gradient, (*WEIGHT_GRADIENTS, "package.module:function"))

    @property
    def learns(self) -> bool:
        """Whether something is trained in batches by backprop."""
        return self.predictor or bool(self.predictions) or self.splits


class BatchVariation(Protocol):
    """How a source's work differs from batch to batch. Variants are hashable values that only its cost functions interpret."""

    @property
    def cycle(self) -> int:
        """Batches with true gradients after which the variants repeat."""

    @property
    def predicted(self) -> Hashable:
        """The variant of batches without true gradients."""

    def at(self, number: int) -> Hashable:
        """Return the variant of a batch, counted from 0 over those with true gradients."""


@dataclass(frozen=True)
class BatchSplit:
    """The variant of a batch that a source splits: a `share` of its samples is trained by backprop and also predicted, the rest
    is predicted only.

    The source `predictor` makes the predictions and learns from the share; `variant` is the variant of that source. With
    `selects` the share is chosen by the errors of all samples, so the whole batch is predicted first. Without `predicts` the
    predictions do not affect the gradient: the rest of the batch runs forward only, and nothing is learned.
    """

    share: float
    predictor: str
    variant: Hashable = None
    selects: bool = False
    predicts: bool = True


class _SameWork:
    """Every batch has the variant None: the source's defaults."""

    cycle = 1
    predicted = None

    def at(self, number: int) -> None:
        return None


@dataclass(frozen=True)
class Method:
    """A way to train.

    `builds` names the class of its gradient source; None: plain backprop. `source` is the name of that source in plans, by
    default the method's name. `schedule` is used if the user gives none. If `accelerator` is None, the method's cost on an
    accelerator is not declared. `parallel` names the kinds of parallel runs in which it can be used. `typed` is the class whose
    fields declare its `options`; methods of plug-ins may have `options` only. `plateau` is the factor and the patience (in
    epochs) with which the method's paper lowers the model's learning rate.
    """

    name: str
    description: str
    builds: str | None
    source: str = ""
    schedule: str = "ladder"
    options: tuple[Option, ...] = ()
    accelerator: AcceleratorWork | None = None
    parallel: tuple[str, ...] = ()
    plateau: tuple[float, int] = (0.1, 10)
    typed: type[MethodOptions] | None = None

    def __post_init__(self) -> None:
        if self.typed is not None:
            object.__setattr__(self, "options", self.typed.declared())
        if self.builds is not None and not self.source:
            object.__setattr__(self, "source", self.name)

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of the method's own options, by name."""
        return {option.name: option.default for option in self.options}


def _method_of(source: str) -> str | None:
    """Return the method whose source has this name in plans: users may take the source's name for the method's."""
    return next((method.name for method in _all() if method.source == source), None)


METHODS: Registry[Method] = Registry("method", extensible=True, suggest=_method_of)


def add_method(method: Method) -> Method:
    """Add a method to the table; raise if another method declares one of its options differently."""
    known = method_options()
    for option in method.options:
        other = known.get(option.name)
        if other is not None and (other.kind, other.help) != (option.kind, option.help):
            raise OptionError(
                f"method '{method.name}' has an option '{option.name}', which another method declares differently; "
                "give it another name."
            )
    return METHODS.add(method.name, method)


def method_options() -> dict[str, Option]:
    """Return the options of all methods by name. If methods have different defaults for an option, the first one counts."""
    options: dict[str, Option] = {}
    for name in METHODS:
        for option in METHODS[name].options:
            options.setdefault(option.name, option)
    return options


def methods_with(option: str) -> list[str]:
    """Return the names of the methods that have an option of this name."""
    return [name for name in METHODS if option in METHODS[name].defaults]


def find_method(name: str) -> Method:
    """Return the method of this name. A source class named as `package.module:Class` is imported and added to the table."""
    if ":" in name and name not in METHODS:
        known = next((method for method in _all() if method.builds == name), None)
        return known or add_method(declared(import_reference(name, what="a method of your own", kind="Class"), name))
    return METHODS[name]


def find_source(name: str) -> Method:
    """Return the method whose source is called `name` in plans, or the method of that name."""
    known = next((method for method in _all() if method.source == name), None)
    if known is not None:
        return known
    if ":" in name or name in METHODS:
        return find_method(name)
    raise unknown_name("source", name, [method.source for method in _all() if method.source])


def _all() -> Iterator[Method]:
    return (METHODS[name] for name in METHODS)


def declared(kind: type, name: str) -> Method:
    """Return the method that a class derived from `adagp.Source` declares by its attributes."""
    if not callable(getattr(kind, "produce", None)):
        raise OptionError(f"'{name}' is not a source of gradients: it must be a class derived from adagp.Source.")
    return Method(
        name,
        (kind.__doc__ or name).strip().splitlines()[0].rstrip("."),
        f"{kind.__module__}:{kind.__qualname__}",
        source=name,
        schedule=getattr(kind, "own_schedule", "ladder"),
        options=tuple(getattr(kind, "own_options", ())),
        accelerator=getattr(kind, "accelerator", None),
        parallel=tuple(getattr(kind, "own_parallel", ())),
    )


Kind = TypeVar("Kind", bound=type)


def register_method(name: str) -> Callable[[Kind], Kind]:
    """Return a decorator that adds a class derived from `adagp.Source` to the table of methods under `name`."""

    def register(kind: Kind) -> Kind:
        add_method(declared(kind, name))
        return kind

    return register


def method_option(name: str, kind: type, default: Any, text: str, **more: Any) -> Option:
    """Return an option of a method, listed by the command line under `PANEL`."""
    return Option(name, kind, default, text, panel=PANEL, **more)


def accelerator_work(source: str) -> AcceleratorWork:
    """Return the work that a source causes on an accelerator; raise if its method declares none."""
    method = find_source(source)
    if method.accelerator is None:
        raise OptionError(
            f"method '{method.name}' declares no cost on an accelerator, so it cannot be simulated. "
            f"Declare it: `accelerator = AcceleratorWork(...)` in the class of its source (see adagp.core.methods)."
        )
    return method.accelerator


def default_split(source: str) -> BatchSplit:
    """Return how a source that splits batches splits them if its options have their defaults."""
    method = find_source(source)
    return cast(BatchSplit, batch_variation(method.name, method.defaults).predicted)


def batch_variation(method: str, options: Mapping[str, Any]) -> BatchVariation:
    """Return how a method's work differs from batch to batch, if the method has these options."""
    work = find_method(method).accelerator
    if work is None or not work.variation:
        return _SameWork()
    variation = import_reference(work.variation, what="the variation of a method's work", kind="function")
    return cast(BatchVariation, variation(options))


class Backprop(MethodOptions, method="bp"):
    """Ordinary backpropagation."""


class Skip(MethodOptions, method="skip"):
    """A control: GP batches are not trained on."""


class Momentum(MethodOptions, method="momentum"):
    """A control: zero gradients, the optimizer's momentum continues."""


class Replay(MethodOptions, method="replay"):
    """A control: the last true gradient."""


@dataclass(frozen=True, kw_only=True)
class Average(MethodOptions, method="average"):
    """A control: the mean of the last true gradients."""

    average: Annotated[
        int, declare_option("Number of previous true gradients to average.", low=1, high=1000, parameter="last")
    ] = 4


class Noise(MethodOptions, method="noise"):
    """A control: random gradients with the true gradient's norm."""


for _method in (
    Method(
        "bp", "ordinary backpropagation", None, schedule="bp", parallel=("data", "fsdp", "pipeline"), typed=Backprop
    ),
    Method(
        "skip",
        "control: GP batches are not trained on",
        "adagp.sources.controls:SkipSource",
        accelerator=AcceleratorWork(skips=True, exchange="none"),
        parallel=("data", "fsdp"),
        typed=Skip,
    ),
    Method(
        "momentum",
        "control: zero gradients, the optimizer's momentum continues",
        "adagp.sources.controls:ZeroSource",
        accelerator=AcceleratorWork(exchange="none"),
        parallel=("data", "fsdp"),
        typed=Momentum,
    ),
    Method(
        "replay",
        "control: the last true gradient",
        "adagp.sources.controls:ReplaySource",
        accelerator=AcceleratorWork(remembered=1, exchange="none"),
        parallel=("data", "fsdp"),
        typed=Replay,
    ),
    Method(
        "average",
        "control: the mean of the last true gradients",
        "adagp.sources.controls:AverageSource",
        accelerator=AcceleratorWork(remembered=4, exchange="none"),
        parallel=("data", "fsdp"),
        typed=Average,
    ),
    Method(
        "noise",
        "control: random gradients with the true gradient's norm",
        "adagp.sources.controls:NoiseSource",
        accelerator=AcceleratorWork(exchange="none"),
        parallel=("data", "fsdp"),
        typed=Noise,
    ),
):
    METHODS.add(_method.name, _method)  # not add_method, which reads the table: the papers' methods would come first


@dataclass(frozen=True)
class WeightHookInfo:
    """The declaration of a weight-update hook, which is on if the option named `switch` (None by default) has a value.

    `builds` names the hook's class. Its arguments are the options, by their `parameter`, and `regenerate`, a function that
    draws the run's initial weights again and returns them by parameter name. `parallel` names the kinds of parallel runs in
    which the hook can be used.
    """

    name: str
    builds: str
    switch: str
    options: tuple[Option, ...]
    parallel: tuple[str, ...] = ("data",)

    def is_on(self, values: Mapping[str, Any]) -> bool:
        """Return whether a run with these options uses the hook."""
        return values.get(self.switch) is not None


WEIGHT_UPDATE_HOOKS: Registry[WeightHookInfo] = Registry("weight update hook", extensible=True)


def hooks_in_use(values: Mapping[str, Any]) -> list[WeightHookInfo]:
    """Return the hooks that are on in a run with these options, in the order of the table."""
    return [WEIGHT_UPDATE_HOOKS[name] for name in WEIGHT_UPDATE_HOOKS if WEIGHT_UPDATE_HOOKS[name].is_on(values)]
