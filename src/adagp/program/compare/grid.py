"""The options that `--tune` tries for each method before the compared runs, and their values: a grid.

lr=0.01,0.03                          one option
lr=0.01,0.03,batch_size=32,64,128     all combinations of several; a part with `=` begins the next option
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from adagp.errors import OptionError, unknown_name
from adagp.program.compare.methods import parse_value
from adagp.program.run.config import CONFIG_OPTIONS, TrainConfig, check_names_and_types, known_options

BATCH_SIZE = "batch_size"
_FORM = "the form is option=value,value,..., for example lr=0.003,0.01,0.03,0.1 or lr=0.01,0.03,batch_size=32,64"
_NUMBERS = (int, float)
Values = Mapping[str, float]
"""A point of the grid: a value of each option."""


@dataclass(frozen=True)
class Tuning:
    """The options that are tuned for each method, and the values tried.

    The tuning runs have `seeds` seeds of their own and equal cost: that of `batches` batches of backprop (None: as many as
    the compared runs). The values with the best result on a held-out `share` of the training data are picked.
    """

    options: Mapping[str, tuple[float, ...]]
    batches: int | None = None
    seeds: int = 1
    share: float = 0.1

    def check(self, options: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Check the values, and that no option is set elsewhere; a common batch size is the unit of lengths."""
        for option, values in self.options.items():
            self._check_values(option, values)
            flags = [f"--set {name}.{option}" for name, own in settings.items() if option in own]
            if option in options and option != BATCH_SIZE:
                flags.append(f"--{option.replace('_', '-')}")
            if flags:
                raise OptionError(f"--tune chooses {option}, but {flags[0]} sets it; remove one of them.")
        for name, number in (("batches", self.batches), ("seeds", self.seeds)):
            if number is not None and number < 1:
                raise OptionError(f"--tune-{name} is {number}; it must be 1 or more.")

    def _check_values(self, option: str, values: tuple[float, ...]) -> None:
        if len(values) < 2 or len(set(values)) < len(values):
            raise OptionError(f"--tune {option} needs two values or more, each named once; {_FORM}.")
        for value in values:
            known_options()[option].check(value)

    def grid(self, config: TrainConfig) -> list[Values]:
        """Return all combinations of the options that a method has; none if it has none of them."""
        names = [name for name in self.options if name in CONFIG_OPTIONS or name in config.own_options]
        return list(self._combinations(names)) if names else []

    def _combinations(self, names: list[str]) -> Iterator[Values]:
        for values in product(*(self.options[name] for name in names)):
            yield dict(zip(names, values, strict=True))

    def at_the_edge(self, picked: Values) -> list[str]:
        """Return the options whose picked value is the smallest or largest one tried."""
        return [name for name, value in picked.items() if value in (min(self.options[name]), max(self.options[name]))]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form; that of a single option is the form of earlier versions."""
        rest = {"batches": self.batches, "seeds": self.seeds, "share": self.share}
        if len(self.options) == 1:
            ((option, values),) = self.options.items()
            return {"option": option, "values": list(values), **rest}
        return {"options": {option: list(values) for option, values in self.options.items()}, **rest}


def grid_text(values: Values) -> str:
    """Return a point of the grid in one line, for messages and tables."""
    return ", ".join(f"{name} {value:g}" for name, value in values.items())


def read_tuning(text: str, batches: int | None = None, seeds: int = 1) -> Tuning:
    """Parse the text of `--tune`."""
    options: dict[str, list[float]] = {}
    for word in map(str.strip, text.split(",")):
        name, equals, value = (part.strip() for part in word.partition("="))
        if equals:
            option = _read_option(name)
            if option in options:
                raise OptionError(f"--tune '{text}' names {option} twice; {_FORM}.")
            options[option] = []
        if not options or (equals and not value):
            raise OptionError(f"cannot read --tune '{text}'; {_FORM}.")
        number = _read_number(text, value if equals else name)
        check_names_and_types({option: number}, "--tune")
        options[option].append(number)
    return Tuning({name: tuple(values) for name, values in options.items()}, batches, seeds)


def _read_option(name: str) -> str:
    option = name.replace("-", "_")
    tunable = [key for key, known in known_options().items() if known.compared == "own" and known.kind in _NUMBERS]
    if option not in tunable:
        raise unknown_name("option in --tune", option, tunable)
    return option


def _read_number(text: str, word: str) -> float:
    number: float = parse_value(word)
    if type(number) not in _NUMBERS:
        raise OptionError(f"cannot read '{word}' in --tune '{text}' as a number; {_FORM}.")
    return number


def upgraded_tuning(tuned: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """Return the outcome of a tuning in the present form; earlier versions, with a single option, had another."""
    if "option" not in tuned:
        return dict(tuned)
    option, values = tuned["option"], tuned["values"]
    rest = {name: value for name, value in tuned.items() if name not in ("option", "values")}
    methods = {
        name: {
            "trials": [
                {"values": {option: value}, "batches": method["batches"], metric: method[metric][f"{value:g}"]}
                for value in values
            ],
            "picked": {option: method["picked"]},
            "at_the_edge": [option] if method["at_the_edge"] else [],
        }
        for name, method in tuned["methods"].items()
    }
    return {"options": {option: values}, **rest, "methods": methods}
