"""The one table of training methods. No torch here: a source of gradients is named by text and imported when it is built.

A method is one declaration: its name and what it does; the source of the gradients of its GP batches, as
`package.module:Class`; the options of its own; the schedule that goes with it; what it makes an accelerator do; and in
which parallel runs it is known to be the same run.

A method of your own is a class derived from `adagp.Source`, which may declare the same as class attributes (`own_options`,
`own_schedule`, `accelerator`). `--method package.module:Class` finds it; `register_method("name")` gives it a short name.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from adagp.errors import OptionError, unknown_name
from adagp.options import Option
from adagp.references import import_reference
from adagp.registry import Registry

PANEL = "Options of methods"
WEIGHT_GRADIENTS = ("none", "top_one", "feedback", "exact")
PREDICTOR_SCHEDULERS = ("multistep", "plateau", "none")


@dataclass(frozen=True)
class AcceleratorWork:
    """What a source makes an accelerator do for a site, beyond the site's forward pass.

    In the batches that it serves: `weight_gradient` names the product that gives the weight's gradient (`none`; `top_one`,
    from the positions of the largest output gradients; `feedback`, from the output's error; `exact`), `input_gradients` says
    whether it needs the chain of input gradients down to the site, and `skips` that the batch is not run at all.
    `remembered` are the gradients of earlier batches that it reads. `predictor` says that the shared predictor runs for each
    such site, and is trained in batches by backprop; `synthetic`, that a small network of the site's own does, from the site's
    output to the gradient there. The fit of `feedback` is continued in batches by backprop.
    """

    weight_gradient: str = "none"
    input_gradients: bool = False
    predictor: bool = False
    skips: bool = False
    synthetic: bool = False
    remembered: int = 0

    def __post_init__(self) -> None:
        if self.weight_gradient not in WEIGHT_GRADIENTS:
            raise unknown_name("weight gradient", self.weight_gradient, WEIGHT_GRADIENTS)

    @property
    def learns(self) -> bool:
        """Tell whether something is trained in batches by backprop."""
        return self.predictor or self.synthetic or self.weight_gradient == "feedback"


@dataclass(frozen=True)
class Method:
    """A way to train. `builds` names the class of its source, None for plain backprop; plans call that source `source`,
    by the method's own name unless another is given.

    `schedule` is used where none is given. `accelerator` of None means that nobody has said what it costs there. `parallel`
    names the kinds of parallel runs it may take part in. `plateau` is the factor and the patience (in epochs) with which the
    paper that it comes from lowers the model's learning rate.
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

    def __post_init__(self) -> None:
        if self.builds is not None and not self.source:
            object.__setattr__(self, "source", self.name)

    @property
    def defaults(self) -> dict[str, Any]:
        """Its own options at their defaults."""
        return {option.name: option.default for option in self.options}


METHODS: Registry[Method] = Registry("method")


def add_method(method: Method) -> Method:
    """Enter a method into the table; refuse an option that another method has as another thing."""
    known = method_options()
    for option in method.options:
        other = known.get(option.name)
        if other is not None and (other.kind, other.help) != (option.kind, option.help):
            raise OptionError(
                f"method '{method.name}' has an option '{option.name}', which means something else in another method; "
                "give it another name."
            )
    return METHODS.add(method.name, method)


def method_options() -> dict[str, Option]:
    """Return the options of all methods by name; where methods differ in the default, the first one's."""
    found: dict[str, Option] = {}
    for name in METHODS:
        for option in METHODS[name].options:
            found.setdefault(option.name, option)
    return found


def methods_with(option: str) -> list[str]:
    """Return the names of the methods that have an option of this name."""
    return [name for name in METHODS if option in METHODS[name].defaults]


def find_method(name: str) -> Method:
    """Return the method of this name; one named `package.module:Class` is imported and entered into the table."""
    if ":" in name and name not in METHODS:
        known = next((method for method in _all() if method.builds == name), None)
        return known or add_method(declared(import_reference(name, what="a method of your own", kind="Class"), name))
    return METHODS[name]


def find_source(name: str) -> Method:
    """Return the method whose source plans call `name`, or the method of that name."""
    found = next((method for method in _all() if method.source == name), None)
    if found is not None:
        return found
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
    )


Kind = TypeVar("Kind", bound=type)


def register_method(name: str) -> Callable[[Kind], Kind]:
    """Return a decorator that enters a class derived from `adagp.Source` into the table of methods."""

    def register(kind: Kind) -> Kind:
        add_method(declared(kind, name))
        return kind

    return register


def accelerator_work(source: str) -> AcceleratorWork:
    """Return what a source makes an accelerator do; refuse one that does not say so."""
    method = find_source(source)
    if method.accelerator is None:
        raise OptionError(
            f"method '{method.name}' does not say what its batches cost on an accelerator, so it cannot be simulated. "
            f"Declare it: `accelerator = AcceleratorWork(...)` in the class of its source (see adagp.methods)."
        )
    return method.accelerator


def _option(name: str, kind: type, default: Any, text: str, **more: Any) -> Option:
    return Option(name, kind, default, text, panel=PANEL, **more)


def _predictor(scheduler: str = "multistep") -> tuple[Option, ...]:
    """Return the options of a source whose predictor learns by Adam."""
    return (
        _option("predictor_lr", float, 1e-4, "Learning rate of the predictor.", above=0),
        _option(
            "predictor_scheduler",
            str,
            scheduler,
            "How the predictor's learning rate falls: multistep, plateau or none.",
            choices=PREDICTOR_SCHEDULERS,
        ),
        _option("normalize", bool, False, "Divide targets by a running scale of each site."),
        _option("hold_norm", bool, False, "Give predictions the true gradient's running norm."),
    )


_PARTS = _option(
    "predictor_parts",
    int,
    1,
    "Learn from one of so many parts of each layer's rows in a BP batch.",
    low=1,
    parameter="parts",
)
_CLASSES = _option(
    "label_classes",
    int,
    None,
    "Classes of the labels; by default the outputs of the last layer.",
    optional=True,
    unset="the last layer's",
    low=1,
    high=1_000_000,
    parameter="classes",
)
_FEATURES = _option("features", int, 64, "Numbers of the output's error that feedback uses at most.", low=1, high=8192)
_FEEDBACK = (
    _FEATURES,
    _option("learn_every", int, 1, "BP batches of which one teaches feedback.", low=1),
    _option("correct_every", int, 1, "BP batches of which one shows what feedback's predictions lack.", low=1),
    _option(
        "correction",
        float,
        0.3,
        "By how much feedback's running mean of what its predictions lack moves in a BP batch; 0: there is none.",
        low=0,
        high=1,
        allowed="0 (none) to 1",
    ),
)
_SHARED = AcceleratorWork(predictor=True)
_FREE = AcceleratorWork()
_SYNTHETIC = AcceleratorWork("exact", synthetic=True)
_SOURCES = "adagp.sources."
_SHARED_PREDICTOR: Mapping[str, Any] = {"options": (*_predictor(), _PARTS), "accelerator": _SHARED}

for _method in (
    Method("bp", "ordinary backpropagation", None, schedule="bp", parallel=("data", "fsdp", "pipeline")),
    Method(
        "adagp",
        "ADA-GP: one shared predictor, phases by batches",
        _SOURCES + "predicted:PredictedSource",
        source="predicted",
        parallel=("data", "fsdp", "pipeline"),
        **_SHARED_PREDICTOR,
    ),
    Method(
        "remap",
        "tensor re-mapping: a fixed-size prediction, phases by epochs",
        _SOURCES + "remapped:RemappedSource",
        source="remapped",
        schedule="epochs:3:1",
        options=(
            *_predictor("plateau"),
            _option(
                "remap_outputs",
                int,
                10_000,
                "Numbers that remap predicts per layer.",
                low=1,
                high=1_000_000,
                parameter="outputs",
            ),
        ),
        accelerator=_SHARED,
        parallel=("data",),
        plateau=(0.5, 3),
    ),
    Method(
        "zero",
        "approximation: weight gradients of some layers are 0",
        _SOURCES + "constant:ZeroSource",
        schedule="approx:2",
        accelerator=_FREE,
        parallel=("data", "fsdp", "pipeline"),
    ),
    Method(
        "random",
        "approximation: weight gradients of some layers are random",
        _SOURCES + "random:RandomSource",
        schedule="approx:2",
        accelerator=_FREE,
        parallel=("data", "fsdp"),
    ),
    Method(
        "topk",
        "approximation: from the positions of largest output gradient",
        _SOURCES + "topk:TopKSource",
        schedule="approx:2",
        options=(
            _option("topk", int, 1, "Positions that topk keeps.", low=1, parameter="k"),
            _option(
                "published_scale", bool, False, "Divide topk by the batch size, as printed.", parameter="published"
            ),
        ),
        accelerator=AcceleratorWork("top_one", input_gradients=True),
    ),
    Method(
        "skip",
        "control: GP batches are not trained on",
        _SOURCES + "constant:SkipSource",
        accelerator=AcceleratorWork(skips=True),
        parallel=("data", "fsdp"),
    ),
    Method(
        "momentum",
        "control: zero gradients, the optimizer's momentum continues",
        _SOURCES + "constant:ZeroSource",
        accelerator=_FREE,
        parallel=("data", "fsdp"),
    ),
    Method(
        "replay",
        "control: the last true gradient",
        _SOURCES + "remembered:ReplaySource",
        accelerator=AcceleratorWork(remembered=1),
        parallel=("data", "fsdp"),
    ),
    Method(
        "average",
        "control: the mean of the last true gradients",
        _SOURCES + "remembered:AverageSource",
        options=(
            _option("average", int, 4, "True gradients in the mean of average.", low=1, high=1000, parameter="last"),
        ),
        accelerator=AcceleratorWork(remembered=4),
        parallel=("data", "fsdp"),
    ),
    Method(
        "noise",
        "control: random gradients with the true gradient's norm",
        _SOURCES + "random:NoiseSource",
        accelerator=_FREE,
        parallel=("data", "fsdp"),
    ),
    Method(
        "shuffled",
        "control: ADA-GP's predictor with its input shuffled",
        _SOURCES + "variants:ShuffledSource",
        **_SHARED_PREDICTOR,
    ),
    Method(
        "predicted_labels",
        "ADA-GP's predictor, which also sees the labels",
        _SOURCES + "variants:LabelledSource",
        options=(*_predictor(), _PARTS, _CLASSES),
        accelerator=_SHARED,
    ),
    Method(
        "dni",
        "synthetic gradients: one small network per layer",
        _SOURCES + "synthetic:SyntheticSource",
        options=_predictor(),
        accelerator=_SYNTHETIC,
    ),
    Method(
        "dni_labels",
        "synthetic gradients that also see the labels",
        _SOURCES + "synthetic:LabelledSyntheticSource",
        options=(*_predictor(), _CLASSES),
        accelerator=_SYNTHETIC,
    ),
    Method(
        "feedback",
        "output gradients regressed on the output's error",
        _SOURCES + "feedback:FeedbackSource",
        schedule="1:1",
        options=_FEEDBACK,
        accelerator=AcceleratorWork("feedback"),
        parallel=("data", "fsdp", "pipeline"),
    ),
    Method(
        "feedback_replay",
        "the mean of feedback and the last true gradient",
        _SOURCES + "mixed:FeedbackReplaySource",
        schedule="1:1",
        options=_FEEDBACK,
        accelerator=AcceleratorWork("feedback", remembered=1),
    ),
):
    add_method(_method)
