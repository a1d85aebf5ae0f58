"""The methods to compare: from the text of --methods and --set to configurations and plans of runs.

skip                  a method with its own schedule, or the one that --ratio gives to all
feedback@2:1          a method with a schedule of its own
quick:feedback@2:1    the same under another name, for --set quick.features=4
my.module:MySource    a class of the user, with or without a name and a schedule
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from adagp.core.methods import DEFAULT_METHOD, METHODS, find_method
from adagp.core.plan import BACKPROP_ALL, Plan, Step, predicted_plan
from adagp.errors import OptionError, unknown_name
from adagp.program.run.config import TrainConfig, check_names_and_types, known_options
from adagp.program.run.record import candidate_folder
from adagp.schedules import Layout, Schedule

BACKPROP = "bp"
SCHEDULE = ("ratio", "warmup", "warmup_batches")
DEFAULTS: dict[str, Any] = {"lr_scheduler": "cosine", "metrics_every": 0}
"""Defaults that differ from `adagp train`: the learning rate falls to 0, and no time is spent on quality metrics."""
_HEAD = re.compile(r"(?:(?P<label>[\w+-]+)\s*:\s*)??(?P<method>[\w.]+:[A-Z]\w*|[^:]+)")
"""A method with or without a label; the capital letter of a class distinguishes package.module:Class from label:method."""
COMPARED_METHODS = f"{BACKPROP},{DEFAULT_METHOD}@1:1,skip@1:1"
"""Default methods: prediction, and leaving the same batches out, against backprop."""
COMPARED_EPOCHS = 10
"""Default length of the runs at equal batches."""


@dataclass(frozen=True)
class Candidate:
    """A method to compare under a name; `ratio` is its own schedule, None for the common one."""

    name: str
    method: str
    ratio: str | None = None

    @property
    def folder(self) -> str:
        """The name as part of a file name."""
        return candidate_folder(self.name)


def read_candidates(text: str) -> tuple[Candidate, ...]:
    """Return the candidates that `text` lists, separated by commas; one must be backprop."""
    candidates = tuple(_read_candidate(part) for part in _split(text))
    for index, candidate in enumerate(candidates):
        for other in candidates[:index]:
            if candidate.folder == other.folder:
                raise OptionError(
                    f"--methods names '{candidate.name}' twice; rename one of them, for example "
                    f"other:{candidate.method}."
                    if candidate.name == other.name
                    else f"--methods: '{other.name}' and '{candidate.name}' would share a folder; rename one of them, "
                    f"for example other:{candidate.method}@{candidate.ratio}."
                )
    if BACKPROP not in (candidate.method for candidate in candidates):
        raise OptionError("--methods must name bp, which the others are compared with.")
    return candidates


def _split(text: str) -> list[str]:
    """Split at commas, but not inside a schedule: rungs begin with a digit, and clauses may list sites."""
    parts: list[str] = []
    for part in map(str.strip, text.split(",")):
        before = parts[-1].partition("@")[2] if parts else ""
        if before and (
            part[:1].isdigit() or ("=" in before and part.partition("@")[0].rpartition(":")[2] not in METHODS)
        ):
            parts[-1] += f",{part}"
        elif part:
            parts.append(part)
    return parts


def _read_candidate(text: str) -> Candidate:
    head, at, ratio = (part.strip() for part in text.partition("@"))
    match = _HEAD.fullmatch(head)
    if match is None or (at and not ratio):
        raise OptionError(
            f"cannot read '{text}' in --methods; the form is METHOD, METHOD@SCHEDULE or NAME:METHOD@SCHEDULE, "
            "NAME in letters, digits, _, + and -."
        )
    label, method = match["label"], match["method"]
    find_method(method)  # raises for an unknown name
    return Candidate(label or f"{method}{at}{ratio}", method, ratio or None)


def read_settings(
    texts: Sequence[str], candidates: Sequence[Candidate]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the common options of `--set option=value`, and those of `--set name.option=value` by method or candidate."""
    common: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, _, value = (part.strip() for part in text.partition("="))
        who, _, option = key.rpartition(".")
        option = option.replace("-", "_")
        if not (option and value):
            raise OptionError(f"cannot read --set '{text}'; the form is option=value or method.option=value.")
        check_names_and_types({option: (parsed := parse_value(value))}, "--set")
        if not who:
            common[option] = parsed
            continue
        known = {name for candidate in candidates for name in (candidate.name, candidate.method)}
        if who not in known:
            raise unknown_name("method in --set", who, known)
        if known_options()[option].compared != "own":
            raise OptionError(f"--set {key}: this option is the same for all methods; give it without '{who}.'.")
        own.setdefault(who, {})[option] = parsed
    return common, own


def parse_value(text: str) -> Any:
    """Parse a number, a boolean or a quoted string; return anything else unchanged."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float | str) else text


def check_user_options(options: Mapping[str, Any]) -> None:
    """Raise if an option is set that the comparison itself chooses for each run."""
    for name in options:
        if known_options()[name].compared == "fixed":
            raise OptionError(f"option '{name}' cannot be set here: the comparison chooses it for each run.")


def candidate_config(
    candidate: Candidate, options: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]], batches: int, seed: int
) -> TrainConfig:
    """Return the configuration of one run.

    Settings of the candidate override those of its method, which override the common `options`. Backprop has no schedule.
    """
    values = {**DEFAULTS, **options}
    for own in (settings.get(candidate.method, {}), {} if candidate.ratio is None else {"ratio": candidate.ratio}):
        values = _overlaid(values, own)
    if candidate.name != candidate.method:
        values = _overlaid(values, settings.get(candidate.name, {}))
    if candidate.method == BACKPROP and candidate.ratio is None:
        values = {name: value for name, value in values.items() if name not in SCHEDULE}
    values |= {"method": candidate.method, "batches": batches, "seed": seed}
    values.pop("epochs", None)
    return TrainConfig.from_dict(values, "comparison", foreign="drop")


def _overlaid(values: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` overridden by `own`; a warm-up in batches replaces one in epochs, and the reverse."""
    replaced = {other for name, other in (("warmup", "warmup_batches"), ("warmup_batches", "warmup")) if name in own}
    return {name: value for name, value in values.items() if name not in replaced} | dict(own)


def steps_of(config: TrainConfig, batches_per_epoch: int) -> Iterator[Step]:
    """Yield the steps of a run whose length is set in batches."""
    assert config.batches is not None
    return (Step(*divmod(number, batches_per_epoch)) for number in range(config.batches))


def fitted_schedule(config: TrainConfig, batches_per_epoch: int) -> Schedule:
    """Return the run's schedule, which may depend on its length."""
    return config.fit(batches_per_epoch).schedule(batches_per_epoch)


def planned_batches(
    config: TrainConfig, batches_per_epoch: int, layout: Layout, share: float | None = None
) -> Iterator[tuple[Plan, int]]:
    """Yield the plans of a run's batches, run-length encoded.

    `share` is the fraction of GP batches of an adaptive schedule: then only the counts are right, not the order.
    """
    assert config.batches is not None
    schedule = fitted_schedule(config, batches_per_epoch).resolve(layout)
    if share is not None:
        (source,) = schedule.sources
        predicted = round(share * config.batches)
        yield BACKPROP_ALL, config.batches - predicted
        yield predicted_plan(source), predicted
        return
    for plan, equal in groupby(map(schedule.plan, steps_of(config, batches_per_epoch))):
        yield plan, sum(1 for _ in equal)
