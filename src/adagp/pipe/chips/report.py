"""A training on many chips as plain values with stable names, and how it scales with the copies of the model."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from adagp.core.plan import BACKPROP, Phase
from adagp.errors import OptionError
from adagp.hw import Run
from adagp.hw.stages import SUPPLIED
from adagp.pipe.chips.fabric import Topology
from adagp.pipe.chips.parallel import Parallelism
from adagp.pipe.chips.training import BatchTime, ChipTraining, ManyChips

SCALINGS = ("strong", "weak")


def chips_report(chips: ManyChips, run: Run) -> dict[str, Any]:
    """Return what was modelled and what came out; all of it is modelled."""
    training, link = chips.training, chips.fabric.link
    report: dict[str, Any] = {
        "model": training.workload.name,
        "chips": training.parallel.chips,
        "parallel": str(training.parallel),
        "fabric": str(chips.fabric.topology),
        "link_gigabytes_per_second": link.bandwidth / 1e9,
        "link_microseconds": link.latency * 1e6,
        "collective": chips.fabric.algorithm,
        "overlap": training.overlap,
        "batch": training.batch,
        "micro_batches": training.micro_batches,
        "samples_per_micro_batch": training.samples,
        "schedule": training.schedule if training.parallel.pipeline > 1 else None,
        "backprop": _batch(chips.backprop),
        "memory_bytes": {**asdict(chips.memory), "total": chips.memory.total},
    }
    if training.source == SUPPLIED:
        return report
    bp, gp = run_batches(run)
    plain = (bp + gp) * chips.backprop.seconds
    whole = bp * chips.learning.seconds + gp * chips.predicted.seconds
    return report | {
        "design": training.design,
        "bp": _batch(chips.learning),
        "gp": _batch(chips.predicted),
        "gp_to_backprop": chips.predicted.seconds / chips.backprop.seconds,
        "run": {"bp": bp, "gp": gp, "seconds": whole, "backprop_seconds": plain, "speedup": plain / whole},
    }


def _batch(batch: BatchTime) -> dict[str, Any]:
    return {"seconds": batch.seconds, "terms": dict(batch.terms), "sent_bytes": dict(batch.sent)}


def run_batches(run: Run) -> tuple[int, int]:
    """Return a run's batches by backprop, and those with predicted gradients; raise for one with both."""
    counts = {Phase.BP: 0, Phase.GP: 0}
    for plan, count in run.counts:
        if plan.by_site:
            raise OptionError("--chips cannot model a schedule that mixes true and predicted gradients within a batch.")
        counts[Phase.BP if plan.default == BACKPROP else Phase.GP] += count
    return counts[Phase.BP], counts[Phase.GP]


def scaling(training: ChipTraining, kind: str) -> list[dict[str, Any]]:
    """Return the training with 1, 2, 4, ... copies of the model: `strong` has the same batch, `weak` the same share of it."""
    rows = [_scaled_row(each) for each in _fewer_copies(training, kind)]
    first = rows[0]
    for row in rows:
        for name in ("backprop", "gp"):
            rate, alone = (each[f"{name}_samples_per_second"] for each in (row, first))
            row[f"{name}_efficiency"] = rate / alone * first["chips"] / row["chips"] if rate is not None else None
    return rows


def _fewer_copies(training: ChipTraining, kind: str) -> Iterator[ChipTraining]:
    most = training.parallel.data
    for copies in sorted({min(2**power, most) for power in range(most.bit_length() + 1)}):
        batch = training.batch
        if kind == "weak":
            if training.batch * copies % most:
                continue
            batch = training.batch * copies // most
        parallel = replace(training.parallel, data=copies, zero=training.parallel.zero if copies > 1 else 0)
        fabric = replace(training.fabric, topology=_resized(training.fabric.topology, parallel))
        yield replace(training, parallel=parallel, fabric=fabric, batch=batch)


def _resized(topology: Topology, parallel: Parallelism) -> Topology:
    same = topology.chips == parallel.chips
    return topology if same else Topology(topology.kind, parallel.chips)


def _scaled_row(training: ChipTraining) -> dict[str, Any]:
    chips = ManyChips(training)
    predicts = training.source != SUPPLIED
    row: dict[str, Any] = {
        "chips": training.parallel.chips,
        "parallel": str(training.parallel),
        "batch": training.batch,
        "backprop_seconds": chips.backprop.seconds,
        "bp_seconds": chips.learning.seconds if predicts else None,
        "gp_seconds": chips.predicted.seconds if predicts else None,
        "gp_to_backprop": chips.predicted.seconds / chips.backprop.seconds if predicts else None,
        "backprop_samples_per_second": training.batch / chips.backprop.seconds,
        "gp_samples_per_second": training.batch / chips.predicted.seconds
        if predicts and chips.predicted.seconds
        else None,
        "backprop_terms": dict(chips.backprop.terms),
        "gp_terms": dict(chips.predicted.terms) if predicts else None,
    }
    return row
