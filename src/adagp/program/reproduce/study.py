"""A study: chosen experiments at one budget in one folder, from its parts to the verdicts over all.

OUT/reproduce.json     the budget; another one needs another folder
OUT/parts/*.json       results of finished parts; they are not done again
OUT/runs/*/            the run folders of training parts
OUT/NAME/              an experiment: table.csv, figure.svg, figure.png, verdict.csv, verdict.json; missing.txt if it is partial
OUT/verdicts.md, .csv  over all experiments that the folder holds
OUT/published.csv      every published number and claim: reproduced, refuted, or not tested with the reason

An overview decides every published number over all budgets, from finished parts alone; nothing is run:

OUT/BUDGET/            a study of each budget, as far as its parts are in the records
OUT/published.csv      every published number and claim, decided by the largest budget that has a verdict on it
OUT/verdicts.md, .csv  the counts, then the verdicts of each experiment at the largest budget that it was concluded at
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from adagp._version import source_digest
from adagp.core.files import write_atomically
from adagp.errors import DataError, RunError
from adagp.program.figures.style import require_matplotlib
from adagp.program.jobs import Job, JobFailure, JobObserver, run_jobs
from adagp.program.reproduce.experiment import (
    BUDGETS,
    Experiment,
    Part,
    Workspace,
    all_experiments,
    copy_result,
    part_job,
    read_missing,
    read_verdicts,
    write_conclusion,
)
from adagp.program.reproduce.published import published_sections
from adagp.program.reproduce.verdict import CoverageRow, Verdict, coverage, coverage_markdown, markdown, tally
from adagp.program.run.documents import ANYTHING, TEXT, Fields, one_of, read_document
from adagp.program.run.folder import flat_csv, is_leftover, locked, to_json

MARKER = "reproduce.json"
MARKED = Fields({"budget": one_of(*BUDGETS), "source": TEXT}, ANYTHING, required=("budget",))
MOST_MARKER = 65_536
"""Bytes of the marker at most."""


class Study:
    """Experiments to be done at a budget. Everything is checked on construction, before any work.

    `records` is a folder whose `parts/*.json` count as finished, and which gets a copy of each part that is finished here: a
    checkout may hold it, so that another machine continues. With `report_only` no part is begun.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        budget: str,
        workspace: Workspace,
        records: Path | None = None,
        *,
        report_only: bool = False,
    ) -> None:
        require_matplotlib()
        self.experiments = experiments
        self.budget = budget
        self.workspace = workspace
        self.records = None if records is None else Workspace(records)
        self.report_only = report_only
        self._needs = {experiment.name: experiment.parts(budget) for experiment in experiments}
        self.parts = list(dict.fromkeys(part for parts in self._needs.values() for part in parts))
        if not report_only:
            check_data(experiments, budget, workspace.data_dir)
        check_folder(workspace.out, budget)

    @property
    def left(self) -> list[Part]:
        """The parts that are neither finished nor in the records."""
        return [part for part in self.parts if self._home(part) is None]

    def _home(self, part: Part) -> Workspace | None:
        workspaces = [self.workspace] if self.records is None else [self.workspace, self.records]
        return next((workspace for workspace in workspaces if workspace.finished(part)), None)

    @property
    def is_stale(self) -> bool:
        """Whether the folder's finished parts were made by another state of this program."""
        marker = read_marker(self.workspace.out)
        return marker is not None and marker.get("source") != source_digest()

    def estimate(self, at_once: int) -> "Estimate":
        """Estimate the seconds until all parts are finished from those of finished ones."""
        finished = [(part, home.seconds(part)) for part in self.parts if (home := self._home(part)) is not None]
        expected = [_expected_seconds(part, finished) for part in self.left]
        known = [seconds for seconds in expected if seconds is not None]
        return Estimate(sum(known) / max(1, min(at_once, len(self.left))), len(expected) - len(known))

    def run(self, at_once: int, observer: JobObserver) -> None:
        """Do what is left by rank and weight, and conclude each experiment as soon as its parts are there.

        Finished parts are kept, and the verdicts so far written, even if a part fails or the run is stopped:
        also those of experiments that allow a partial conclusion.
        """
        self.workspace.out.mkdir(parents=True, exist_ok=True)
        self._mark()
        parts = [] if self.report_only else sorted(self.left, key=lambda part: (part.rank, -part.weight))
        with locked(self.workspace.out):
            self.share_records()
            try:
                jobs = [part_job(part, self.workspace) for part in parts]
                failures = run_jobs(jobs, at_once, _Concluding(self, observer), self.workspace.stop)
            finally:
                self._conclude_partly()
                write_summary(self.workspace.out, self.budget)
        if failures:
            raise RunError(
                f"{len(failures)} of {len(parts)} parts failed; {failures[0].name}: {failures[0].reason} "
                "Finished parts are kept: the same command continues from there."
            )

    def report(self) -> None:
        """Conclude from finished parts and records alone."""
        self.workspace.out.mkdir(parents=True, exist_ok=True)
        self._mark()
        with locked(self.workspace.out):
            self.share_records()
            self.conclude(self.experiments)
            self._conclude_partly()
            write_summary(self.workspace.out, self.budget)

    def _mark(self) -> None:
        marker = self.workspace.out / MARKER
        if not marker.is_file():  # an existing one names the state of the program that began the folder
            content = {"budget": self.budget, "means": BUDGETS[self.budget], "source": source_digest()}
            write_atomically(marker, (to_json(content, indent=1) + "\n").encode())

    def share_records(self) -> None:
        """Copy results of finished parts from the records into the workspace, and from the workspace into the records."""
        if self.records is None:
            return
        for part in self.parts:
            copy_result(part, self.records, self.workspace)
            copy_result(part, self.workspace, self.records)

    def conclude(self, experiments: Sequence[Experiment]) -> list[Experiment]:
        """Conclude the experiments whose parts are all finished, and return the others."""
        waiting = []
        for experiment in experiments:
            if self._is_complete(experiment):
                self._write(experiment)
            else:
                waiting.append(experiment)
        return waiting

    def _conclude_partly(self) -> None:
        for experiment in self.experiments:
            enough = experiment.enough is not None and experiment.enough(self.budget, self.workspace)
            if enough and not self._is_complete(experiment):
                self._write(experiment)

    def _is_complete(self, experiment: Experiment) -> bool:
        return all(map(self.workspace.finished, self._needs[experiment.name]))

    def _write(self, experiment: Experiment) -> None:
        write_conclusion(experiment.conclude(self.budget, self.workspace), self.workspace.out / experiment.name)


@dataclass(frozen=True)
class Estimate:
    """Seconds that the remaining parts take, without the `unknown` ones: none of their kind is finished."""

    seconds: float
    unknown: int


def _expected_seconds(part: Part, finished: Sequence[tuple[Part, float]]) -> float | None:
    """Return the mean seconds of finished parts of the same model, or else of the same kind, in proportion to their epochs."""
    alike = [
        (other, seconds * _epochs(part) / _epochs(other)) for other, seconds in finished if other.work is part.work
    ]
    same_model = [seconds for other, seconds in alike if other.options.get("model") == part.options.get("model")]
    return mean(same_model or [seconds for _, seconds in alike]) if alike else None


def _epochs(part: Part) -> int:
    return int(part.options.get("epochs", 1))


class _Concluding:
    """Forwards the progress of jobs; records finished parts, and concludes the experiments whose parts are all there."""

    def __init__(self, study: Study, observer: JobObserver) -> None:
        self.study, self.observer = study, observer
        self.waiting = study.conclude(study.experiments)

    def on_start(self, job: Job) -> None:
        """Forward it."""
        self.observer.on_start(job)

    def on_share(self, job: Job, share: float) -> None:
        """Forward it."""
        self.observer.on_share(job, share)

    def on_end(self, job: Job, failure: JobFailure | None) -> None:
        """Forward it, record the part, and conclude what can be concluded."""
        self.observer.on_end(job, failure)
        self.study.share_records()
        self.waiting = self.study.conclude(self.waiting)


def without_data(experiments: Sequence[Experiment], budget: str, data_dir: Path | None) -> dict[str, str]:
    """Return the experiments that need a data set which is not on disk, by name, with that data set."""
    from adagp.data.registry import DATASETS, DEFAULT_DATA_DIR, locate

    missing: dict[str, str] = {}
    for dataset in dict.fromkeys(name for experiment in experiments for name in experiment.datasets(budget)):
        try:
            locate(DATASETS[dataset], data_dir or DEFAULT_DATA_DIR)
        except DataError:
            missing |= {
                experiment.name: dataset for experiment in experiments if dataset in experiment.datasets(budget)
            }
    return missing


def check_data(experiments: Sequence[Experiment], budget: str, data_dir: Path | None) -> None:
    """Raise an error if a data set is missing."""
    from adagp.data.registry import DATASETS, DEFAULT_DATA_DIR, locate

    needs: dict[str, list[str]] = {}
    for experiment in experiments:
        for dataset in experiment.datasets(budget):
            needs.setdefault(dataset, []).append(experiment.name)
    for dataset, names in needs.items():
        try:
            locate(DATASETS[dataset], data_dir or DEFAULT_DATA_DIR)
        except DataError as error:
            text = str(error).removesuffix(" Or let --download fetch it.")
            raise DataError(
                f"at budget {budget}, {', '.join(names)} need{'s' if len(names) == 1 else ''} real data: {text} "
                "Give its folder with --data-dir, or leave these experiments out."
            ) from None


def read_marker(out: Path) -> dict[str, Any] | None:
    """Return the content of the folder's reproduce.json, if it has one."""
    path = out / MARKER
    if not path.is_file():
        return None
    marker: dict[str, Any] = read_document(path, MARKED, MOST_MARKER)
    return marker


def check_folder(out: Path, budget: str) -> None:
    """Raise an error for a folder whose results are of another budget, or that holds something else."""
    marker = read_marker(out)
    if marker is not None:
        if marker["budget"] != budget:
            before = marker["budget"]
            raise RunError(f"'{out}' holds results of budget {before}; give another --out for budget {budget}.")
    elif out.is_dir() and not all(is_leftover(entry.name) for entry in out.iterdir()):
        raise RunError(f"'{out}' holds files that are not a reproduction; give another --out.")


def verdict_rows(experiment: Experiment, verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return the rows of an experiment for a table of all verdicts."""
    return [{"experiment": experiment.name, **verdict.row()} for verdict in verdicts]


def experiment_markdown(
    experiment: Experiment, verdicts: Sequence[Verdict], missing: str, budget: str = ""
) -> list[str]:
    """Return the lines on an experiment: what it shows, what is missing, and the table of its verdicts."""
    return [
        f"### {experiment.name}" + (f", budget {budget}" if budget else ""),
        "",
        f"{experiment.shows[:1].upper()}{experiment.shows[1:]}.",
        "",
        *([f"**Partial conclusion**: {missing}.", ""] if missing else []),
        markdown(verdicts),
    ]


Concluded = dict[Experiment, list[Verdict]]


def write_summary(out: Path, budget: str) -> None:
    """Write the verdicts of all experiments that `out` holds, as Markdown and as CSV."""
    concluded = {
        experiment: verdicts
        for experiment in all_experiments()
        if (verdicts := read_verdicts(out / experiment.name)) is not None
    }
    rows = [row for experiment, verdicts in concluded.items() for row in verdict_rows(experiment, verdicts)]
    write_atomically(out / "verdicts.csv", flat_csv(rows).encode())
    covered = _write_coverage({budget: concluded}, out)
    lines = [f"Budget {budget}: {BUDGETS[budget]}.", "", *_count_lines({budget: concluded}, covered)]
    for experiment, verdicts in concluded.items():
        lines += experiment_markdown(experiment, verdicts, read_missing(out / experiment.name))
    write_atomically(out / "verdicts.md", ("\n".join(lines).rstrip() + "\n").encode())


def write_overview(experiments: Sequence[Experiment], records: Path | None, out: Path) -> list[CoverageRow]:
    """Conclude at every budget what the records allow, and write the outcome of every published number and claim."""
    if (out / MARKER).is_file():
        raise RunError(f"'{out}' holds results of one budget; give another --out for a report on all, or --budget.")
    concluded = _conclude_budgets(experiments, records, out)
    rows = _write_coverage(concluded, out)
    flat = [
        {"budget": budget, **row}
        for budget, found in concluded.items()
        for experiment, verdicts in found.items()
        for row in verdict_rows(experiment, verdicts)
    ]
    write_atomically(out / "verdicts.csv", flat_csv(flat).encode())
    write_atomically(out / "verdicts.md", _markdown(experiments, concluded, rows, out).encode())
    return rows


def _conclude_budgets(experiments: Sequence[Experiment], records: Path | None, out: Path) -> dict[str, Concluded]:
    """Conclude each experiment from the largest budget down, until nothing is missing for a conclusion."""
    concluded: dict[str, Concluded] = {budget: {} for budget in reversed(BUDGETS)}
    waiting = list(experiments)
    for budget, found in concluded.items():
        chosen = [experiment for experiment in waiting if budget in experiment.minutes]
        if chosen:
            Study(chosen, budget, Workspace(out / budget), records, report_only=True).report()
        for experiment in chosen:
            folder = out / budget / experiment.name
            verdicts = read_verdicts(folder)
            if verdicts is not None:
                found[experiment] = verdicts
                if not read_missing(folder):  # a smaller budget has nothing to add to a whole conclusion
                    waiting.remove(experiment)
    return concluded


def _write_coverage(concluded: Mapping[str, Concluded], out: Path) -> list[CoverageRow]:
    """Write the outcome of every published number and claim; return the rows."""
    verdicts = {budget: list(chain.from_iterable(found.values())) for budget, found in concluded.items()}
    rows = coverage(published_sections(), verdicts)
    write_atomically(out / "published.csv", flat_csv([asdict(row) for row in rows]).encode())
    return rows


def _count_lines(concluded: Mapping[str, Concluded], rows: Sequence[CoverageRow]) -> list[str]:
    counts = tally(verdict for found in concluded.values() for verdicts in found.values() for verdict in verdicts)
    words = ", ".join(f"{count} {word}" for word, count in counts.items())
    return [f"All verdicts: {words}.", "", coverage_markdown(rows)]


def _markdown(
    experiments: Sequence[Experiment], concluded: Mapping[str, Concluded], rows: Sequence[CoverageRow], out: Path
) -> str:
    lines = _count_lines(concluded, rows)
    for experiment in experiments:
        for budget, found in concluded.items():
            if experiment in found:
                missing = read_missing(out / budget / experiment.name)
                lines += experiment_markdown(experiment, found[experiment], missing, budget)
    return "\n".join(lines).rstrip() + "\n"
