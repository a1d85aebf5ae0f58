"""Training systems other than ADA-GP's accelerator: each costs a batch of its own kind of training on its own array.

A system takes the workload, the samples of a batch, and by layer what a run has measured (`LayerRecord`); it
returns what each of the three passes costs. Papers and plug-ins add systems to `SYSTEMS`; their times and
energies are modelled, and never stand in a table with measured seconds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from adagp.core.registry import Registry
from adagp.errors import OptionError
from adagp.hw.workload import Workload

PASSES = ("forward", "input_gradient", "weight_gradient")


@dataclass(frozen=True)
class LayerRecord:
    """Measurements of a layer in a run: the shares of its weights and of its inputs that are not zero."""

    weight_density: float = 1.0
    input_density: float = 1.0


@dataclass(frozen=True)
class PassCost:
    """Cycles and joules of a pass."""

    cycles: float = 0.0
    joules: float = 0.0

    def __add__(self, other: "PassCost") -> "PassCost":
        return PassCost(self.cycles + other.cycles, self.joules + other.joules)

    def __mul__(self, times: float) -> "PassCost":
        return PassCost(self.cycles * times, self.joules * times)


@dataclass(frozen=True)
class SystemCost:
    """What a batch costs by pass, with notes for the report."""

    passes: Mapping[str, PassCost]
    notes: Mapping[str, float | str] = field(default_factory=dict)

    def batch(self, *, predicted: bool = False) -> PassCost:
        """Return the cost of a batch by backprop, or of one with predicted gradients: its forward pass alone."""
        chosen = PASSES[:1] if predicted else PASSES
        return sum((self.passes[name] for name in chosen), PassCost())


@dataclass(frozen=True)
class SystemOptions:
    """Options: the retention time of embedded DRAM in microseconds, and the samples of a micro-batch."""

    retention: float = 3.35
    micro_batch: int = 1


@dataclass(frozen=True)
class System:
    """A training system by name."""

    name: str
    shows: str
    clock_hz: float
    cost: Callable[[Workload, int, Mapping[str, LayerRecord], SystemOptions], SystemCost]


SYSTEMS: Registry[System] = Registry("system", extensible=True)


@dataclass(frozen=True)
class EpochRecord:
    """An epoch of a run: batches by backprop, batches with predicted gradients, and what it has measured of each layer.

    `reached`: the run is as good as its target after it.
    """

    backprop: int
    predicted: int = 0
    layers: Mapping[str, LayerRecord] = field(default_factory=dict)
    reached: bool = False


@dataclass(frozen=True)
class SystemOutcome:
    """A run on a system: the cost of it all, of the part up to the target (None: not reached), and of the last batch."""

    system: System
    total: PassCost
    to_target: PassCost | None
    batch: SystemCost

    @property
    def seconds(self) -> float:
        """Modelled seconds of the run."""
        return self.total.cycles / self.system.clock_hz


def run_on_system(
    name: str, workload: Workload, batch: int, epochs: Sequence[EpochRecord], options: SystemOptions
) -> SystemOutcome:
    """Cost a run epoch by epoch, each with its own records. What sources do to predict is not in it."""
    system = SYSTEMS[name]
    total, to_target, cost = PassCost(), None, None
    for epoch in epochs:
        cost = system.cost(workload, batch, epoch.layers, options)
        total += cost.batch() * epoch.backprop + cost.batch(predicted=True) * epoch.predicted
        if epoch.reached and to_target is None:
            to_target = total
    if cost is None:
        raise OptionError("the run has no epoch: there is nothing to cost.")
    return SystemOutcome(system, total, to_target, cost)
