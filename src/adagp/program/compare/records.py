"""Statistics over finished runs: one flat record per run, one per method and regime, one per site."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from adagp.core.intervals import NEVER_NEGATIVE, Bounds, estimate, estimate_fields
from adagp.core.plan import Phase
from adagp.errors import RunError
from adagp.program.compare.alignment import COSINES, FIGURES
from adagp.program.compare.comparison import ComparedRun, Comparison
from adagp.program.compare.methods import BACKPROP, Candidate
from adagp.program.run.documents import AMOUNT, COUNT, FIGURE, Shape, TableOf, find_fault, record_of
from adagp.program.run.metrics import ACCURACY, Metric
from adagp.program.run.record import NOT_TRAINING, RunRecord, read_whole_run

Record = dict[str, Any]
SiteFigures = dict[str, dict[str, float | None]]
SUMMARY: Mapping[str, Shape] = {
    "test_loss": FIGURE,
    "batches": record_of(dict.fromkeys(("warmup", "bp", "gp", "guarded"), COUNT)),
    "seconds_by_phase": TableOf(AMOUNT),
    "peak_memory": AMOUNT,
}
"""The fields of a run's summary that a comparison uses."""
COSINE: Bounds = (-1.0, 1.0)
"""The range of a cosine."""


def run_record(run: ComparedRun, regime: str, target: float | None) -> Record:
    """Return the results of one finished run. Seconds are measured; they include data loading but not evaluation."""
    record = read_whole_run(run.folder.path, "compare")
    summary, metric = record.summary, record.metric.name
    if fault := find_fault(summary, record_of({**SUMMARY, f"test_{metric}": FIGURE})):
        raise RunError(f"cannot read '{run.folder.path / 'summary.json'}': {fault}")
    phases = {kind: seconds for kind, seconds in summary["seconds_by_phase"].items() if kind != NOT_TRAINING}
    batches = summary["batches"]
    return {
        "regime": regime,
        "name": run.candidate.name,
        "method": run.config.method,
        "batch_size": run.config.batch_size,
        "seed": run.config.seed,
        metric: summary[f"test_{metric}"],
        "test_loss": summary["test_loss"],
        "seconds": sum(phases.values()),
        "batches": batches["bp"] + batches["gp"] + batches["guarded"],
        **{f"{kind}_batches": batches[kind] for kind in ("warmup", "bp", "gp", "guarded")},
        **{f"seconds_{kind}": phases.get(kind, 0.0) for kind in (*map(str, Phase), "data")},
        "peak_memory": summary["peak_memory"],
        "seconds_to_target": None if target is None else seconds_to(target, record),
        "run": str(run.folder.path),
    }


def seconds_to(target: float, run: RunRecord) -> float | None:
    """Return the training seconds until the end of the first epoch whose test value reaches `target`, or None."""
    ends = zip(run.epochs, run.clock, strict=True)
    return next((clock for epoch, clock in ends if run.metric.reaches(epoch.test_value, target)), None)


def method_record(
    candidate: Candidate,
    records: Sequence[Record],
    costs: Mapping[str, float],
    target: float | None,
    metric: Metric = ACCURACY,
) -> Record | None:
    """Return a method's statistics over its runs in one regime, None without a finished run. `costs` are those of one run."""
    if not records:
        return None
    reached = [run["seconds_to_target"] for run in records if run["seconds_to_target"] is not None]
    peak = estimate([run["peak_memory"] for run in records], NEVER_NEGATIVE)
    assert peak is not None
    return {
        "method": candidate.method,
        "ratio": candidate.ratio,
        "batch_size": records[0]["batch_size"],
        "runs": len(records),
        **_means(records, ("batches", "warmup_batches", "bp_batches", "gp_batches", "guarded_batches")),
        **estimate_fields(metric.name, [run[metric.name] for run in records], metric.bounds),
        **estimate_fields("seconds", [run["seconds"] for run in records], NEVER_NEGATIVE),
        "calibrated_seconds": costs.get("calibrated_seconds"),
        "modelled_cost": costs.get("modelled_cost"),
        "seconds_by_phase": _means(records, (*map(str, Phase), "data"), "seconds_"),
        "peak_memory": peak.mean,
        "peak_memory_low": peak.low,
        "peak_memory_high": peak.high,
        "target_share": None if target is None else len(reached) / len(records),
        **estimate_fields("seconds_to_target", reached, NEVER_NEGATIVE),
    }


def _means(records: Sequence[Record], names: Sequence[str], prefix: str = "") -> Record:
    return {name: mean(run[f"{prefix}{name}"] for run in records) for name in names}


def gap_record(
    candidate: Candidate, candidates: Sequence[Candidate], runs: Sequence[Record], metric: Metric = ACCURACY
) -> Record:
    """Return which share of the gap between `skip` and backprop a method closes, and whether that gap is significant.

    The method is compared with the `skip` of the same schedule, or with the only one, over the seeds that all three have. The
    gap is clear if the 95% interval of the paired differences is above 0, which needs several seeds. `gap_closed` is None if
    backprop is not better than skip.
    """
    nothing = {"gap_closed": None, "gap_clear": False}
    skip = _comparable_skip(candidate, candidates)
    if skip is None:
        return nothing
    common = _paired((candidate.name, skip.name, _reference(candidates).name), runs, metric)
    gap = estimate([best - worst for _, worst, best in common])
    if gap is None or gap.mean <= 0:
        return nothing
    closed = mean(own - worst for own, worst, _ in common) / gap.mean
    return {"gap_closed": closed, "gap_clear": gap.low is not None and gap.low > 0}


def _comparable_skip(candidate: Candidate, candidates: Sequence[Candidate]) -> Candidate | None:
    skips = [other for other in candidates if other.method == "skip"]
    same_schedule = [skip for skip in skips if skip.ratio == candidate.ratio]
    if same_schedule:
        return same_schedule[0]
    return skips[0] if len(skips) == 1 else None


def ahead_record(
    candidate: Candidate, candidates: Sequence[Candidate], runs: Sequence[Record], metric: Metric = ACCURACY
) -> Record:
    """Return by how much a method is better than backprop: the mean of the differences paired by seed."""
    reference = _reference(candidates)
    common = [] if candidate is reference else _paired((candidate.name, reference.name), runs, metric)
    return estimate_fields("ahead", [own - other for own, other in common])


def _reference(candidates: Sequence[Candidate]) -> Candidate:
    return next(candidate for candidate in candidates if candidate.method == BACKPROP)


def _paired(names: Sequence[str], runs: Sequence[Record], metric: Metric) -> list[list[float]]:
    """Return the metric (larger is better) of these candidates for each seed that all of them have."""
    by_seed: dict[int, dict[str, float]] = defaultdict(dict)
    for run in runs:
        if run[metric.name] is not None:
            by_seed[run["seed"]][run["name"]] = metric.sign * run[metric.name]
    return [[values[name] for name in names] for values in by_seed.values() if set(names) <= values.keys()]


def aligned_record(measured: Sequence[Record]) -> Record:
    """Return a method's gradient figures: over all sites with intervals over seeds, and by site.

    A seed's value is the mean over sites of the means over points.
    """
    by_seed = [site_means(run["points"]) for run in measured]
    record: Record = {}
    for figure in FIGURES:
        values = [_mean([site[figure] for site in sites.values()]) for sites in by_seed]
        fields = estimate_fields(figure, values, COSINE if figure in COSINES else NEVER_NEGATIVE)
        record |= {figure: fields.pop(f"{figure}_mean"), **fields}
    for figure, values in _noise_by_seed(measured).items():
        fields = estimate_fields(figure, values, NEVER_NEGATIVE)
        record |= {figure: fields.pop(f"{figure}_mean"), **fields}
    record["sites"] = _means_by_site(by_seed)
    return record


def _noise_by_seed(measured: Sequence[Record]) -> dict[str, list[float | None]]:
    """Return by seed the mean squared correlation of samples' gradients and the mean noise scale.

    Files of earlier versions contain neither.
    """
    by_seed: dict[str, list[float | None]] = {"rho_squared": [], "noise_scale": []}
    for run in measured:
        noises = [point.get("noise") or {} for point in run["points"]]
        correlations = [noise.get("correlation") for noise in noises]
        by_seed["rho_squared"].append(_mean([None if value is None else value**2 for value in correlations]))
        by_seed["noise_scale"].append(_mean([noise.get("noise_scale") for noise in noises]))
    return by_seed


def site_means(points: Sequence[Record]) -> SiteFigures:
    """Return each site's figures, averaged over the points at which it was measured."""
    return _means_by_site([point["sites"] for point in points])


def _means_by_site(tables: Sequence[SiteFigures]) -> SiteFigures:
    names = dict.fromkeys(name for sites in tables for name in sites)
    return {
        name: {figure: _mean([sites[name][figure] for sites in tables if name in sites]) for figure in FIGURES}
        for name in names
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def regime_record(
    comparison: Comparison,
    runs: Sequence[Record],
    costs: Mapping[str, Mapping[str, float]],
    alignment: Mapping[str, Record],
    target: float | None,
    metric: Metric = ACCURACY,
) -> Record:
    """Return `{"methods": {name: statistics}}` of one regime; methods without a finished run are left out."""
    methods: dict[str, Record] = {}
    for candidate in comparison.candidates:
        method_runs = [run for run in runs if run["name"] == candidate.name]
        record = method_record(candidate, method_runs, costs.get(candidate.name, {}), target, metric)
        if record is not None:
            methods[candidate.name] = record
            methods[candidate.name] |= gap_record(candidate, comparison.candidates, runs, metric)
            methods[candidate.name] |= ahead_record(candidate, comparison.candidates, runs, metric)
            methods[candidate.name] |= alignment.get(candidate.name) or aligned_record([])
    return {"methods": methods}
