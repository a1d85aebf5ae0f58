"""Reading run folders, as plain data. What is missing in a damaged or unfinished run is described in sentences; commands that
need a whole run call `read_whole_run`, which raises on others.
"""

import gc
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, product
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from adagp.core.escape import escaped
from adagp.errors import RunError
from adagp.program.run.documents import (
    ANYTHING,
    COUNT,
    TEXT,
    Fields,
    ListOf,
    parse_document,
    read_text,
    record_of,
)
from adagp.program.run.folder import CONFIG, MEGABYTE, MOST_METRICS, SHAPES, RunFolder
from adagp.program.run.metrics import ACCURACY, Metric, read_metrics

T = TypeVar("T")

SIGNS = ("config.json", "metrics.jsonl", "summary.json", "checkpoint.pt")
"""A folder with one of these files is a run."""
EXPECTED = ("config.json", "versions.json", "metrics.jsonl", "metrics.csv", "sites.csv")
"""Files that every run writes before its first epoch is over."""
COMPARISON = "comparison.json"
"""The file of a comparison (`adagp compare`), whose runs are in the folder `runs` next to it."""
_COMPARED = Fields({"entries": ListOf(record_of({"name": TEXT}))}, ANYTHING, required=("entries",))
_ROW = Fields({"epoch": COUNT}, ANYTHING, required=("epoch",))
NOT_TRAINING = "evaluation"
"""The kind of a run's seconds that is not training."""


class Epoch(NamedTuple):
    """One finished epoch, counted from 1. A figure that is missing or not finite is None.

    The values are those of the run's `metric`. `batches` are by kind: `bp` includes the warm-up; `guarded` are GP batches whose
    prediction was rejected. `seconds` are by activity. `rejected_share` is the share of the produced gradients that the guard
    rejected.
    """

    number: int
    label: str
    train_loss: float | None
    train_value: float | None
    test_loss: float | None
    test_value: float | None
    batches: Mapping[str, int]
    seconds: Mapping[str, float]
    sites: Mapping[str, Mapping[str, float | None]]
    rejected_share: float = 0.0

    @property
    def training_seconds(self) -> float:
        """Seconds of data and batches, evaluation left out."""
        return sum(value for name, value in self.seconds.items() if name != NOT_TRAINING)

    @property
    def all_batches(self) -> int:
        """The batches of the epoch, by whatever gradient."""
        return sum(self.batches.get(kind, 0) for kind in ("bp", "gp", "guarded"))

    @property
    def predicted_share(self) -> float:
        """The share of GP batches, including those that the guard rejected."""
        predicted = self.batches.get("gp", 0) + self.batches.get("guarded", 0)
        return predicted / max(1, predicted + self.batches.get("bp", 0))

    def over_sites(self, name: str) -> list[float]:
        """Return one figure of all sites that have it."""
        return [value for figures in self.sites.values() if (value := figures.get(name)) is not None]


@dataclass(frozen=True)
class RunRecord:
    """What a run folder holds, as far as it can be read; `problems` describes what is missing.

    `damage` has those of the problems that come from files which are there but cannot be read. Runs are compared by the
    first of the `metrics`. `candidate` is the name that a comparison has for the run's method, empty outside comparisons;
    `candidate_index` is its position among the compared methods.
    """

    name: str
    path: Path
    config: Mapping[str, Any]
    metrics: tuple[Metric, ...]
    epochs: tuple[Epoch, ...]
    summary: Mapping[str, Any]
    problems: tuple[str, ...]
    damage: tuple[str, ...]
    candidate: str = ""
    candidate_index: int = 0

    @property
    def metric(self) -> Metric:
        """The metric that runs are compared by."""
        return self.metrics[0]

    @property
    def model(self) -> str:
        """The model's name."""
        return self._option("model", str)

    @property
    def dataset(self) -> str:
        """The data set's name."""
        return self._option("dataset", str)

    @property
    def batch_size(self) -> int:
        """Samples in a batch."""
        return self._option("batch_size", int)

    @property
    def method(self) -> str:
        """The method's name."""
        return self._option("method", str)

    @property
    def width(self) -> float:
        """The factor on the model's channels."""
        return _number(self.config.get("width")) or 1.0

    @property
    def image_size(self) -> int | None:
        """Height and width of the pictures; None means the data set's own."""
        size = self.config.get("image_size")
        return size if isinstance(size, int) else None

    @property
    def sequence_length(self) -> int | None:
        """Bytes in a sample of a text; None if it is not recorded."""
        length = self.config.get("sequence_length")
        return length if isinstance(length, int) else None

    @property
    def plugins(self) -> tuple[str, ...]:
        """The modules of the user's own that the run was made with."""
        named = self.config.get("plugins")
        return tuple(map(str, named)) if isinstance(named, list) else ()

    @property
    def phases(self) -> list[Mapping[str, int]]:
        """The batches by kind, epoch by epoch."""
        return [epoch.batches for epoch in self.epochs]

    @property
    def finished(self) -> bool:
        """Whether the run reached its end: it has a summary, which is written last, and all its epochs."""
        planned = self.planned_epochs
        return bool(self.summary and self.epochs) and (planned is None or len(self.epochs) >= planned)

    @property
    def planned_epochs(self) -> int | None:
        """How many epochs the run is to have; None if it is not recorded."""
        epochs = self.config.get("epochs")
        return epochs if isinstance(epochs, int) and epochs > 0 else None

    @property
    def extent(self) -> str:
        """How far the run came, in words: `1 of 20 epochs`."""
        planned, done = self.planned_epochs, len(self.epochs)
        return f"{done} epoch{'' if done == 1 else 's'}" if planned is None else f"{done} of {planned} epochs"

    @cached_property
    def batch_clock(self) -> list[int]:
        """Batches of training, by whatever gradient, until the end of each epoch."""
        return list(accumulate(epoch.all_batches for epoch in self.epochs))

    @cached_property
    def clock(self) -> list[float]:
        """Seconds of training until the end of each epoch."""
        return list(accumulate(epoch.training_seconds for epoch in self.epochs))

    def _option(self, name: str, kind: type[T]) -> T:
        value = self.config.get(name)
        if not isinstance(value, kind):
            raise RunError(f"the run in '{self.path}' has no {name.replace('_', ' ')} in its config.json.")
        return value


def collect(paths: Sequence[Path]) -> list[RunRecord]:
    """Return the runs in `paths`: run folders, or folders with run folders somewhere below; each run once.

    An empty folder is a run that has not begun. Any other path is an error.
    """
    named = name_runs((path, folder) for path in paths for folder in _runs_below(path))
    return [read_run(path, name) for path, name in named.items()]


def name_runs(folders: Iterable[tuple[Path, Path]]) -> dict[Path, str]:
    """Return a name for each run folder of `folders`, pairs of a folder that the user named and one below it, or itself."""
    names: dict[Path, str] = {}
    for path, folder in folders:
        name = escaped(path.name if folder == path else folder.relative_to(path).as_posix())
        names.setdefault(folder.resolve(), name or str(folder))
    counts = Counter(names.values())
    return {path: name if counts[name] == 1 else str(path) for path, name in names.items()}


def _runs_below(path: Path) -> list[Path]:
    if not path.is_dir():
        raise RunError(f"'{path}' is not a run folder: there is no such folder.")
    if is_run(path) or not any(path.iterdir()):
        return [path]
    runs = sorted(folder for folder in walk_folders(path) if is_run(folder))
    if not runs:
        raise RunError(f"'{path}' is not a run folder, and there is none below it: no {' or '.join(SIGNS[:2])}.")
    return runs


def walk_folders(
    root: Path, listed: Callable[[Path], Sequence[Path]] | None = None, *, into_runs: bool = True
) -> Iterator[Path]:
    """Yield the folders below `root`, each before those inside it; links to folders are yielded, and not followed.

    Of a comparison only its runs are visited, not those that it makes for itself, to measure memory or to tune an option.
    `listed` returns the subfolders of a folder, if the caller knows them. Any depth will do: this does not recurse.
    """
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        if folder != root:
            yield folder
            if os.path.islink(folder) or (not into_runs and is_run(folder)):
                continue
        folders = (listed or subfolders)(folder)
        if os.path.isfile(folder / COMPARISON):
            folders = [inner for inner in folders if inner.name == "runs"]
        waiting += reversed(folders)


def subfolders(folder: Path) -> list[Path]:
    """Return the subfolders of a folder by name; none if it was deleted meanwhile or its path is too long."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry) for entry in entries if _is_folder(entry))
    except OSError:
        return []


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def comparison_of(run: Path) -> Path | None:
    """Return the folder of the comparison that a run belongs to."""
    folder = run.parent.parent
    return folder if run.parent.name == "runs" and (folder / COMPARISON).is_file() else None


def _candidate(run: Path) -> tuple[str, int]:
    """Return the name under which a comparison lists the method of its run in `run`, and its position there."""
    folder = comparison_of(run)
    if folder is None:
        return "", 0
    try:
        entries = parse_document(read_text(folder / COMPARISON, MEGABYTE), _COMPARED)["entries"]
    except RunError:
        return "", 0
    listed = {candidate_folder(entry["name"]): (str(entry["name"]), index) for index, entry in enumerate(entries)}
    return listed.get(re.sub(r"-\d+-seed\d+$", "", run.name), ("", 0))


def candidate_folder(name: str) -> str:
    """Return the name of a compared method as part of a file name."""
    return re.sub(r"[^\w+-]+", "-", name)


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run, complete or not."""
    try:
        return any((folder / name).is_file() for name in SIGNS)
    except OSError:  # its path is too long
        return False


def read_run(path: Path, name: str) -> RunRecord:
    """Return what can be read of the run in the folder `path`."""
    problems: list[str] = []
    damage: list[str] = []
    missing = [file for file in EXPECTED if not (path / file).is_file()]
    if missing:
        everything = len(missing) == len(EXPECTED)
        problems.append("The folder holds no files of a run." if everything else f"Missing: {', '.join(missing)}.")
    config = _object(path, CONFIG, damage)
    summary = _object(path, "summary.json", damage)
    _object(path, "versions.json", damage)
    try:
        metrics = read_metrics(config)
    except RunError as error:
        damage.append(f"config.json: {error}")
        metrics = (ACCURACY,)
    with _garbage_collection_paused():
        epochs = tuple(_epochs(path / "metrics.jsonl", metrics[0].name, damage))
    record = RunRecord(name, path, config, metrics, epochs, summary, (), tuple(damage), *_candidate(path))
    problems += [*damage, *_incomplete(record)]
    for part, (figure, words) in product(("train", "test"), (("loss", "loss"), ("value", metrics[0].words))):
        gaps = [str(epoch.number) for epoch in epochs if getattr(epoch, f"{part}_{figure}") is None]
        if gaps:
            problems.append(f"No finite {part} {words} in {_listed('epoch', gaps)}.")
    return replace(record, problems=tuple(problems))


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Pause it while many objects are made that all stay: it would go through all of them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _incomplete(record: RunRecord) -> Iterator[str]:
    if not record.epochs and (record.path / "metrics.jsonl").is_file():
        yield "Incomplete: metrics.jsonl holds no epoch."
    if not record.summary:
        yield f"Not finished, or no summary.json: {record.extent}."
    elif record.epochs and not record.finished:
        yield f"Incomplete: summary.json says that the run ended, but metrics.jsonl holds {record.extent}."


def read_whole_run(path: Path, purpose: str) -> RunRecord:
    """Return the run in the folder `path`; raise if it is damaged or has no finished epoch.

    `purpose` ends the sentence "there is nothing to ...".
    """
    RunFolder.open(path)
    record = read_run(path, escaped(path.name))
    _check_undamaged(record)
    if not record.epochs:
        raise _nothing_to(purpose, path)
    return record


def collect_whole(paths: Sequence[Path], purpose: str) -> list[RunRecord]:
    """Return the runs in `paths`, as `collect` does, that have a finished epoch; raise if one is damaged.

    A run without a finished epoch is an error if it is named itself, and left out if it is below a named folder.
    """
    named = {path.resolve() for path in paths}
    records = []
    for record in collect(paths):
        _check_undamaged(record)
        if record.epochs:
            records.append(record)
        elif record.path in named:
            raise _nothing_to(purpose, record.path)
    if not records:
        raise _nothing_to(purpose, paths[0], "no run below")
    return records


def _check_undamaged(record: RunRecord) -> None:
    if record.damage:
        raise RunError(f"the run in '{record.path}' is damaged: {' '.join(record.damage)}")


def _nothing_to(purpose: str, path: Path, which: str = "the run in") -> RunError:
    has = "has a" if which.startswith("no ") else "has no"
    return RunError(f"{which} '{path}' {has} finished epoch yet: there is nothing to {purpose}.")


def _object(folder: Path, name: str, damage: list[str]) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if there is none."""
    path = folder / name
    if not path.is_file():
        return {}
    shape, most = SHAPES[name]
    try:
        content: dict[str, Any] = parse_document(read_text(path, most), shape)
    except RunError as error:
        damage.append(f"{name} cannot be read: {error}")
        return {}
    return content


def _epochs(path: Path, metric: str, damage: list[str]) -> Iterator[Epoch]:
    if not path.is_file():
        return
    try:
        text = read_text(path, MOST_METRICS)
    except RunError as error:
        damage.append(f"{path.name} cannot be read: {error}")
        return
    lines, damaged, previous_epoch = text.splitlines(), [], -1
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_document(line, _ROW, finite=False)
        except RunError:
            cut_off = number == len(lines) and not text.endswith("\n")
            if (
                cut_off and not (path.parent / "summary.json").exists()
            ):  # it is being written, or a crash came in between
                break
            row = {"epoch": previous_epoch}
        if row["epoch"] > previous_epoch:
            previous_epoch = row["epoch"]
            yield _epoch(row, metric)
        else:
            damaged.append(str(number))
    if damaged:
        damage.append(f"metrics.jsonl cannot be read in {_listed('line', damaged)}: left out.")


def _epoch(row: dict[str, Any], metric: str) -> Epoch:
    sites = row.get("sites")
    return Epoch(
        number=row["epoch"] + 1,
        label=str(row.get("label", "")),
        train_loss=_number(row.get("train_loss")),
        train_value=_number(row.get(f"train_{metric}")),
        test_loss=_number(row.get("test_loss")),
        test_value=_number(row.get(f"test_{metric}")),
        batches=_counts(row.get("batches")),
        seconds=_amounts(row.get("seconds")),
        rejected_share=_number(row.get("rejected_share", row.get("refused"))) or 0.0,  # "refused" in older runs
        sites={site: _figures(figures) for site, figures in sites.items()} if isinstance(sites, dict) else {},
    )


def _counts(table: Any) -> Mapping[str, int]:
    return {name: int(value) for name, value in _amounts(table).items()}


def _amounts(table: Any) -> Mapping[str, float]:
    return {name: value for name, value in _figures(table).items() if value is not None and value >= 0}


def _figures(table: Any) -> Mapping[str, float | None]:
    """Return the numbers of a table by name; what is not a finite number is None."""
    if not isinstance(table, dict):
        return {}
    values = table.values()
    if _NUMBERS.issuperset(map(type, values)) and inf not in values and -inf not in values:  # as nearly all tables
        return table
    return {name: _number(value) for name, value in table.items()}


_NUMBERS = frozenset((float, int))


def _number(value: Any) -> float | None:
    return float(value) if value.__class__ in (float, int) and -inf < value < inf else None


def _listed(word: str, numbers: Sequence[str]) -> str:
    """Return `epoch 3`, `epochs 3, 4` or, if there are many, the first few of them."""
    first = ", ".join(numbers[:5]) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
    return f"{word}{'s' if len(numbers) > 1 else ''} {first}"


MOST_THREADS = max(64, os.cpu_count() or 1)
"""More than this many threads gain nothing, and some systems cannot even start them."""


def recorded_threads(folder: RunFolder) -> int | None:
    """Return the number of CPU threads that the run in `folder` was started with, if it is recorded."""
    threads = folder.read_json(CONFIG).get("threads")
    if threads is None and (folder.path / "versions.json").is_file():  # a run of version 0.1
        threads = folder.read_json("versions.json").get("threads")
    return threads if type(threads) is int and threads > 0 else None


def resumed_threads(folder: RunFolder, chosen: int | None, current: int) -> tuple[int, str | None]:
    """Return how many threads continue the run in `folder`, and a sentence for the user if that is not `current`.

    `chosen` is the user's number, if there is one; `current` is what torch uses otherwise.
    """
    recorded = recorded_threads(folder)
    if recorded is None:
        return chosen or current, None
    if chosen is not None:
        note = f"The run was started with {recorded} CPU threads; with {chosen} its results differ by rounding."
        return chosen, note if chosen != recorded else None
    if recorded > MOST_THREADS:
        raise RunError(
            f"the run in '{folder.path}' was started with {recorded} CPU threads; at most {MOST_THREADS} are possible here. "
            "Give --threads; results then differ by rounding."
        )
    return recorded, f"CPU threads: {recorded}, as recorded in the run." if recorded != current else None
