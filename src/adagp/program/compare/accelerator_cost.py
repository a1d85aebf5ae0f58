"""What runs cost on the modelled accelerator: the simulator's own cycles for the plan of each batch.

Plain backprop runs on the design's array without any predictor (design `baseline`). Fetching data and evaluation cost
nothing there.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from adagp.core.methods import batch_variation
from adagp.core.plan import Phase, Plan
from adagp.errors import OptionError
from adagp.hw import DATAFLOWS, DESIGNS, Accelerator, Array, Workload, parse_array, simulate
from adagp.hw.layout import workload_layout
from adagp.hw.runs import PlanKey, Run, plan_key
from adagp.hw.stages import source_work
from adagp.program.compare.methods import planned_batches
from adagp.program.run.config import TrainConfig
from adagp.schedules import Schedule

_FORM = "write a design, a dataflow and an array, for example max,ws,12x15"
OPTIMIZER_WORDS = {"sgd": 1, "adam": 2, "adamw": 2}
"""Words of state for each weight that an optimizer reads and writes; sgd's is its momentum."""


@dataclass(frozen=True)
class AcceleratorPlatform:
    """An accelerator by the text form of `--accelerator`: a design, a dataflow and an array, in any order."""

    design: str = "max"
    dataflow: str = "ws"
    array: Array = field(default_factory=lambda: Array(12, 15))

    def __str__(self) -> str:
        return f"{self.design},{self.dataflow},{self.array}"

    def accelerator(self, config: TrainConfig) -> Accelerator:
        """Return the accelerator, with the state that the run's optimizer keeps."""
        words = OPTIMIZER_WORDS[config.optimizer]
        if config.optimizer == "sgd" and not config.momentum:
            words = 0
        return Accelerator(array=self.array, dataflow=self.dataflow, optimizer_words=words)


_OFFERED = [name for name in DESIGNS if not (DESIGNS[name].block_floating_point or DESIGNS[name].word_bits)]
"""Designs for numbers of the usual width: what others cost depends on the arithmetic of a run that was not made yet."""


def parse_accelerator(text: str) -> AcceleratorPlatform:
    """Return the platform that `text` names; what it does not name has its default."""
    found: dict[str, str | Array] = {}
    for word in (part.strip() for part in text.split(",")):
        name = "design" if word in _OFFERED else "dataflow" if word in DATAFLOWS else "array"
        if name == "array" and not word[:1].isdigit():
            raise OptionError(
                f"--accelerator '{text}': '{word}' is no design ({', '.join(_OFFERED)}), no dataflow "
                f"({', '.join(DATAFLOWS)}) and no array; {_FORM}."
            )
        if name in found:
            raise OptionError(f"--accelerator '{text}' names two of {name}; {_FORM}.")
        found[name] = parse_array(word) if name == "array" else word
    platform = AcceleratorPlatform(**found)  # type: ignore[arg-type]  # each has the type of its name
    if not DESIGNS[platform.design].predicts:
        raise OptionError(
            f"--accelerator '{text}': the design '{platform.design}' predicts nothing; choose one of: "
            f"{', '.join(name for name in _OFFERED if DESIGNS[name].predicts)}."
        )
    return platform


@dataclass(frozen=True)
class BatchCost:
    """So many batches of a run under one plan, and the modelled cost of each."""

    phase: Phase
    batches: int
    cost: float


class AcceleratorCost:
    """Cycles of runs on an accelerator; every kind of batch is simulated once."""

    def __init__(self, platform: AcceleratorPlatform, workload: Workload, batches_per_epoch: int) -> None:
        self.platform = platform
        self.workload = workload
        self.batches_per_epoch = batches_per_epoch
        self._known: dict[tuple[PlanKey, str | None, Hashable, str, Accelerator, int], float] = {}

    @property
    def text(self) -> str:
        """The platform in the form in which users name it."""
        return str(self.platform)

    def details(self, config: TrainConfig, share: float | None = None) -> dict[str, Any]:
        """Return nothing: there is no more to tell."""
        return {}

    def batch_costs(self, config: TrainConfig, share: float | None = None) -> list[BatchCost]:
        """Return the kinds of batches of a run with their cost; `share` is that of GP batches, if no schedule tells."""
        learner = learner_of(config.schedule())
        variation, taught = batch_variation(config.method, config.method_options), 0
        kinds: Counter[tuple[Phase, PlanKey, Hashable]] = Counter()
        examples: dict[PlanKey, Plan] = {}
        for plan, count in planned_batches(config, self.batches_per_epoch, workload_layout(self.workload), share):
            key = plan_key(plan)
            examples[key] = plan
            if plan.has_true_gradients:
                kinds.update((plan.phase, key, variation.at(number)) for number in range(taught, taught + count))
                taught += count
            else:
                kinds[plan.phase, key, variation.predicted] += count
        return [
            BatchCost(phase, count, self.batch_cost(examples[key], config, learner, variant))
            for (phase, key, variant), count in kinds.items()
        ]

    def run_cost(self, config: TrainConfig, share: float | None = None) -> float:
        """Return the cycles of a whole run."""
        return sum(one.batches * one.cost for one in self.batch_costs(config, share))

    def batch_cost(self, plan: Plan, config: TrainConfig, learner: str | None, variant: Hashable = None) -> float:
        """Return the cycles of one batch under `plan`; `learner` is the source that learns in batches by backprop.

        `variant` is what its cost functions get for this batch.
        """
        design = self.platform.design if config.schedule().sources else "baseline"
        accelerator = self.platform.accelerator(config)
        key = (plan_key(plan), learner, variant, design, accelerator, config.batch_size)
        if key not in self._known:
            counts = ((replace(plan, phase=Phase.BP), 1),)
            run = Run(config.batch_size, counts, learner is not None, learner, variant=variant)
            outcome = simulate(self.workload, accelerator, run, [design]).outcomes[design]
            self._known[key] = float(outcome.cost.cycles)
        return self._known[key]


@lru_cache(maxsize=256)
def learner_of(schedule: Schedule) -> str | None:
    """Return the source of a schedule that learns in batches by backprop, None if none does."""
    return next((name for name in sorted(schedule.sources) if source_work(name).learns), None)
