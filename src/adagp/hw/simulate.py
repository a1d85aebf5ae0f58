"""The whole: a workload, an accelerator and a run -> cycles, seconds and joules of each design, by phase and by layer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from adagp.errors import ModelError
from adagp.hw.accelerator import Accelerator
from adagp.hw.array import enlarged
from adagp.hw.designs import DESIGNS, PAPER_DESIGNS, Design
from adagp.hw.duties import duties
from adagp.hw.energy import Energy
from adagp.hw.product import NOTHING, Cost, total
from adagp.hw.runs import Run
from adagp.hw.stages import Stage, stages
from adagp.hw.workload import Workload
from adagp.plan import BACKPROP_ALL, Phase


@dataclass(frozen=True)
class Outcome:
    """A design's whole run: `by_layer[i][phase]` is the cost of stage `i` in all batches of a phase."""

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
    outcomes: dict[str, Outcome]

    @property
    def baseline(self) -> Outcome:
        """The outcome that the others are compared with."""
        return self.outcomes["baseline"]

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
        raise ModelError(f"'{workload.name}' has no convolution, linear layer or product: there is nothing to simulate.")
    plain = stages(workload, accelerator, run.batch)
    outcomes = {name: _outcome(workload, accelerator, run, design, plain) for name, design in chosen.items()}
    return Simulation(workload, accelerator, run, plain, outcomes)


def _outcome(
    workload: Workload, accelerator: Accelerator, run: Run, design: Design, plain: tuple[Stage, ...]
) -> Outcome:
    if design.array_factor != 1.0:
        larger = replace(accelerator, array=enlarged(accelerator.array, design.array_factor))
        plain = stages(workload, larger, run.batch)
    counts = run.counts if design.predicts else ((BACKPROP_ALL, run.batches),)
    learns = design.predicts and run.predictor_learns
    by_layer: list[dict[Phase, Cost]] = [{} for _ in plain]
    for plan, count in counts:
        for layer, cost in zip(by_layer, design.step(duties(plain, plan, learns)), strict=True):
            layer[plan.phase] = layer.get(plan.phase, NOTHING) + cost * count
    phases = {plan.phase for plan, _ in counts}
    by_phase = {phase: total(layer[phase] for layer in by_layer) for phase in Phase if phase in phases}
    cost = total(by_phase.values())
    model = accelerator.energy_model(predictor_weights(workload, accelerator) if design.predictor_memory else 0)
    seconds = cost.cycles / accelerator.clock_hz
    return Outcome(cost, model.energy(cost), seconds, by_phase, tuple(by_layer))


def predictor_weights(workload: Workload, accelerator: Accelerator) -> int:
    """Return the words of the predictor's weights: as many as the widest site needs."""
    sites = [layer for layer in workload.array_layers if layer.trainable]
    return max((accelerator.predictor.weights(layer) for layer in sites), default=0)
