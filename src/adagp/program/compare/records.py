"""From finished runs to the figures of a comparison: one flat record per run, one per method and regime, one per site."""

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
SUMMARY: Mapping[str, Shape] = {
    "test_loss": FIGURE,
    "batches": record_of(dict.fromkeys(("warmup", "bp", "gp", "guarded"), COUNT)),
    "seconds_by_phase": TableOf(AMOUNT),
    "peak_memory": AMOUNT,
}
"""What a comparison needs of a run's summary."""
COSINE: Bounds = (-1.0, 1.0)
"""What cosines lie between; norm ratios are never below zero."""


def run_record(run: ComparedRun, regime: str, target: float | None) -> Record:
    """Return the figures of one finished run. Seconds are measured, training and its data, without evaluation."""
    record = read_whole_run(run.folder.path, "compare")
    summary, metric = record.summary, record.metric.name
    if fault := find_fault(summary, record_of({**SUMMARY, f"test_{metric}": FIGURE})):
        raise RunError(f"cannot read '{run.folder.path / 'summary.json'}': {fault}")
    phases = {kind: one for kind, one in summary["seconds_by_phase"].items() if kind != NOT_TRAINING}
    batches = summary["batches"]
    return {
        "regime": regime,
        "name": run.candidate.name,
        "method": run.config.method,
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
    """Return the training seconds up to the end of the first epoch that reaches `target` in the test; None if none does."""
    ends = zip(run.epochs, run.clock, strict=True)
    return next((clock for epoch, clock in ends if run.metric.reaches(epoch.test_value, target)), None)


def method_record(
    candidate: Candidate,
    records: Sequence[Record],
    costs: Mapping[str, float],
    target: float | None,
    metric: Metric = ACCURACY,
) -> Record | None:
    """Return a method's figures over its runs in one regime; None if none of them is finished. `costs` are a run's."""
    if not records:
        return None
    reached = [one["seconds_to_target"] for one in records if one["seconds_to_target"] is not None]
    peak = estimate([one["peak_memory"] for one in records], NEVER_NEGATIVE)
    assert peak is not None
    return {
        "method": candidate.method,
        "ratio": candidate.ratio,
        "runs": len(records),
        **_means(records, ("batches", "warmup_batches", "bp_batches", "gp_batches", "guarded_batches")),
        **estimate_fields(metric.name, [one[metric.name] for one in records], metric.bounds),
        **estimate_fields("seconds", [one["seconds"] for one in records], NEVER_NEGATIVE),
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
    return {name: mean(one[f"{prefix}{name}"] for one in records) for name in names}


def gap_record(
    candidate: Candidate, candidates: Sequence[Candidate], runs: Sequence[Record], metric: Metric = ACCURACY
) -> Record:
    """Return the share of the gap between `skip` and backprop in the metric that a method closes, and whether there is one.

    A method is measured by the skip with its own schedule, or by the only one. Over the seeds that all three have. The gap
    is clear if the 95% interval of the difference, seed by seed, is above 0; with one seed nothing is. `gap_closed` is None
    where backprop is not ahead of skip.
    """
    skips = [one for one in candidates if one.method == "skip"]
    alike = [one for one in skips if one.ratio == candidate.ratio] or (skips if len(skips) == 1 else [])
    top = next(one for one in candidates if one.method == BACKPROP)
    nothing = {"gap_closed": None, "gap_clear": False}
    if not alike:
        return nothing
    common = _of_equal_seeds((candidate.name, alike[0].name, top.name), runs, metric)
    gap = estimate([best - worst for _, worst, best in common])
    if gap is None or gap.mean <= 0:
        return nothing
    closed = mean(own - worst for own, worst, _ in common) / gap.mean
    return {"gap_closed": closed, "gap_clear": gap.low is not None and gap.low > 0}


def ahead_record(
    candidate: Candidate, candidates: Sequence[Candidate], runs: Sequence[Record], metric: Metric = ACCURACY
) -> Record:
    """Return by how much a method is better than backprop, seed by seed: what a seed does to both alike cancels."""
    top = next(one for one in candidates if one.method == BACKPROP)
    common = [] if candidate is top else _of_equal_seeds((candidate.name, top.name), runs, metric)
    return estimate_fields("ahead", [own - other for own, other in common])


def _of_equal_seeds(names: Sequence[str], runs: Sequence[Record], metric: Metric) -> list[list[float]]:
    """Return the metric (the larger, the better) of these candidates for each seed that all of them have."""
    by_seed: dict[int, dict[str, float]] = defaultdict(dict)
    for run in runs:
        if run[metric.name] is not None:
            by_seed[run["seed"]][run["name"]] = metric.sign * run[metric.name]
    return [[found[name] for name in names] for found in by_seed.values() if set(names) <= found.keys()]


def aligned_record(measured: Sequence[Record]) -> Record:
    """Return the alignment of a method over its seeds: the mean over sites and points of each figure, and by site.

    A seed's value is the mean over its sites of the means over its points; the interval is over seeds.
    """
    by_seed = [site_means(one["points"]) for one in measured]
    record: Record = {}
    for figure in FIGURES:
        values = [_mean([site[figure] for site in sites.values()]) for sites in by_seed]
        fields = estimate_fields(figure, values, COSINE if figure in COSINES else NEVER_NEGATIVE)
        record |= {figure: fields.pop(f"{figure}_mean"), **fields}
    names = dict.fromkeys(name for sites in by_seed for name in sites)
    record["sites"] = {
        name: {figure: _mean([sites[name][figure] for sites in by_seed if name in sites]) for figure in FIGURES}
        for name in names
    }
    return record


def site_means(points: Sequence[Record]) -> dict[str, dict[str, float | None]]:
    """Return each site's figures, averaged over the points at which it was measured."""
    names = dict.fromkeys(name for point in points for name in point["sites"])
    return {
        name: {
            figure: _mean([point["sites"][name][figure] for point in points if name in point["sites"]])
            for figure in FIGURES
        }
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
    """Return `{"methods": {name: figures}}` of one regime; methods without a finished run are left out."""
    methods: dict[str, Record] = {}
    for candidate in comparison.candidates:
        own = [one for one in runs if one["name"] == candidate.name]
        record = method_record(candidate, own, costs.get(candidate.name, {}), target, metric)
        if record is not None:
            methods[candidate.name] = record
            methods[candidate.name] |= gap_record(candidate, comparison.candidates, runs, metric)
            methods[candidate.name] |= ahead_record(candidate, comparison.candidates, runs, metric)
            methods[candidate.name] |= alignment.get(candidate.name) or aligned_record([])
    return {"methods": methods}
