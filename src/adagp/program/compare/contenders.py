"""The methods to compare, from their text form to configurations of runs.

skip                  a method with its own schedule, or the one that --ratio gives to all
feedback@2:1          a method with a schedule of its own
quick:feedback@2:1    the same under a name of one's own, which --set quick.features=4 can refer to
my.module:MySource    a method of one's own, with or without a name and a schedule
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adagp.core.methods import METHODS, find_method
from adagp.errors import OptionError, unknown_name
from adagp.program.run.config import TrainConfig
from adagp.program.run.known_options import check_names_and_types, known_options

BACKPROP = "bp"
SCHEDULE = ("ratio", "warmup", "warmup_batches")
DEFAULTS: dict[str, Any] = {"lr_scheduler": "cosine", "metrics_every": 0}
"""What suits a comparison: a learning rate that falls to nothing, and no time spent on a run's own quality figures."""
_HEAD = re.compile(r"(?:(?P<label>[\w+-]+)\s*:\s*)??(?P<method>[\w.]+:[A-Z]\w*|[^:]+)")
"""A method, under a label or not; one named as package.module:Class is known by its capital letter."""
COMPARED_EPOCHS = 10
"""The length of runs at equal batches where none is given."""


@dataclass(frozen=True)
class Entry:
    """One contender: a method under a name, with a schedule of its own or none."""

    name: str
    method: str
    ratio: str | None = None

    @property
    def folder(self) -> str:
        """The name as part of a file name."""
        return re.sub(r"[^\w+-]+", "-", self.name)


def read_entries(text: str) -> tuple[Entry, ...]:
    """Return the contenders that `text` names, separated by commas; backprop must be among them."""
    entries = tuple(_read_entry(part) for part in _split(text))
    for place, entry in enumerate(entries):
        for other in entries[:place]:
            if entry.folder == other.folder:
                raise OptionError(
                    f"--methods names '{entry.name}' twice; call one of them something else, such as "
                    f"other:{entry.method}."
                    if entry.name == other.name
                    else f"--methods: '{other.name}' and '{entry.name}' would share a folder; give one a name of its own, "
                    f"such as other:{entry.method}@{entry.ratio}."
                )
    if BACKPROP not in (entry.method for entry in entries):
        raise OptionError("--methods must name bp, which the others are compared with.")
    return entries


def _split(text: str) -> list[str]:
    """Split at commas, but not inside a schedule: rungs begin with a digit, and clauses may list sites."""
    parts: list[str] = []
    for part in (one.strip() for one in text.split(",")):
        before = parts[-1].partition("@")[2] if parts else ""
        if before and (
            part[:1].isdigit() or ("=" in before and part.partition("@")[0].rpartition(":")[2] not in METHODS)
        ):
            parts[-1] += f",{part}"
        elif part:
            parts.append(part)
    return parts


def _read_entry(text: str) -> Entry:
    head, at, ratio = (part.strip() for part in text.partition("@"))
    found = _HEAD.fullmatch(head)
    if found is None or (at and not ratio):
        raise OptionError(
            f"cannot read '{text}' in --methods; the form is METHOD, METHOD@SCHEDULE or NAME:METHOD@SCHEDULE, "
            "NAME in letters, digits, _, + and -."
        )
    label, method = found["label"], found["method"]
    find_method(method)  # answers an unknown one
    return Entry(label or f"{method}{at}{ratio}", method, ratio or None)


def read_settings(texts: Sequence[str], entries: Sequence[Entry]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the options of `--set option=value` for all, and of `--set name.option=value` by name of a method or entry."""
    common: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        who, _, option = key.rpartition(".")
        option = option.replace("-", "_")
        if not (equals and option and value):
            raise OptionError(f"cannot read --set '{text}'; the form is option=value or method.option=value.")
        check_names_and_types({option: (parsed := _value(value))}, "--set")
        if not who:
            common[option] = parsed
            continue
        known = {name for entry in entries for name in (entry.name, entry.method)}
        if who not in known:
            raise unknown_name("method in --set", who, known)
        if known_options()[option].compared != "own":
            raise OptionError(f"--set {key}: this option is the same for all methods; give it without '{who}.'.")
        own.setdefault(who, {})[option] = parsed
    return common, own


def _value(text: str) -> Any:
    """Return a number or truth value as such, everything else as text."""
    try:
        found = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return found if isinstance(found, bool | int | float | str) else text


def refuse_fixed(options: Mapping[str, Any]) -> None:
    """Refuse options that a comparison decides itself."""
    for name in options:
        if known_options()[name].compared == "fixed":
            raise OptionError(f"a comparison takes no option '{name}': it is not the user's to choose there.")


def entry_config(
    entry: Entry, options: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]], batches: int, seed: int
) -> TrainConfig:
    """Return the configuration of one run of `batches` batches.

    `options` are common to all; `settings` of the method, then of the entry, go before them. Backprop has no schedule.
    """
    values = {**DEFAULTS, **options}
    for own in (settings.get(entry.method, {}), {} if entry.ratio is None else {"ratio": entry.ratio}):
        values = _overlaid(values, own)
    if entry.name != entry.method:
        values = _overlaid(values, settings.get(entry.name, {}))
    if entry.method == BACKPROP and entry.ratio is None:
        values = {name: value for name, value in values.items() if name not in SCHEDULE}
    values |= {"method": entry.method, "batches": batches, "seed": seed}
    values.pop("epochs", None)
    return TrainConfig.from_dict(values, "comparison", foreign="drop")


def _overlaid(values: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` with `own` over them; a warm-up in batches takes the place of one in epochs, and the other way."""
    for one, other in (("warmup", "warmup_batches"), ("warmup_batches", "warmup")):
        if one in own:
            values = {name: value for name, value in values.items() if name != other}
    return {**values, **own}
