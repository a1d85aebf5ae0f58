"""A run of a workload on an accelerator, simulated: cycles, seconds and joules of each design, by phase and by layer.

A design is how a batch's duties and the predictor's work share the hardware. The one that is always there is `baseline`:
backprop on every batch, no predictor. Papers and plug-ins add theirs to `DESIGNS`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any, Protocol

from adagp.core.plan import BACKPROP_ALL, Phase
from adagp.core.registry import Registry
from adagp.errors import ModelError
from adagp.hw.accelerator import Accelerator, ArrayArithmetic
from adagp.hw.dataflows import Array, shaped_like
from adagp.hw.energy import Energy
from adagp.hw.product import NOTHING, Cost, Operation, total
from adagp.hw.runs import PlanKey, Run, plan_key
from adagp.hw.stages import Duty, Stage, duties, stages
from adagp.hw.workload import Workload

StepCosts = list[Cost]
"""A batch's cost, stage by stage; their sum is the batch's."""


class ArithmeticShares(Protocol):
    """In which arithmetic the layers of a run are computed, as shares of its batches."""

    @property
    def all(self) -> Sequence[ArrayArithmetic]:
        """Every arithmetic that occurs."""

    def of(self, layer: str, phase: Phase) -> Mapping[Any, float]:
        """Return the shares of a layer in the batches of a phase; they add up to 1."""


@dataclass(frozen=True)
class Design:
    """A way to run batches: what a batch costs by stage, and what the hardware has.

    `enlarged` names the field of `Accelerator` with the ratio of the design's PEs to the accelerator's; '': as many PEs.
    `word_bits` are those of all operands, if they are not the accelerator's. `arithmetic` is a function that returns the
    arithmetic of a run, if it is not computed in words. `standard` designs are simulated unless others are named.
    """

    step: Callable[[Sequence[Duty], Accelerator], StepCosts]
    predicts: bool = True
    predictor_memory: bool = True
    predictor_array: bool = False
    enlarged: str = ""
    word_bits: int | None = None
    arithmetic: Callable[[Run], ArithmeticShares] | None = None
    standard: bool = False

    @property
    def own_arithmetic(self) -> bool:
        """Whether it computes in another arithmetic than the accelerator's words."""
        return self.word_bits is not None or self.arithmetic is not None

    def array_factor(self, accelerator: Accelerator) -> float:
        """Return the design's PEs over the accelerator's."""
        return float(getattr(accelerator, self.enlarged)) if self.enlarged else 1.0


def run_baseline(duties: Sequence[Duty], accelerator: Accelerator) -> StepCosts:
    """Every layer's forward and backward, and no more."""
    return [duty.forward + duty.backward for duty in duties]


def run_in_sequence(duties: Sequence[Duty], accelerator: Accelerator) -> StepCosts:
    """Everything in sequence on one array; the predictor comes and goes through off-chip memory."""
    return [duty.forward + duty.backward + _from_buffer(duty) for duty in duties]


def _from_buffer(duty: Duty) -> Cost:
    work = duty.predictions
    if work is None:
        return NOTHING
    cost = work.predicting_from_buffer if duty.predicts else NOTHING
    return cost + work.learning_from_buffer if duty.learns else cost


DESIGNS: Registry[Design] = Registry("design", extensible=True)
BASELINE = DESIGNS.add("baseline", Design(run_baseline, predicts=False, predictor_memory=False, standard=True))


def standard_designs() -> tuple[str, ...]:
    """Return the designs that are simulated unless others are named."""
    return tuple(name for name in DESIGNS if DESIGNS[name].standard)


def parse_designs(text: str) -> tuple[str, ...]:
    """Return the designs that `text` names, separated by commas; `all` are the standard ones."""
    if text == "all":
        return standard_designs()
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        DESIGNS[name]
    return names


@dataclass(frozen=True)
class DesignOutcome:
    """A design's whole run. `batches` has the cost of each stage in one batch of a kind, and how many of it each phase has."""

    array: Array
    cost: Cost
    energy: Energy
    seconds: float
    batches: tuple[tuple[StepCosts, Counter[Phase]], ...]

    @cached_property
    def by_phase(self) -> dict[Phase, Cost]:
        """The cost of all batches of a phase."""
        return phase_costs((total(steps), phases) for steps, phases in self.batches)

    @cached_property
    def by_layer(self) -> tuple[dict[Phase, Cost], ...]:
        """The cost of each stage in all batches of a phase."""
        stages = range(len(self.batches[0][0]))
        return tuple(phase_costs((steps[stage], phases) for steps, phases in self.batches) for stage in stages)


def phase_costs(batches: Iterable[tuple[Cost, Counter[Phase]]]) -> dict[Phase, Cost]:
    """Return the cost of each phase, from the cost of each kind of batch and its count by phase."""
    totals: dict[Phase, Cost] = {}
    for cost, phases in batches:
        for phase, count in phases.items():
            totals[phase] = totals.get(phase, NOTHING) + cost * count
    return totals


@dataclass(frozen=True)
class Simulation:
    """The outcome of each simulated design; the baseline is always among them.

    `reshaped` is the baseline with its PEs in the shape that suits the model best, if a larger baseline is simulated.
    """

    workload: Workload
    accelerator: Accelerator
    run: Run
    stages: tuple[Stage, ...]
    outcomes: dict[str, DesignOutcome]
    reshaped: DesignOutcome | None = None

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

    def reference(self, design: str) -> DesignOutcome:
        """Return what a design is compared with: the baseline, or for a larger baseline the one in the best shape."""
        return self.reshaped if DESIGNS[design].enlarged and self.reshaped is not None else self.baseline

    def speedup(self, design: str) -> float:
        """Return the cycles of what the design is compared with over its own."""
        return self.reference(design).cost.cycles / self.outcomes[design].cost.cycles

    def energy_saving(self, design: str) -> float:
        """Return the share of the baseline's joules that the design saves."""
        return 1 - self.outcomes[design].energy.joules / self.baseline.energy.joules

    def memory_energy_saving(self, design: str) -> float:
        """Return the share of the baseline's joules for memory accesses that the design saves."""
        return 1 - self.outcomes[design].energy.memory / self.baseline.energy.memory

    def __repr__(self) -> str:
        return f"<simulation of {self.workload.name} by {', '.join(self.outcomes)}>"

    def _repr_html_(self) -> str:
        from adagp.hw.report import simulation_html  # which is about simulations, so it imports this module

        return simulation_html(self)


def simulate(
    workload: Workload, accelerator: Accelerator, run: Run, designs: Sequence[str] | None = None
) -> Simulation:
    """Cost the run on each of `designs`, the standard ones unless given, and on the baseline."""
    names = standard_designs() if designs is None else designs
    chosen = {name: DESIGNS[name] for name in dict.fromkeys(("baseline", *names))}
    if not workload.array_layers:
        raise ModelError(
            f"'{workload.name}' has no convolution, linear layer or product: there is nothing to simulate."
        )
    work = _Work(workload, accelerator, run)
    larger = [design.array_factor(accelerator) for design in chosen.values() if design.enlarged]
    shapes = _shapes(work, [1.0, *larger]) if larger else []
    outcomes = {
        name: _quickest(shapes, work, design) if design.enlarged else _computed(work, design)
        for name, design in chosen.items()
    }
    reshaped = _quickest(shapes, work, BASELINE) if larger else None
    return Simulation(workload, accelerator, run, work.stages, outcomes, reshaped)


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
                learning = run.predictor_learns, run.learner, run.variant
                alike[key] = (duties(self.stages, plan, accelerator, *learning), Counter())
            alike[key][1][plan.phase] += count
        self.scheduled = list(alike.values())
        everything = duties(self.stages, BACKPROP_ALL, accelerator, False)
        self.backprop = [(everything, Counter({Phase.BP: run.batches}))]


SHAPES_TRIED = 3
"""How many shapes of an array are costed in full: those that would be quickest if everything were on chip."""


def _shapes(work: "_Work", factors: Sequence[float]) -> list[DesignOutcome]:
    """Return a baseline's outcome on arrays of a similar shape, with up to `factors` times the PEs."""
    original = work.accelerator.array
    chosen = {original: None}
    cycles = {array: _unlimited(work, array) for array in shaped_like(original, max(factors))}
    for factor in factors:
        allowed = [array for array in cycles if array.pes <= round(original.pes * factor)]
        chosen |= dict.fromkeys(sorted(allowed, key=lambda array: cycles[array])[:SHAPES_TRIED])
    alternatives = (_Work(work.workload, replace(work.accelerator, array=array), work.run) for array in chosen)
    return [_outcome(alternative, BASELINE) for alternative in alternatives]


def _unlimited(work: "_Work", array: Array) -> int:
    """Return the cycles of a batch by backprop on `array`, if all were on chip."""
    accelerator = replace(work.accelerator, array=array, bandwidth=inf)
    cycles = 0
    for shape, times in Counter(work.workload.shapes).items():
        layer_product = shape.product(work.run.batch)
        operations = [Operation.FORWARD]
        operations += [Operation.INPUT_GRADIENT] if shape.input_gradient else []
        operations += [Operation.WEIGHT_GRADIENT] if shape.trainable else []
        trained = (accelerator.trained_with(layer_product, operation) for operation in operations)
        cycles += times * sum(
            accelerator.with_stalls(accelerator.resident_cost([product])).cycles for product in trained
        )
    return cycles


def _quickest(shapes: Sequence[DesignOutcome], work: "_Work", design: Design) -> DesignOutcome:
    """Return the quickest outcome on an array that has no more PEs than the design may have."""
    budget = round(work.accelerator.array.pes * design.array_factor(work.accelerator))
    return min((shape for shape in shapes if shape.array.pes <= budget), key=lambda outcome: outcome.cost.cycles)


def _computed(work: "_Work", design: Design) -> DesignOutcome:
    """Return the outcome of a design in its own arithmetic, or in the accelerator's words."""
    if design.arithmetic is not None:
        return _in_arithmetic(work, design, design.arithmetic(work.run))
    if design.word_bits is not None:
        numbers = replace(
            work.accelerator,
            word_bits=design.word_bits,
            weight_bits=None,
            activation_bits=None,
            gradient_bits=None,
            sum_bits=None,
        )
        return _outcome(_Work(work.workload, numbers, work.run), design)
    return _outcome(work, design)


def _in_arithmetic(work: "_Work", design: Design, shares: ArithmeticShares) -> DesignOutcome:
    """Return the outcome in the run's own arithmetic: each layer costs as much as in its mean batch."""
    works = {used: _Work(work.workload, replace(work.accelerator, arithmetic=used), work.run) for used in shares.all}
    first = next(iter(works.values()))
    batches = []
    for kind, (_, phases) in enumerate(first.scheduled):
        costs = {used: design.step(own.scheduled[kind][0], own.accelerator) for used, own in works.items()}
        phase = Phase.GP if Phase.GP in phases else Phase.BP
        steps = [
            _mean_cost({used: step[index] for used, step in costs.items()}, shares.of(stage.layer.name, phase))
            for index, stage in enumerate(first.stages)
        ]
        batches.append((steps, phases))
    return _summed(first, design, tuple(batches))


def _mean_cost(costs: Mapping[ArrayArithmetic, Cost], shares: Mapping[ArrayArithmetic, float]) -> Cost:
    mean = NOTHING
    for used, share in shares.items():
        mean += Cost(*[round(value * share) for value in costs[used]])
    return mean


def _outcome(work: _Work, design: Design) -> DesignOutcome:
    scheduled = work.scheduled if design.predicts else work.backprop
    return _summed(work, design, tuple((design.step(batch, work.accelerator), phases) for batch, phases in scheduled))


def _summed(work: _Work, design: Design, batches: tuple[tuple[StepCosts, Counter[Phase]], ...]) -> DesignOutcome:
    accelerator = work.accelerator
    cost = total(total(steps) * phases.total() for steps, phases in batches)
    weights = predictor_weights(work.workload, accelerator) if design.predictor_memory else 0
    pes = accelerator.array.pes + (accelerator.predictor_array.pes if design.predictor_array else 0)
    energy = accelerator.energy_model(weights, pes).energy(cost)
    return DesignOutcome(accelerator.array, cost, energy, cost.cycles / accelerator.clock_hz, batches)


def predictor_weights(workload: Workload, accelerator: Accelerator) -> int:
    """Return the words of the predictor's weights: as many as the widest site needs."""
    sites = [layer for layer in workload.array_layers if layer.trainable]
    return max((accelerator.predictor.weights(layer) for layer in sites), default=0)
