"""A method with its options as an object, for `adagp.attach(method=...)`.

A method declares its options as the fields of a dataclass derived from `MethodOptions`. Type checkers know that class; the
table of methods, the command line and config files use the same fields.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from adagp.core.options import Option, declared_options, option

PANEL = "Options of methods"

MethodName = Literal[
    "bp",
    "skip",
    "momentum",
    "replay",
    "average",
    "noise",
    "adagp",
    "shuffled",
    "predicted_labels",
    "remap",
    "remap_program",
    "zero",
    "random",
    "topk",
    "dni",
    "dni_decoupled",
    "dni_labels",
    "feedback",
    "feedback_replay",
    "fa",
    "dfa",
    "control",
]
"""The methods that come with adagp, for type checkers. The table of methods is `adagp.METHODS`."""


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """A method and its options. Each built-in method has a class of its own: `adagp.Feedback(features=32)`."""

    name: ClassVar[str] = ""
    """The method's name in `adagp.METHODS`."""

    def __init_subclass__(cls, method: str = "") -> None:
        super().__init_subclass__()
        cls.name = method

    def __post_init__(self) -> None:
        for declared in self.declared():
            value = getattr(self, declared.name)
            declared.check_type(value, type(self).__name__)
            declared.check(value, declared.name)

    @classmethod
    def declared(cls) -> tuple[Option, ...]:
        """Return the options that the fields declare."""
        return tuple(declared_options(cls).values())

    @property
    def values(self) -> dict[str, Any]:
        """The options by name."""
        return asdict(self)


class NamedMethod:
    """A method by a name that type checkers do not know: that of a plug-in, `package.module:Class`, or a variable.

    `options` are the method's own: `adagp.NamedMethod("sign_replay", magnitude=0.5)`.
    """

    def __init__(self, name: str, **options: Any) -> None:
        self.name = name
        self.values: Mapping[str, Any] = options

    def __repr__(self) -> str:
        written = [repr(self.name), *(f"{name}={value!r}" for name, value in self.values.items())]
        return f"NamedMethod({', '.join(written)})"


declare_option = partial(option, panel=PANEL)
"""`option` for a field of a `MethodOptions`; the command line lists it under `PANEL`."""


PredictorScheduler = Literal["multistep", "plateau", "none"]
PREDICTOR_SCHEDULER = declare_option("Learning rate scheduler of the predictor: multistep, plateau or none.")


@dataclass(frozen=True, kw_only=True)
class PredictorOptions(MethodOptions):
    """The options of a method whose predictor is trained with Adam."""

    predictor_lr: Annotated[float, declare_option("Learning rate of the predictor.", above=0)] = 1e-4
    predictor_scheduler: Annotated[PredictorScheduler, PREDICTOR_SCHEDULER] = "multistep"
    normalize: Annotated[bool, declare_option("Normalise the predictor's targets by a running scale of each site.")] = (
        False
    )
    hold_norm: Annotated[
        bool, declare_option("Rescale predictions to the running mean norm of the true gradients.")
    ] = False


LABEL_CLASSES = declare_option(
    "Number of classes of the labels.", unset="the last layer's", low=1, high=1_000_000, parameter="classes"
)
"""The option of methods that also see the labels."""
