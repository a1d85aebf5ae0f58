"""Which option each method gets a value of its own for before the seeds are run, and from which: `--tune lr=0.01,0.1`."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adagp.errors import OptionError, unknown_name
from adagp.program.run.known_options import check_names_and_types, known_options

_FORM = "the form is option=value,value,..., for example lr=0.003,0.01,0.03,0.1"
_NUMBERS = (int, float)


@dataclass(frozen=True)
class Tuning:
    """An option and the values that are tried for each method.

    Each is tried in runs of `seeds` seeds that no compared run has, at equal cost: `batches` of backprop (None: as many as the
    compared runs have), and of each method what fits into their cost. `share` of the training data is held out of these runs,
    and the value that does best on it is picked.
    """

    option: str
    values: tuple[float, ...]
    batches: int | None = None
    seeds: int = 1
    share: float = 0.1

    def check(self, options: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Refuse a choice that is none, and an option that somebody has already chosen."""
        if len(self.values) < 2 or len(set(self.values)) < len(self.values):
            raise OptionError(f"--tune {self.option} needs two values or more, each named once; {_FORM}.")
        for value in self.values:
            known_options()[self.option].check(value)
        if self.batches is not None and self.batches < 1:
            raise OptionError(f"--tune-batches is {self.batches}; it must be 1 or more.")
        if self.seeds < 1:
            raise OptionError(f"--tune-seeds is {self.seeds}; it must be 1 or more.")
        fixed = [name for name, own in settings.items() if self.option in own]
        if self.option in options or fixed:
            where = f"--set {fixed[0]}.{self.option}" if fixed else f"--{self.option.replace('_', '-')}"
            raise OptionError(f"--tune chooses {self.option}, and {where} gives it; leave one of them out.")


def read_tuning(text: str, batches: int | None = None, seeds: int = 1) -> Tuning:
    """Return what `--tune` asks for."""
    name, equals, rest = (part.strip() for part in text.partition("="))
    option = name.replace("-", "_")
    if not (equals and option and rest):
        raise OptionError(f"cannot read --tune '{text}'; {_FORM}.")
    known = {key: one for key, one in known_options().items() if one.compared == "own" and one.kind in _NUMBERS}
    if option not in known:
        raise unknown_name("option in --tune", option, known)
    values = tuple(_number(text, word) for word in rest.split(","))
    for value in values:
        check_names_and_types({option: value}, "--tune")
    return Tuning(option, values, batches, seeds)


def _number(text: str, word: str) -> float:
    try:
        found = tomllib.loads(f"value = {word.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        found = None
    if type(found) not in _NUMBERS:
        raise OptionError(f"cannot read '{word.strip()}' in --tune '{text}' as a number; {_FORM}.")
    number: float = found
    return number
