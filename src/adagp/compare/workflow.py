"""A comparison from the first check to the report. Stopped anywhere and begun again, it continues where it was."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from adagp.compare.alignment import ALIGNMENT, AlignmentJob
from adagp.compare.calibrate import batches_within, calibrate, calibration_shape, seconds_of
from adagp.compare.comparison import EPOCHS, SECONDS, ComparedRun, Comparison, ComparisonFolder
from adagp.compare.contenders import Entry
from adagp.compare.pareto import draw_pareto
from adagp.compare.records import Record, aligned_record, regime_record, run_record
from adagp.compare.tables import markdown, method_rows, site_rows
from adagp.errors import RunError
from adagp.files import write_atomically
from adagp.jobs import (
    Job,
    JobFailure,
    JobObserver,
    Stop,
    affordable_jobs,
    never,
    run_jobs,
    usable_cores,
)
from adagp.memory import free_memory
from adagp.run.documents import POSITIVE, read_result, record_of
from adagp.run.folder import RunFolder, flat_csv, to_json
from adagp.run.lock import locked
from adagp.run.metrics import ACCURACY
from adagp.tasks.base import Task
from adagp.train.job import TrainingJob
from adagp.train.session import Session

PROBE_BATCHES = 3


class ComparisonObserver(JobObserver, Protocol):
    """Is told how a comparison goes."""

    def say(self, text: str) -> None:
        """Take note of something that is worth a line."""

    def begin(self, what: str, total: int) -> None:
        """Take note that a part of the work begins, of `total` steps."""

    def advance(self) -> None:
        """Take note of a step."""


@dataclass
class ComparisonWork:
    """A comparison under way: what is wanted, where it is kept, who is told, and how many jobs run at a time."""

    comparison: Comparison
    folder: ComparisonFolder
    task: Task
    observer: ComparisonObserver
    stop: Stop
    jobs: int | None = None

    def __post_init__(self) -> None:
        self.failures: list[JobFailure] = []

    @property
    def batches_per_epoch(self) -> int:
        """Batches in an epoch of the data set."""
        return self.task.batches_per_epoch

    def check(self) -> None:
        """Refuse here, before any run, what a run would refuse: each method is built once."""

        def build(entry: Entry) -> None:
            Session(self.comparison.config(entry, 0), task=self.task, threads=1)

        self.comparison.check_each(build)

    def execute(self, jobs: Sequence[Job], what: str) -> None:
        """Do the jobs."""
        self.observer.begin(what, len(jobs))
        assert self.jobs is not None
        self.failures += run_jobs(jobs, self.jobs, self.observer, self.stop, fresh=True)


def carry_out(
    comparison: Comparison,
    out: Path,
    task: Task,
    observer: ComparisonObserver,
    *,
    command: str,
    jobs: int | None = None,
    target: float | None = None,
    stop: Stop = never,
) -> Record:
    """Do what is left of a comparison in the folder `out`, write its report there, and return it."""
    folder = ComparisonFolder(out)
    work = ComparisonWork(comparison, folder, task, observer, stop, jobs)
    work.check()
    folder.begin(comparison)
    with locked(out):
        work.jobs = jobs or _measured_jobs(work)
        if comparison.large_batch and comparison.aligned_seeds:
            work.execute(_alignment_jobs(work), "alignment")
        regimes = {}
        for regime in (EPOCHS, SECONDS):  # an adaptive schedule's cost is known from its runs at equal batches
            if regime in comparison.regimes:
                batches = _batches(work, regime)
                regimes[regime] = list(folder.runs(comparison, batches))
                work.execute([_run_job(work, run) for run in regimes[regime]], f"equal {regime}")
        document = _document(work, {name: regimes[name] for name in comparison.regimes}, target, command)
        _write(document, out)
    return document


def _measured_jobs(work: ComparisonWork) -> int:
    """Return how many runs go at a time: as many as there are CPU cores, and memory for what a short run took.

    On other devices than the CPU that is one: they would wait for each other.
    """
    cores, free = usable_cores(), free_memory()
    entry = work.comparison.reference
    config = replace(work.comparison.config(entry, 0), batches=PROBE_BATCHES)
    if config.device != "cpu":
        return 1
    probe = ComparedRun(entry, config, RunFolder(work.folder.path / "probe"))
    work.jobs = 1
    work.execute([_run_job(work, probe)], "memory")
    if not probe.finished:
        return 1
    peak = read_result(probe.folder.path / "summary.json", record_of({"peak_memory": POSITIVE}))["peak_memory"]
    found = affordable_jobs(peak, free, cores)
    amount = "" if free is None else f" and {free / 1e9:.1f} GB are free"
    work.observer.say(
        f"A run took {peak / 1e9:.2f} GB; there are {cores} CPU cores{amount}: {found} at a time (--jobs changes that)."
    )
    return found


def _run_job(work: ComparisonWork, run: ComparedRun) -> Job:
    path = run.folder.path
    log = work.folder.path / "logs" / f"{path.name}.log"
    return Job(run.name, TrainingJob(run.config, path, work.comparison.data_folder), path / "summary.json", log)


def _alignment_jobs(work: ComparisonWork) -> list[Job]:
    seeds, entries = range(work.comparison.aligned_seeds), work.comparison.entries
    return [_alignment_job(work, entry, seed) for seed in seeds for entry in entries]


def _alignment_job(work: ComparisonWork, entry: Entry, seed: int) -> Job:
    comparison, path = work.comparison, work.folder.alignment(entry, seed)
    measure = AlignmentJob(
        comparison.config(entry, seed), comparison.large_batch, comparison.points, path, comparison.data_folder
    )
    log = work.folder.path / "logs" / f"alignment-{path.stem}.log"
    return Job(f"alignment of {entry.name} seed {seed}", measure, path, log)


def _batches(work: ComparisonWork, regime: str) -> dict[str, int]:
    """Return how many batches each entry's runs have in a regime."""
    comparison = work.comparison
    if regime == EPOCHS:
        return {entry.name: comparison.batches for entry in comparison.entries}
    return {name: one["batches"] for name, one in _calibration(work)["methods"].items()}


def _calibration(work: ComparisonWork) -> Record:
    """Return the costs of all methods' batches and how many fit into the time, measured once and then kept."""
    path = work.folder.calibration
    if not path.is_file():
        comparison, per_epoch = work.comparison, work.batches_per_epoch
        configs = {entry.name: comparison.config(entry, 0) for entry in comparison.entries}
        work.observer.begin("calibration", comparison.rounds)
        costs = calibrate(configs, work.task, comparison.rounds, work.observer.advance)
        reference = comparison.reference.name
        budget = comparison.seconds or seconds_of(configs[reference], costs[reference], per_epoch)
        methods = {}
        for name, config in configs.items():
            share = _predicted_share(work, name)
            batches = batches_within(budget, config, costs[name], per_epoch, share)
            calibrated = {
                regime: seconds_of(replace(config, batches=number), costs[name], per_epoch, share)
                for regime, number in ((EPOCHS, comparison.batches), (SECONDS, batches))
            }
            methods[name] = {"cost": costs[name], "batches": batches, "seconds": calibrated}
        content = {"budget_seconds": budget, "rounds": comparison.rounds, "methods": methods}
        write_atomically(path, (to_json(content, indent=2) + "\n").encode())
    names = (entry.name for entry in work.comparison.entries)
    found: Record = read_result(path, calibration_shape(names, work.comparison.batches))
    return found


def _predicted_share(work: ComparisonWork, name: str) -> float | None:
    """Return the share of GP batches that an adaptive schedule came to at equal batches; None for one that can be counted."""
    entry = next(entry for entry in work.comparison.entries if entry.name == name)
    if not work.comparison.config(entry, 0).schedule().adapts:
        return None
    runs = work.folder.runs(work.comparison, _batches(work, EPOCHS))
    records = [run_record(run, EPOCHS, None) for run in runs if run.entry == entry and run.finished]
    if not records:
        raise RunError(f"no run of '{name}' at equal batches has ended well: how much it predicts is not known.")
    predicted = sum(one["gp_batches"] + one["guarded_batches"] for one in records)
    return float(predicted / sum(one["batches"] for one in records))


def _document(
    work: ComparisonWork, regimes: dict[str, list[ComparedRun]], target: float | None, command: str
) -> Record:
    """Return the report as one JSON document."""
    comparison = work.comparison
    calibration = _calibration(work) if SECONDS in comparison.regimes else None
    measured = {
        entry.name: [
            read_result(path, ALIGNMENT)
            for path in (work.folder.alignment(entry, seed) for seed in range(comparison.aligned_seeds))
            if path.is_file()
        ]
        for entry in comparison.entries
    }
    alignment = {name: aligned_record(found) for name, found in measured.items()}
    runs = {regime: [run_record(run, regime, target) for run in own if run.finished] for regime, own in regimes.items()}
    config, metric = comparison.config(comparison.entries[0], 0), work.task.metric
    return {
        "command": command,
        "dataset": config.dataset,
        "model": config.model,
        "methods": [entry.name for entry in comparison.entries],
        "seeds": comparison.seeds,
        "batches": comparison.batches,
        "batches_per_epoch": work.batches_per_epoch,
        "budget_seconds": calibration and calibration["budget_seconds"],
        "target": target,
        **({} if metric == ACCURACY else {"metrics": [asdict(metric)]}),
        "jobs": work.jobs,
        "alignment": {
            "points": comparison.points,
            "seeds": comparison.aligned_seeds,
            "samples": comparison.large_batch,
        },
        "calibration": calibration,
        "regimes": {
            regime: regime_record(
                comparison,
                runs[regime],
                {name: one["seconds"][regime] for name, one in calibration["methods"].items()} if calibration else {},
                alignment,
                target,
                metric,
            )
            for regime in regimes
        },
        "runs": [record for records in runs.values() for record in records],
        "failed": [{"name": one.name, "reason": one.reason, "log": str(one.log)} for one in work.failures],
    }


def _write(document: Record, out: Path) -> None:
    """Write the report: JSON, Markdown, three tables and, if there is something to draw, the picture."""
    contents = {
        "report.json": to_json(document, indent=2) + "\n",
        "comparison.md": markdown(document),
        "runs.csv": flat_csv(document["runs"]),
        "methods.csv": flat_csv(method_rows(document)),
        "sites.csv": flat_csv(site_rows(document)),
    }
    for name, content in contents.items():
        write_atomically(out / name, content.encode("utf-8", "backslashreplace"))
    if all(content["methods"] for content in document["regimes"].values()):
        draw_pareto(document, out)
