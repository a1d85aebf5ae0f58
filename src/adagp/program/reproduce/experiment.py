"""An experiment: the parts it needs, what it concludes from them, and the files it writes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagp.core.files import read_text, write_atomically
from adagp.core.methods import METHODS
from adagp.core.registry import Registry
from adagp.errors import OptionError, RunError, unknown_name
from adagp.program.figures.style import save, style
from adagp.program.reproduce.parts import Part, Workspace
from adagp.program.reproduce.published import Section, published, published_sections
from adagp.program.reproduce.verdict import VERDICTS, Verdict
from adagp.program.run.documents import read_result
from adagp.program.run.folder import flat_csv, to_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
        sizes = EXPERIMENTS[name].minutes
        if budget is not None and budget not in sizes:
            raise OptionError(f"{name} has no size for budget {budget}; choose from: {', '.join(sizes)}.")
    return [
        experiment
        for experiment in all_experiments()
        if experiment.name in chosen or (ALL in names and (budget is None or budget in experiment.minutes))
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
