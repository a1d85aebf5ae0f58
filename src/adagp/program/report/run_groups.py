"""Groups runs that differ only in their seed, and puts groups with the same model and data into one chapter.

A group has a short label: the method, or the name that a comparison has for it. Where several groups have the same method,
the one option in which they differ follows in parentheses, or a number; a table of the page lists all options that differ.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adagp.core.intervals import UNBOUNDED, Bounds, Interval, interval
from adagp.program.run.config import known_options
from adagp.program.run.metrics import Metric
from adagp.program.run.record import Epoch, RunRecord, comparison_of

NOT_A_CHOICE = ("seed", "data_dir", "command", "metrics")
"""Fields of config.json that do not distinguish groups."""
FOLLOW_FROM_BATCHES = ("epochs", "warmup_batches")
LONGEST_DISTINCTION = 24
"""Characters of a label's distinction; a longer one is replaced by a number."""
TASK = ("dataset", "model", "width", "image_size", "vocabulary", "sequence_length")
"""Fields of config.json in which compared runs must agree."""


@dataclass(frozen=True)
class MethodRuns:
    """Runs of one method with the same options, one for each seed."""

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def method(self) -> str:
        """The method's name; a question mark if it is not known."""
        return str(self.runs[0].config.get("method", "?"))

    @property
    def counted(self) -> tuple[RunRecord, ...]:
        """The finished runs; if there are none, all with an epoch."""
        finished = tuple(run for run in self.runs if run.finished and run.epochs)
        return finished or tuple(run for run in self.runs if run.epochs)

    @property
    def unfinished(self) -> bool:
        """Whether no run is finished."""
        return not any(run.finished for run in self.runs)

    @property
    def length(self) -> int:
        """Epochs of the longest run."""
        return max((len(run.epochs) for run in self.runs), default=0)

    @property
    def predicts(self) -> bool:
        """Whether any epoch has GP batches."""
        return any(epoch.predicted_share for run in self.runs for epoch in run.epochs)

    @property
    def extent(self) -> str:
        """The length of the longest run, as text."""
        return max(self.runs, key=lambda run: len(run.epochs)).extent

    def over_runs(self, figure: Callable[[RunRecord], float | None], bounds: Bounds = UNBOUNDED) -> Interval | None:
        """Return the mean of `figure` over the counted runs that have it, with its interval within `bounds`."""
        return interval([value for run in self.counted if (value := figure(run)) is not None], bounds)

    @property
    def common_length(self) -> int:
        """Epochs that all counted runs have: a mean over fewer runs would splice one run's curve to that of others."""
        return min((len(run.epochs) for run in self.counted), default=0)

    def means(self, figure: Callable[[Epoch], float | None]) -> list[float | None]:
        """Return the mean of `figure` over the counted runs in each of the epochs that all of them have."""
        by_run = [[figure(epoch) for epoch in run.epochs[: self.common_length]] for run in self.counted]
        present = ([value for value in values if value is not None] for values in zip(*by_run, strict=True))
        return [sum(values) / len(values) if values else None for values in present]

    def at_epoch(
        self, index: int, figure: Callable[[Epoch], float | None], bounds: Bounds = UNBOUNDED
    ) -> Interval | None:
        """Return the mean of `figure` in epoch `index` (from 0) over the counted runs."""
        epochs = (run.epochs[index] for run in self.counted if index < len(run.epochs))
        return interval([value for epoch in epochs if (value := figure(epoch)) is not None], bounds)


@dataclass(frozen=True)
class Chapter:
    """Groups with the same model and data, compared by the first of the `metrics`."""

    title: str
    groups: tuple[MethodRuns, ...]
    metrics: tuple[Metric, ...]

    @property
    def comparison(self) -> Path | None:
        """The folder of the comparison that all runs belong to; None if they do not belong to one."""
        folders = {comparison_of(run.path) for group in self.groups for run in group.runs}
        return folders.pop() if len(folders) == 1 else None

    @property
    def metric(self) -> Metric:
        """The metric by which the groups are compared."""
        return self.metrics[0]


def final_value(run: RunRecord) -> float | None:
    """Return the test value after the last epoch."""
    return run.epochs[-1].test_value if run.epochs else None


def training_seconds(run: RunRecord) -> float | None:
    """Return the seconds of the whole run, with data loading and without evaluation."""
    return run.clock[-1] if run.epochs else None


def batches(run: RunRecord, *kinds: str) -> int:
    """Return the number of batches of some kinds."""
    return sum(epoch.batches.get(kind, 0) for epoch in run.epochs for kind in kinds)


def seconds_of(run: RunRecord, activity: str) -> float:
    """Return the seconds of one activity in the whole run."""
    return sum(epoch.seconds.get(activity, 0.0) for epoch in run.epochs)


def chapters(records: Sequence[RunRecord]) -> list[Chapter]:
    """Sort runs into chapters and groups, both in the order of their first run; backprop's group comes first.

    Methods of a comparison are in its order, so that they have the same colours as in its own plots.
    """
    by_task: dict[str, list[RunRecord]] = {}
    for record in records:
        by_task.setdefault(f"{record.metric} {_key(record, TASK)}", []).append(record)
    return [
        Chapter(_title(runs[0].config), _groups(runs), max((run.metrics for run in runs), key=len))
        for runs in by_task.values()
    ]


def _groups(records: Sequence[RunRecord]) -> tuple[MethodRuns, ...]:
    by_choice: dict[str, list[RunRecord]] = {}
    names = sorted({name for record in records for name in record.config} - set(NOT_A_CHOICE))
    repeats: Counter[str] = Counter()
    for record in records:
        choice = f"{comparison_of(record.path)} {record.candidate} {_key(record, names)}"
        run = f"{choice} {record.config.get('seed')}"
        # A second run of the same seed is not a further seed: it is a group of its own.
        by_choice.setdefault(f"{choice} {repeats[run]}", []).append(record)
        repeats[run] += 1
    groups = [
        MethodRuns(label, tuple(runs))
        for label, runs in zip(_labels(by_choice.values()), by_choice.values(), strict=True)
    ]
    return tuple(sorted(groups, key=lambda group: (group.method != "bp", group.runs[0].candidate_index)))


def _key(record: RunRecord, names: Iterable[str]) -> str:
    """Return a key that is equal for runs of one group; a run without a configuration is a group of its own."""
    if not record.config:
        return f"no configuration: {record.path}"
    return json.dumps([[name, record.config.get(name, _default(name))] for name in names], default=str)


def _default(name: str) -> Any:
    """Return the value of an option in runs that do not record it: they are older, or their model or hooks lack it."""
    known = known_options()
    return known[name].default if name in known else None


def _labels(groups: Iterable[list[RunRecord]]) -> list[str]:
    firsts = [runs[0] for runs in groups]
    names = [_name(run) for run in firsts]
    labels = []
    for run, name in zip(firsts, names, strict=True):
        rivals = [other for other, its_name in zip(firsts, names, strict=True) if its_name == name]
        labels.append(name if len(rivals) == 1 else f"{name} ({_distinction(run, rivals)})")
    return labels


def _name(run: RunRecord) -> str:
    return run.candidate or str(run.config.get("method", run.name))


def _distinction(run: RunRecord, rivals: Sequence[RunRecord]) -> str:
    """Return the option in which the group of `run` differs from those of the same name; its number if there are several."""
    options = differing_options([rival.config for rival in rivals])
    texts = [_option(options[0], rival.config.get(options[0])) for rival in rivals] if len(options) == 1 else []
    index = next(index for index, rival in enumerate(rivals) if rival is run)
    if len(set(texts)) == len(rivals) and len(texts[index]) <= LONGEST_DISTINCTION:
        return texts[index]
    return f"{index + 1}"


def differing_options(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the options that are not the same in all configurations; the run's length counts once."""
    names = sorted({name for config in configs for name in config} - set(NOT_A_CHOICE))
    options = [name for name in names if len({str(config.get(name, _default(name))) for config in configs}) > 1]
    return [name for name in options if not ("batches" in options and name in FOLLOW_FROM_BATCHES)]


def _option(name: str, value: Any) -> str:
    plain = name.replace("_", " ")
    if value is None:
        return f"default {plain}"
    return f"{value} {plain}" if name in ("epochs", "batches") else f"{plain} {value}"


def _title(config: Any) -> str:
    if not config:
        return "Runs without a configuration"
    width = config.get("width", 1.0)
    scaled = "" if width in (1, None) else f", width {width:g}" if isinstance(width, float) else f", width {width}"
    return f"{config.get('model', 'unknown model')} on {config.get('dataset', 'unknown data')}{scaled}"
