"""Modelled results: the phases of the runs on a simulated accelerator, and pipelines of devices."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from adagp.core.methods import METHODS
from adagp.core.plan import Phase
from adagp.errors import AdagpError, ModelError
from adagp.hw import Accelerator, replayed_run, simulate
from adagp.hw.report import simulation_report
from adagp.models import MODELS
from adagp.pipe import PIPELINES, constant_costs, generate, parse_phases
from adagp.pipe import simulate as dry_run
from adagp.pipe.actions import UPDATE
from adagp.program.figures.gantt import what
from adagp.program.report.run_groups import Chapter, MethodRuns
from adagp.program.workloads import run_workload

DEVICES = 4
MICRO_BATCHES = 4
LONGEST_PATTERN = 8
"""Most batches in a pipeline's chart."""
_workload = cache(run_workload)
"""Cached: a model is traced once for all its groups."""


@dataclass(frozen=True)
class Accelerated:
    """Simulations by method (see `hw.report`), and remarks on methods that could not be simulated."""

    reports: dict[str, dict[str, Any]]
    remarks: tuple[str, ...]


def accelerate(chapter: Chapter) -> Accelerated:
    """Replay the phases of the first run of each method with GP batches on the default accelerator."""
    reports, remarks = {}, []
    for group in chapter.groups:
        if not group.predicts:
            continue
        if group.method not in METHODS:  # writing a page must not import code that a run folder names
            remarks.append(
                f"{group.label}: method '{group.method}' is not loaded; use adagp simulate --from-run to replay it."
            )
            continue
        if METHODS[group.method].accelerator is None:
            remarks.append(f"{group.label}: this method has no accelerator cost model.")
            continue
        try:
            reports[group.label] = _simulate(group)
        except (AdagpError, ImportError, LookupError, TypeError, ValueError) as error:
            remarks.append(f"{group.label} could not be modelled: {error}")
    if not reports and not remarks:
        remarks.append("No run has GP batches, so there is nothing to gain on the accelerator.")
    return Accelerated(reports, tuple(remarks))


def _simulate(group: MethodRuns) -> dict[str, Any]:
    run = group.counted[0]
    if run.model not in MODELS:  # writing a page must not import code that a run folder names
        raise ModelError(f"'{run.model}' is not one of adagp's models; use adagp simulate --from-run.")
    workload = _workload(run.model, run.dataset, run.image_size, run.width, run.sequence_length)
    replay = replayed_run(run.phases, run.batch_size, METHODS[group.method].source)
    return simulation_report(simulate(workload, Accelerator(), replay))


@dataclass(frozen=True)
class Pipelined:
    """A pipeline's dry run in steps: its actions as rows of a Gantt chart, and its length with BP batches only."""

    name: str
    actions: tuple[dict[str, Any], ...]
    steps: float
    baseline_steps: float
    bubble_share: float
    peak_activations: int

    @property
    def speedup(self) -> float:
        """The speed-up over BP batches only."""
        return self.baseline_steps / self.steps if self.steps else 1.0


def pattern(groups: Sequence[MethodRuns]) -> str:
    """Return the phases of the last K:M of the first run with GP batches: K times GP, then M times BP."""
    for group in groups:
        labels = [epoch.label for run in group.counted[:1] for epoch in run.epochs if epoch.predicted_share]
        if labels:
            predicted, _, true = labels[-1].partition(":")
            if predicted.isdigit() and true.isdigit() and 0 < int(predicted) + int(true) <= LONGEST_PATTERN:
                return ",".join(["GP"] * int(predicted) + ["BP"] * int(true))
    return "GP,BP"


def pipelines(phases: str) -> list[Pipelined]:
    """Dry-run every pipeline; a forward takes one step, a backward two."""
    return [_pipelined(name, parse_phases(phases)) for name in PIPELINES]


def _pipelined(name: str, phases: Sequence[Phase]) -> Pipelined:
    program = generate(name, DEVICES, MICRO_BATCHES, phases)
    timeline = dry_run(program, constant_costs(program.stages, devices=DEVICES))
    plain = dry_run(generate(name, DEVICES, MICRO_BATCHES, [Phase.BP] * len(phases)), timeline.costs)
    actions = tuple(
        {
            "device": f"device {device}",
            "what": what(timeline, action),
            "micro_batch": str(action.number),
            "begin": begin,
            "end": end,
        }
        for device, row in enumerate(program.devices)
        for action, (begin, end) in zip(row, timeline.spans[device], strict=True)
        if action.kind != UPDATE or end > begin
    )
    peak = max(timeline.peak_activations)
    return Pipelined(name, actions, timeline.steps, plain.steps, timeline.bubble_share, peak)
