"""A comparison from the first check to the report. The same command continues an interrupted one."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from adagp.core.files import write_atomically
from adagp.core.memory import free_memory
from adagp.program.compare.alignment import ALIGNMENT, AlignmentJob
from adagp.program.compare.comparison import (
    BATCHES,
    CLUSTER,
    MODELLED,
    REGIMES,
    SECONDS,
    ComparedRun,
    Comparison,
    ComparisonFolder,
)
from adagp.program.compare.costs import calibration, modelled_costs, predicted_share, run_lengths
from adagp.program.compare.grid import BATCH_SIZE
from adagp.program.compare.methods import BACKPROP, Candidate
from adagp.program.compare.modelled_cost import parse_accelerator, parse_pipeline
from adagp.program.compare.plots import draw_pareto, draw_worth
from adagp.program.compare.records import Record, aligned_record, regime_record, run_record
from adagp.program.compare.tables import markdown, method_rows, site_rows
from adagp.program.compare.tuning import read_tuned, tune
from adagp.program.compare.work import ComparisonObserver, ComparisonWork
from adagp.program.compare.worth import measured_price, method_prices, platform_models, worth_record
from adagp.program.jobs import Job, Stop, affordable_jobs, never, usable_cores
from adagp.program.run.documents import POSITIVE, read_result, record_of
from adagp.program.run.folder import RunFolder, flat_csv, locked, to_json
from adagp.program.run.metrics import ACCURACY
from adagp.program.tasks.base import Task

PROBE_BATCHES = 3
CURVE = "curve"


def run_comparison(
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
    """Run what is missing of a comparison in the folder `out`, write its report there, and return it."""
    folder = ComparisonFolder(out)
    work = ComparisonWork(comparison, folder, task, observer, stop, jobs)
    work.check()
    folder.begin(comparison)
    with locked(out):
        work.jobs = jobs or _measured_jobs(work)
        if comparison.tuning is not None:
            tune(work)
        comparison = work.comparison
        if comparison.large_batch and comparison.aligned_seeds:
            work.execute(_alignment_jobs(work), "alignment")
        regimes = _train_regimes(work)
        curve = list(folder.curve_runs(comparison))
        if curve:
            _train(work, curve, "backprop's curve")
        document = _document(work, regimes, target, command)
        if curve:
            document["curve"] = _finished_records(curve, CURVE, target)
            document["worth"] = break_even(work, document)
        _write(document, out)
    return document


def _train_regimes(work: ComparisonWork) -> dict[str, list[ComparedRun]]:
    comparison, regimes = work.comparison, {}
    # Equal batches come first: the cost of an adaptive schedule is known only from its runs there.
    for regime in REGIMES:
        if regime in comparison.regimes:
            regimes[regime] = list(work.folder.runs(comparison, run_lengths(work, regime)))
            _train(work, regimes[regime], f"equal {regime}")
    return {name: regimes[name] for name in comparison.regimes}


def _train(work: ComparisonWork, runs: Sequence[ComparedRun], title: str) -> None:
    work.execute([work.run_job(run) for run in runs], title)


def _finished_records(runs: Sequence[ComparedRun], regime: str, target: float | None) -> list[Record]:
    return [run_record(run, regime, target) for run in runs if run.finished]


def _measured_jobs(work: ComparisonWork) -> int:
    """Return how many runs to train at a time, limited by CPU cores and by the memory of a short run of the largest batch size.

    On a device other than the CPU it is 1: the runs would compete for it.
    """
    cores, free = usable_cores(), free_memory()
    comparison, candidate = work.comparison, work.comparison.reference
    largest = max(size for candidate in comparison.candidates for size in comparison.batch_sizes(candidate))
    config = replace(comparison.config(candidate, 0), batches=PROBE_BATCHES, batch_size=largest)
    if config.device != "cpu":
        return 1
    probe = ComparedRun(candidate, config, RunFolder(work.folder.path / "probe"))
    work.jobs = 1
    work.execute([work.run_job(probe)], "memory")
    if not probe.finished:
        return 1
    peak = read_result(probe.folder.path / "summary.json", record_of({"peak_memory": POSITIVE}))["peak_memory"]
    jobs = affordable_jobs(peak, free, cores)
    amount = "" if free is None else f" and {free / 1e9:.1f} GB are free"
    work.observer.say(
        f"A run took {peak / 1e9:.2f} GB; there are {cores} CPU cores{amount}: {jobs} at a time (--jobs changes that)."
    )
    return jobs


def _alignment_jobs(work: ComparisonWork) -> list[Job]:
    seeds, candidates = range(work.comparison.aligned_seeds), work.comparison.candidates
    return [_alignment_job(work, candidate, seed) for seed in seeds for candidate in candidates]


def _alignment_job(work: ComparisonWork, candidate: Candidate, seed: int) -> Job:
    comparison, path = work.comparison, work.folder.alignment(candidate, seed)
    measure = AlignmentJob(
        comparison.config(candidate, seed), comparison.large_batch, comparison.points, path, comparison.data_folder
    )
    log = work.folder.path / "logs" / f"alignment-{path.stem}.log"
    return Job(f"alignment of {candidate.name} seed {seed}", measure, path, log)


def _document(
    work: ComparisonWork, regimes: dict[str, list[ComparedRun]], target: float | None, command: str
) -> Record:
    comparison = work.comparison
    measured_costs = calibration(work) if SECONDS in comparison.regimes else None
    platforms = {regime: modelled_costs(work, regime) for regime in comparison.regimes if regime in MODELLED}
    alignment = {candidate.name: _alignment_record(work, candidate) for candidate in comparison.candidates}
    runs = {regime: _finished_records(own, regime, target) for regime, own in regimes.items()}
    return {
        **_settings(work, measured_costs, target, command),
        "calibration": measured_costs,
        "platforms": platforms,
        "regimes": {
            regime: regime_record(
                comparison, own, _costs(regime, measured_costs, platforms), alignment, target, work.task.metric
            )
            for regime, own in runs.items()
        },
        "runs": [record for own in runs.values() for record in own],
        "curve": [],
        "worth": None,
        "failed": [{"name": run.name, "reason": run.reason, "log": str(run.log)} for run in work.failures],
    }


def _alignment_record(work: ComparisonWork, candidate: Candidate) -> Record:
    paths = (work.folder.alignment(candidate, seed) for seed in range(work.comparison.aligned_seeds))
    return aligned_record([read_result(path, ALIGNMENT) for path in paths if path.is_file()])


def _settings(work: ComparisonWork, measured_costs: Record | None, target: float | None, command: str) -> Record:
    comparison, metric = work.comparison, work.task.metric
    config = comparison.config(comparison.candidates[0], 0)
    return {
        "command": command,
        "dataset": config.dataset,
        "model": config.model,
        "methods": [candidate.name for candidate in comparison.candidates],
        "reference": comparison.reference.name,
        "seeds": comparison.seeds,
        "batches": comparison.batches,
        "batches_per_epoch": work.epoch_length(comparison.base_config),
        "batch_size": comparison.base_batch_size,
        "batch_sizes": {each.name: comparison.config(each, 0).batch_size for each in comparison.candidates},
        "backprop_batch_sizes": _tried_with_backprop(comparison),
        "budget_seconds": measured_costs and measured_costs["budget_seconds"],
        "target": target,
        **({} if metric == ACCURACY else {"metrics": [asdict(metric)]}),
        "jobs": work.jobs,
        "alignment": {
            "points": comparison.points,
            "seeds": comparison.aligned_seeds,
            "samples": comparison.large_batch,
        },
        "tuning": None if comparison.tuning is None else read_tuned(work),
    }


def _tried_with_backprop(comparison: Comparison) -> list[int]:
    """Return the batch sizes that backprop was tried with."""
    sizes = {comparison.config(each, 0).batch_size for each in comparison.candidates if each.method == BACKPROP}
    tried = comparison.tuning.options.get(BATCH_SIZE, ()) if comparison.tuning else ()
    return sorted(sizes.union(map(int, tried)))


def _costs(regime: str, measured: Record | None, platforms: dict[str, Record]) -> dict[str, dict[str, float]]:
    """Return by method the cost of a run in the regime: calibrated seconds, and cycles of the modelled platform."""
    costs: dict[str, dict[str, float]] = {}
    if measured is not None and regime in (BATCHES, SECONDS):
        for name, method in measured["methods"].items():
            costs.setdefault(name, {})["calibrated_seconds"] = method["seconds"][regime]
    if regime in platforms:
        for name, method in platforms[regime]["methods"].items():
            costs.setdefault(name, {})["modelled_cost"] = method["costs"][regime]
    return costs


def break_even(work: ComparisonWork, document: Record) -> Record:
    """Return the worth of a GP batch of each method, and its price on this CPU and on the modelled platforms."""
    comparison, reference = work.comparison, work.comparison.reference
    models = platform_models(
        work.workload,
        work.epoch_length,
        parse_accelerator(comparison.accelerator),
        parse_pipeline(comparison.pipeline),
    )
    if CLUSTER in comparison.regimes:
        models[CLUSTER] = work.cost_model(CLUSTER)
    plain = comparison.config(reference, 0)
    prices = {}
    for candidate in comparison.candidates:
        if candidate != reference:
            modelled_prices = method_prices(
                comparison.config(candidate, 0), plain, models, predicted_share(work, candidate)
            )
            prices[candidate.name] = (
                measured_price(document["calibration"], candidate.name, reference.name) | modelled_prices
            )
    return worth_record(document, work.task.metric, prices)


def _write(document: Record, out: Path) -> None:
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
    if document["worth"] and document["worth"]["methods"]:
        for ending in ("png", "svg"):
            draw_worth(document["worth"], out / f"worth.{ending}")
