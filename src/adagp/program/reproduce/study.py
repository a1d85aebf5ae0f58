"""A study: chosen experiments at one budget in one folder, from its parts to the verdicts over all.

OUT/reproduce.json     the budget; another one needs another folder
OUT/parts/*.json       results of finished parts; they are not done again
OUT/runs/*/            the run folders of training parts
OUT/NAME/              an experiment: table.csv, figure.svg, figure.png, verdict.csv, verdict.json
OUT/verdicts.md, .csv  over all experiments that the folder holds
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adagp._version import source_digest
from adagp.core.files import write_atomically
from adagp.errors import DataError, RunError
from adagp.program.figures.style import require_matplotlib
from adagp.program.jobs import Job, JobFailure, JobObserver, run_jobs
from adagp.program.reproduce.experiment import BUDGETS, Experiment, all_experiments, read_verdicts, write_conclusion
from adagp.program.reproduce.parts import Part, Place, part_job
from adagp.program.reproduce.verdict import markdown, tally
from adagp.program.run.documents import ANYTHING, TEXT, Fields, one_of, read_document
from adagp.program.run.folder import flat_csv, is_leftover, to_json
from adagp.program.run.lock import locked

MARKER = "reproduce.json"
MARKED = Fields({"budget": one_of(*BUDGETS), "source": TEXT}, ANYTHING, required=("budget",))
MOST_MARKER = 65_536
"""Bytes of the marker at most."""


class Study:
    """Experiments to be done at a budget. Everything is checked on construction, before any work."""

    def __init__(self, experiments: Sequence[Experiment], budget: str, place: Place) -> None:
        require_matplotlib()
        self.experiments = experiments
        self.budget = budget
        self.place = place
        self._needs = {experiment.name: experiment.parts(budget) for experiment in experiments}
        self.parts = list(dict.fromkeys(part for parts in self._needs.values() for part in parts))
        check_data(experiments, budget, place.data_dir)
        refuse_other_budget(place.out, budget)

    @property
    def left(self) -> list[Part]:
        """The parts that are not finished."""
        return [part for part in self.parts if not self.place.finished(part)]

    @property
    def is_stale(self) -> bool:
        """Whether the folder's finished parts were made by another state of this program."""
        marker = read_marker(self.place.out)
        return marker is not None and marker.get("source") != source_digest()

    def run(self, at_once: int, observer: JobObserver) -> None:
        """Do what is left, the heaviest parts first, and conclude each experiment as soon as its parts are there.

        Whether all goes well, a part fails or somebody asks to stop: finished parts are kept, and the verdicts so far written.
        """
        self.place.out.mkdir(parents=True, exist_ok=True)
        marker = self.place.out / MARKER
        if not marker.is_file():  # what is there tells which state of the program began the folder
            content = {"budget": self.budget, "means": BUDGETS[self.budget], "source": source_digest()}
            write_atomically(marker, (to_json(content, indent=1) + "\n").encode())
        parts = sorted(self.left, key=lambda part: -part.weight)
        with locked(self.place.out):
            try:
                jobs = [part_job(part, self.place) for part in parts]
                failures = run_jobs(jobs, at_once, _Concluding(self, observer), self.place.stop)
            finally:
                write_summary(self.place.out, self.budget)
        if failures:
            raise RunError(
                f"{len(failures)} of {len(parts)} parts failed; {failures[0].name}: {failures[0].reason} "
                "Finished parts are kept: the same command continues from there."
            )

    def conclude(self, experiments: Sequence[Experiment]) -> list[Experiment]:
        """Conclude the experiments whose parts are all finished, and return the others."""
        waiting = []
        for experiment in experiments:
            if all(map(self.place.finished, self._needs[experiment.name])):
                write_conclusion(experiment.conclude(self.budget, self.place), self.place.out / experiment.name)
            else:
                waiting.append(experiment)
        return waiting


class _Concluding:
    """Passes on how jobs go, and concludes the experiments of a study whose parts are all there."""

    def __init__(self, study: Study, observer: JobObserver) -> None:
        self.study, self.observer = study, observer
        self.waiting = study.conclude(study.experiments)

    def on_start(self, job: Job) -> None:
        """Pass it on."""
        self.observer.on_start(job)

    def on_share(self, job: Job, share: float) -> None:
        """Pass it on."""
        self.observer.on_share(job, share)

    def on_end(self, job: Job, failure: JobFailure | None) -> None:
        """Pass it on, and conclude what can be concluded."""
        self.observer.on_end(job, failure)
        self.waiting = self.study.conclude(self.waiting)


def check_data(experiments: Sequence[Experiment], budget: str, data_dir: Path | None) -> None:
    """Refuse to begin where a data set is missing."""
    from adagp.data.load import DEFAULT_DATA_DIR, locate
    from adagp.data.registry import DATASETS

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
    """Return what the folder says of itself, if it is one of results."""
    path = out / MARKER
    if not path.is_file():
        return None
    marker: dict[str, Any] = read_document(path, MARKED, MOST_MARKER)
    return marker


def refuse_other_budget(out: Path, budget: str) -> None:
    """Refuse a folder whose results are of another budget, or that holds something else."""
    marker = read_marker(out)
    if marker is not None:
        if marker["budget"] != budget:
            before = marker["budget"]
            raise RunError(f"'{out}' holds results of budget {before}; give another --out for budget {budget}.")
    elif out.is_dir() and not all(is_leftover(entry.name) for entry in out.iterdir()):
        raise RunError(f"'{out}' holds files that are not a reproduction; give another --out.")


def write_summary(out: Path, budget: str) -> None:
    """Write the verdicts of all experiments that `out` holds, as Markdown and as CSV."""
    found = {one: verdicts for one in all_experiments() if (verdicts := read_verdicts(out / one.name)) is not None}
    rows = [{"experiment": experiment.name, **one.row()} for experiment, verdicts in found.items() for one in verdicts]
    write_atomically(out / "verdicts.csv", flat_csv(rows).encode())
    everything = [one for verdicts in found.values() for one in verdicts]
    lines = [f"Budget {budget}: {BUDGETS[budget]}.", ""]
    lines += ["All verdicts: " + ", ".join(f"{count} {word}" for word, count in tally(everything).items()) + ".", ""]
    for experiment, verdicts in found.items():
        lines += [
            f"### {experiment.name}",
            "",
            f"{experiment.shows[:1].upper()}{experiment.shows[1:]}.",
            "",
            markdown(verdicts),
        ]
    write_atomically(out / "verdicts.md", ("\n".join(lines).rstrip() + "\n").encode())
