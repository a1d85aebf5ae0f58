"""An experiment: the parts it needs, what it concludes from them, and the files it writes.

A part is one training run, one simulation, one timing, done once and kept. Its result is a file of its own, written whole or
not at all; if it exists, the part is finished. Its name has a digest of everything that decides the result, so a part with
other options is another part. Experiments that need the same part share it.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagp.core.files import read_text, write_atomically
from adagp.core.methods import METHODS
from adagp.core.registry import Registry
from adagp.errors import OptionError, RunError, unknown_name
from adagp.program.figures.style import save, style
from adagp.program.jobs import Job, Stop, never
from adagp.program.reproduce.published import Section, published, published_sections
from adagp.program.reproduce.verdict import VERDICTS, Verdict
from adagp.program.run.documents import AMOUNT, ANYTHING, Fields, Shape, TableOf, read_result, record_of
from adagp.program.run.folder import flat_csv, to_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Work = Callable[["Part", "Workspace"], dict[str, Any] | None]
"""What does a part: returns the result as plain values, or None if it was stopped before the end."""

RESULTS_FORMAT = "0.1.0"
"""Part of every key. Not the program's version: a release must not discard days of training. Change it only if the same options
give other results than before, which discards all finished parts."""
READS_DATA = "reads_data"
"""The option of a part whose data set must be on disk."""


@dataclass(frozen=True)
class Part:
    """A call of `work` with `options`, done once. Two parts with the same key are one.

    `work` is a function of a module, so that other processes find it. `weight` is roughly its seconds at the quick budget.
    Parts of a lower `rank` run first, among those of the same rank the heavier ones. `shape` is that of the result, which is
    checked when it is read.
    """

    work: Work = field(compare=False)
    label: str = field(compare=False)
    options: Mapping[str, Any] = field(compare=False)
    weight: float = field(default=1.0, compare=False)
    shape: Shape = field(default=TableOf(ANYTHING), compare=False)
    rank: int = field(default=0, compare=False)
    key: str = field(init=False)

    def __post_init__(self) -> None:
        name = self.work.__name__
        decides = json.dumps([name, dict(self.options), RESULTS_FORMAT], sort_keys=True)
        digest = hashlib.sha256(decides.encode()).hexdigest()[:10]
        object.__setattr__(self, "key", f"{name}-{self.label}-{digest}".replace("/", "_").replace(":", "_"))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the shape, which cannot be pickled and is needed only where results are read."""
        return Part, (self.work, self.label, self.options, self.weight)

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets that must be on disk."""
        return (str(self.options["dataset"]),) if self.options.get(READS_DATA) else ()


@dataclass(frozen=True)
class Workspace:
    """Where parts are done: the folder of results, the data, the device; `stop()` returns whether to stop early."""

    out: Path
    data_dir: Path | None = None
    device: str = "cpu"
    stop: Stop = never

    def result_file(self, part: Part) -> Path:
        """Return the file that holds the part's result, once it is finished."""
        return self.out / "parts" / f"{part.key}.json"

    def run_folder(self, part: Part) -> Path:
        """Return the run folder of a training part."""
        return self.out / "runs" / part.key

    def finished(self, part: Part) -> bool:
        """Return whether the part has been done."""
        return self.result_file(part).is_file()

    def result(self, part: Part) -> dict[str, Any]:
        """Return the result of a finished part."""
        result: dict[str, Any] = read_result(self.result_file(part), record_of({"result": part.shape}))["result"]
        return result

    def seconds(self, part: Part) -> float:
        """Return the seconds that a finished part took; 0 if its file does not have them."""
        content = read_result(self.result_file(part), Fields({"seconds": AMOUNT}, ANYTHING))
        return float(content.get("seconds", 0.0))


def copy_result(part: Part, source: Workspace, target: Workspace) -> None:
    """Copy the result of a part that is finished in `source` and not yet in `target`; its run folder is not copied."""
    if source.finished(part) and not target.finished(part):
        target.result_file(part).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target.result_file(part), source.result_file(part).read_bytes())


def run_part(part: Part, workspace: Workspace) -> bool:
    """Do a part, unless it is finished already, and keep its result; return False if it was stopped before the end."""
    if workspace.finished(part):
        return True
    workspace.result_file(part).parent.mkdir(parents=True, exist_ok=True)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    result = part.work(part, workspace)
    if result is None:
        return False
    content = {
        "part": part.key,
        "options": dict(part.options),
        "seconds": round(time.perf_counter() - begin, 3),
        "processor_seconds": round(time.process_time() - begin_cpu, 3),
        "result": result,
    }
    write_atomically(workspace.result_file(part), (to_json(content, indent=1) + "\n").encode())
    return True


@dataclass(frozen=True)
class _PartWork:
    """Does a part in a process that has its own way to be stopped."""

    part: Part
    workspace: Workspace

    def __call__(self, stop: Stop) -> bool:
        return run_part(self.part, replace(self.workspace, stop=stop))


def part_job(part: Part, workspace: Workspace) -> Job:
    """Return a part as a job for a process of its own."""
    work = _PartWork(part, replace(workspace, stop=never))  # a signal handler's flag cannot be pickled
    return Job(part.key, work, workspace.result_file(part), workspace.out / "logs" / f"{part.key}.log")


ALL = "all"
MISSING = "missing.txt"
"""The file of a partial conclusion that describes what is missing."""
BUDGETS: dict[str, str] = {
    "quick": "offline: training on the embedded digits; accelerator and pipelines in full",
    "short": "minutes a part: training on a small part of real data, narrow models, few epochs, mostly one seed",
    "standard": "training on real data, with narrower models and fewer epochs than published",
    "full": "models, data sets and epochs as published; for GPUs",
}


@dataclass(frozen=True)
class Conclusion:
    """The result of an experiment: the rows of its table, its verdicts, and how its picture is drawn.

    `missing` describes the parts that it had to do without; empty for a conclusion from all of them.
    """

    rows: Sequence[Mapping[str, Any]]
    verdicts: Sequence[Verdict]
    draw: Callable[[], "Figure"]
    missing: str = ""


@dataclass(frozen=True, eq=False)
class Experiment:
    """A table, figure or study by its name, which is that of its section of published figures.

    `minutes` are roughly what it takes on one core by itself at each budget that it has a size for; None: days, on a GPU.
    `enough` returns whether the finished parts allow a partial conclusion; without it, all parts are needed.
    """

    name: str
    shows: str
    minutes: Mapping[str, float | None]
    parts: Callable[[str], Sequence[Part]]
    conclude: Callable[[str, Workspace], Conclusion]
    enough: Callable[[str, Workspace], bool] | None = None

    @property
    def published(self) -> Section:
        """What was published."""
        return published(self.name)

    def has_size(self, budget: str | None) -> bool:
        """Return whether the experiment can be done at a budget; None: at any."""
        return budget is None or budget in self.minutes

    def datasets(self, budget: str) -> tuple[str, ...]:
        """Return the data sets that must be on disk at a budget."""
        return tuple(dict.fromkeys(name for part in self.parts(budget) for name in part.datasets))


EXPERIMENTS: Registry[Experiment] = Registry("experiment", extensible=True)


def add_experiment(experiment: Experiment, needs: Sequence[str] = ()) -> None:
    """Enter an experiment into the table, unless a method of another paper that it `needs` is not installed."""
    if all(method in METHODS for method in needs):
        EXPERIMENTS.add(experiment.name, experiment)


def all_experiments() -> list[Experiment]:
    """Return all experiments, in the order of the published figures; those without any come last."""
    order = {name: position for position, name in enumerate(published_sections())}
    return sorted(
        (EXPERIMENTS[name] for name in EXPERIMENTS), key=lambda experiment: order.get(experiment.name, len(order))
    )


def choose(names: Sequence[str], budget: str | None = None) -> list[Experiment]:
    """Return the named experiments in the order of `all_experiments`; `all` stands for every one that has the budget."""
    if not names:
        raise OptionError("name an experiment, several, or all; `adagp reproduce list` shows them.")
    chosen = {EXPERIMENTS[name].name for name in names if name != ALL}
    for name in sorted(chosen):
        if not EXPERIMENTS[name].has_size(budget):
            sizes = ", ".join(EXPERIMENTS[name].minutes)
            raise OptionError(f"{name} has no size for budget {budget}; choose from: {sizes}.")
    return [
        experiment
        for experiment in all_experiments()
        if experiment.name in chosen or (ALL in names and experiment.has_size(budget))
    ]


def check_budget(name: str) -> str:
    """Return `name` if it is a budget."""
    if name not in BUDGETS:
        raise unknown_name("budget", name, BUDGETS)
    return name


def write_conclusion(outcome: Conclusion, folder: Path) -> None:
    """Write the table, the picture (twice), the verdicts and what is missing into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    if outcome.missing:
        write_atomically(folder / MISSING, f"{outcome.missing}\n".encode())
    else:
        (folder / MISSING).unlink(missing_ok=True)
    write_atomically(folder / "table.csv", flat_csv(outcome.rows).encode())
    with style():
        figure = outcome.draw()
        for ending in ("svg", "png"):
            save(figure, folder / f"figure.{ending}")
    write_atomically(folder / "verdict.csv", flat_csv([verdict.row() for verdict in outcome.verdicts]).encode())
    content = [asdict(verdict) | {"difference": verdict.difference} for verdict in outcome.verdicts]
    write_atomically(folder / "verdict.json", (to_json(content, indent=1) + "\n").encode())


def read_missing(folder: Path) -> str:
    """Return what was missing for the conclusion in `folder`; empty if nothing was."""
    path = folder / MISSING
    return read_text(path, "a note on missing parts", RunError).strip() if path.is_file() else ""


def read_verdicts(folder: Path) -> list[Verdict] | None:
    """Return the verdicts that an experiment has written into `folder`, if it has."""
    path = folder / "verdict.json"
    if not path.is_file():
        return None
    rows: list[dict[str, Any]] = read_result(path, VERDICTS)
    return [Verdict(**{name: value for name, value in row.items() if name != "difference"}) for row in rows]
