"""Groups runs that differ only in their seed, and puts groups with the same model and data into one chapter."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adagp.core.intervals import UNBOUNDED, Bounds, Interval, interval
from adagp.program.run.config import known_options
from adagp.program.run.metrics import Metric
from adagp.program.run.record import Epoch, RunRecord

NOT_A_CHOICE = ("seed", "data_dir", "command", "metrics")
"""Fields of config.json that do not distinguish groups."""
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

    def at_epoch(
        self, index: int, figure: Callable[[Epoch], float | None], bounds: Bounds = UNBOUNDED
    ) -> Interval | None:
        """Return the mean of `figure` in epoch `index` (from 0) over all runs that have it."""
        epochs = (run.epochs[index] for run in self.runs if index < len(run.epochs))
        return interval([value for epoch in epochs if (value := figure(epoch)) is not None], bounds)


@dataclass(frozen=True)
class Chapter:
    """Groups with the same model and data, compared by the first of the `metrics`."""

    title: str
    groups: tuple[MethodRuns, ...]
    metrics: tuple[Metric, ...]

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
    """Sort runs into chapters and groups, both in the order of their first run; backprop's group comes first."""
    by_task: dict[str, list[RunRecord]] = {}
    for record in records:
        by_task.setdefault(f"{record.metric} {_key(record, TASK)}", []).append(record)
    return [
        Chapter(_title(runs[0].config), _groups(runs), max((run.metrics for run in runs), key=len))
        for runs in by_task.values()
    ]


def _groups(records: Iterable[RunRecord]) -> tuple[MethodRuns, ...]:
    records = list(records)
    by_choice: dict[str, list[RunRecord]] = {}
    names = sorted({name for record in records for name in record.config} - set(NOT_A_CHOICE))
    for record in records:
        by_choice.setdefault(_key(record, names), []).append(record)
    groups = [
        MethodRuns(label, tuple(runs))
        for label, runs in zip(_labels(by_choice.values()), by_choice.values(), strict=True)
    ]
    return tuple(sorted(groups, key=lambda group: group.method != "bp"))


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
    """Label each group by its method and, if several have the same one, by the options that differ."""
    firsts = [runs[0] for runs in groups]
    labels = [_label(first, firsts) for first in firsts]
    uses = Counter(labels)
    return [f"{label} ({run.name})" if uses[label] > 1 else label for label, run in zip(labels, firsts, strict=True)]


def _label(run: RunRecord, others: Sequence[RunRecord]) -> str:
    rivals = [other.config for other in others if other.config.get("method") == run.config.get("method")]
    words = ", ".join(_option(name, run.config.get(name)) for name in _differing_options(rivals))
    return str(run.config.get("method", run.name)) + (f" ({words})" if words else "")


def _differing_options(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    names = sorted({name for config in configs for name in config} - set(NOT_A_CHOICE))
    return [name for name in names if len({str(config.get(name, _default(name))) for config in configs}) > 1]


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
