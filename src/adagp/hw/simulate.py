"""The whole: a workload, an accelerator and a run -> cycles, seconds and joules of each design, by phase and by layer."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from adagp.errors import ModelError
from adagp.hw.accelerator import Accelerator
from adagp.hw.array import Array, enlarged
from adagp.hw.designs import DESIGNS, PAPER_DESIGNS, Design
from adagp.hw.duties import Duty, duties
from adagp.hw.energy import Energy
from adagp.hw.product import Cost, total
from adagp.hw.runs import PlanKey, Run, plan_key
from adagp.hw.stages import Stage, stages
from adagp.hw.workload import Workload
from adagp.plan import BACKPROP_ALL, Phase


@dataclass(frozen=True)
class DesignOutcome:
    """A design's whole run: `by_layer[i][phase]` is the cost of stage `i` in all batches of a phase."""

    array: Array
    cost: Cost
    energy: Energy
    seconds: float
    by_phase: dict[Phase, Cost]
    by_layer: tuple[dict[Phase, Cost], ...]


@dataclass(frozen=True)
class Simulation:
    """Every asked-for design's outcome; the baseline is always among them."""

    workload: Workload
    accelerator: Accelerator
    run: Run
    stages: tuple[Stage, ...]
    outcomes: dict[str, DesignOutcome]

    @property
    def baseline(self) -> DesignOutcome:
        """The outcome that the others are compared with."""
        return self.outcomes["baseline"]

    @property
    def backward_to_forward(self) -> float:
        """The compute cycles of a backward pass over those of a forward pass."""
        passes = [stage.needed_passes for stage in self.stages]
        forward = sum(costs["forward"].cycles for costs in passes)
        return sum(costs["input_gradient"].cycles + costs["weight_gradient"].cycles for costs in passes) / forward

    def speedup(self, design: str) -> float:
        """Return the baseline's cycles over the design's."""
        return self.baseline.cost.cycles / self.outcomes[design].cost.cycles

    def energy_saving(self, design: str) -> float:
        """Return the share of the baseline's joules that the design saves."""
        return 1 - self.outcomes[design].energy.joules / self.baseline.energy.joules

    def memory_energy_saving(self, design: str) -> float:
        """Return the share of the baseline's joules for memory accesses that the design saves."""
        return 1 - self.outcomes[design].energy.memory / self.baseline.energy.memory


def simulate(
    workload: Workload, accelerator: Accelerator, run: Run, designs: Sequence[str] = PAPER_DESIGNS
) -> Simulation:
    """Cost the run on each of `designs` and on the baseline."""
    chosen = {name: DESIGNS[name] for name in dict.fromkeys(("baseline", *designs))}
    if not workload.array_layers:
        raise ModelError(
            f"'{workload.name}' has no convolution, linear layer or product: there is nothing to simulate."
        )
    work = _Work(workload, accelerator, run)
    outcomes = {name: _best(work, design) for name, design in chosen.items()}
    return Simulation(workload, accelerator, run, work.stages, outcomes)


class _Work:
    """A run's stages, and the duties of its batches, which all designs share.

    Each item has the duties of one kind of batch, and how many such batches each phase has.
    """

    def __init__(self, workload: Workload, accelerator: Accelerator, run: Run) -> None:
        self.workload = workload
        self.accelerator = accelerator
        self.run = run
        self.stages = stages(workload, accelerator, run.batch)
        alike: dict[PlanKey, tuple[list[Duty], Counter[Phase]]] = {}
        for plan, count in run.counts:
            key = plan_key(plan)
            if key not in alike:
                alike[key] = (duties(self.stages, plan, accelerator, run.predictor_learns), Counter())
            alike[key][1][plan.phase] += count
        self.scheduled = list(alike.values())
        everything = duties(self.stages, BACKPROP_ALL, accelerator, False)
        self.backprop = [(everything, Counter({Phase.BP: run.batches}))]


def _best(work: _Work, design: Design) -> DesignOutcome:
    """Return the design's outcome, on the quickest of the arrays that it may have."""
    if design.array_factor == 1.0:
        return _outcome(work, design)
    arrays = enlarged(work.accelerator.array, design.array_factor)
    others = (_Work(work.workload, replace(work.accelerator, array=array), work.run) for array in arrays)
    return min((_outcome(other, design) for other in others), key=lambda outcome: outcome.cost.cycles)


def _outcome(work: _Work, design: Design) -> DesignOutcome:
    accelerator = work.accelerator
    by_layer: list[dict[Phase, Cost]] = [{} for _ in work.stages]
    for batch, phases in work.scheduled if design.predicts else work.backprop:
        for layer, cost in zip(by_layer, design.step(batch), strict=True):
            for phase, count in phases.items():
                part = cost * count
                layer[phase] = layer[phase] + part if phase in layer else part
    by_phase = {phase: total(layer[phase] for layer in by_layer) for phase in by_layer[0]}
    cost = total(by_phase.values())
    weights = predictor_weights(work.workload, accelerator) if design.predictor_memory else 0
    energy = accelerator.energy_model(weights).energy(cost)
    return DesignOutcome(accelerator.array, cost, energy, cost.cycles / accelerator.clock_hz, by_phase, tuple(by_layer))


def predictor_weights(workload: Workload, accelerator: Accelerator) -> int:
    """Return the words of the predictor's weights: as many as the widest site needs."""
    sites = [layer for layer in workload.array_layers if layer.trainable]
    return max((accelerator.predictor.weights(layer) for layer in sites), default=0)
