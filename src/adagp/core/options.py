"""Options: one declaration each, with type, default, range, choices and help, for files and the command line alike.

A field of a dataclass, or a parameter of a command, declares its option by its annotation:
`devices: Annotated[int, option("Devices.", low=1, high=4096)] = 4`. Name, type and default are those of the field.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf, isfinite
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from adagp.errors import OptionError, unknown_name

MOST = 10**9
"""The largest whole number that an option without `high` may have."""
LARGEST = 3e38
"""The largest magnitude of a float without `high`: it must fit single precision, in which models compute."""

Choices = Sequence[str] | Callable[[], Iterable[str]]
"""Allowed names, or a function that returns them if they are known only after plug-ins are loaded."""


@dataclass(frozen=True)
class Option:
    """A setting of a run or a command.

    `kind` is its type; `optional` also allows None, which `unset` describes in the help. The value must be at least `low` or
    above `above`, below `below` or at most `high`; `allowed` describes the range in words. It must be finite, unless `infinite`
    allows infinity. `also` is a further check, which raises. `panel` is the heading under which the help lists the option;
    `flags` replace the flag that is derived from its name. `compared` is its role in a comparison of methods: `common` to all
    of them, `own` (each may have its value), or `fixed` by the comparison. `parameter` is the keyword argument with which the
    value is passed to a source, a model's builder or a hook, if that is not the option's name.
    """

    name: str
    kind: type
    default: Any
    help: str
    optional: bool = False
    unset: str = "none"
    low: float | None = None
    above: float | None = None
    below: float | None = None
    high: float | None = None
    allowed: str = ""
    infinite: bool = False
    choices: Choices | None = None
    panel: str = ""
    compared: str = "own"
    parameter: str = ""
    flags: tuple[str, ...] = ()
    also: Callable[[Any], None] | None = None

    @property
    def flag(self) -> str:
        """The option as it is written on a command line."""
        return self.flags[0] if self.flags else "--" + self.name.replace("_", "-")

    def words(self, value: Any) -> list[str]:
        """Return the command-line arguments that set the option to this value."""
        if self.kind is bool:
            return [self.flag if value else f"--no-{self.flag[2:]}"]
        return [self.flag, str(value)]

    def check_type(self, value: Any, origin: str) -> None:
        """Raise if the value has another type; a whole number is accepted as a float. The error begins with `origin`."""
        whole = self.kind is float and type(value) is int
        if not (type(value) is self.kind or whole or (self.optional and value is None)):
            words = self.kind.__name__ + (" or nothing" if self.optional else "")
            raise OptionError(f"{origin}: option '{self.name}' is {value!r}; it must be of type {words}.")

    def check(self, value: Any, written: str = "") -> None:
        """Raise if the value is not among the choices, not finite, or out of range.

        `written` is the option's name in the error, by default its flag.
        """
        if value is None:
            return
        if self.also is not None:
            self.also(value)
        self._check_choice(value)
        if not (self.infinite and value == inf):
            self._check_range(value, written or self.flag)

    def _check_range(self, value: Any, written: str) -> None:
        if isinstance(value, float) and not isfinite(value):
            raise OptionError(f"{written} is {value}; it must be a finite number.")
        for holds, words in self._bounds(value):
            if not holds:
                raise OptionError(f"{written} is {value}; it must be {self.allowed or words}.")

    def _check_choice(self, value: Any) -> None:
        if self.choices is not None:
            names = list(self.choices() if callable(self.choices) else self.choices)
            if value not in names:
                raise unknown_name(self.name.replace("_", " "), value, names)

    def _bounds(self, value: Any) -> Iterable[tuple[bool, str]]:
        """Yield for each bound whether `value` is within it, and the bound in words."""
        if self.low is not None:
            yield value >= self.low, f"{self.low:g} or more"
        if self.above is not None:
            yield value > self.above, f"above {self.above:g}"
        if self.below is not None:
            yield value < self.below, f"below {self.below:g}"
        if self.high is not None:
            yield value <= self.high, f"at most {self.high}"
        elif self.kind is int:
            yield value <= MOST, f"at most {MOST:,}"
        elif self.kind is float:
            yield abs(value) <= LARGEST, f"at most {LARGEST:g}, so that it fits single precision"


def option(text: str, *flags: str, **details: Any) -> Option:
    """Return an `Option` to annotate a field or parameter with: help text, flags, and further fields in `details`."""
    return Option("", object, None, text, flags=flags, **details)


def switch(flag: str, text: str, **details: Any) -> Option:
    """Return an `Option` that is off unless its flag is given."""
    return option(text, flag, unset="off", **details)


def annotated_option(name: str, annotation: Any, default: Any) -> Option | None:
    """Return the option that an annotation declares; None if it declares none."""
    if get_origin(annotation) is not Annotated:
        return None
    kind, *details = get_args(annotation)
    kinds = get_args(kind) if type(None) in get_args(kind) else (kind,)
    for detail in details:
        if isinstance(detail, Option):
            if get_origin(kind) is Literal:
                return replace(detail, name=name, kind=str, default=default, choices=get_args(kind))
            return replace(detail, name=name, kind=kinds[0], default=default, optional=type(None) in kinds)
    return None


def declared_options(settings: type) -> dict[str, Option]:
    """Return the options that the fields of a dataclass declare, by name."""
    hints = get_type_hints(settings, include_extras=True)
    options = (annotated_option(field.name, hints[field.name], field.default) for field in fields(settings))
    return {option.name: option for option in options if option is not None}


def keyword_options(options: Iterable[Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `options` as keyword arguments; an option that is not in `values` has its default."""
    return {option.parameter or option.name: values.get(option.name, option.default) for option in options}
