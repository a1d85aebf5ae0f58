"""The modelled cost of runs in cycles, on an accelerator or on a pipeline of them.

Accelerator: the simulated cycles of each batch, by its plan. Plain backprop runs on the same array without a predictor (design
`baseline`). Loading data and evaluation cost nothing.

Pipeline: a run is cut into windows of GP batches and the BP batch after them, and each window is dry-run. Its cost is what it
adds after a BP batch, so that batches may overlap as far as the pipeline's weight versions allow. Plain backprop gets the best
exact pipeline, without a predictor. A method gets the chosen pipeline; `best` is the one on which the run is cheapest. A source
that needs the error at the model's output has it broadcast to all stages, which wait for it.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil, inf
from typing import Any, Protocol

from adagp.core.methods import batch_variation
from adagp.core.plan import BACKPROP, Phase, Plan
from adagp.errors import OptionError, unknown_name
from adagp.hw import DATAFLOWS, DESIGNS, Accelerator, Array, Workload, parse_array, simulate
from adagp.hw.runs import PlanKey, Run, plan_key, workload_layout
from adagp.hw.stages import SUPPLIED, source_work
from adagp.pipe import PIPELINES, Costs, Timeline, generate, registered_name, with_broadcast
from adagp.pipe import simulate as dry_run
from adagp.pipe.modelled import modelled_costs
from adagp.program.compare.methods import planned_batches
from adagp.program.run.config import TrainConfig
from adagp.schedules import Schedule

_ACCELERATOR_FORM = "write a design, a dataflow and an array, for example max,ws,12x15"
OPTIMIZER_WORDS = {"sgd": 1, "adam": 2, "adamw": 2}
"""Words of optimizer state per weight; sgd's is its momentum."""


EpochLength = Callable[[TrainConfig], int]
"""Returns the batches per epoch of a run; they depend on its batch size."""


@dataclass(frozen=True)
class AcceleratorPlatform:
    """An accelerator in the text form of `--accelerator`: a design, a dataflow and an array, in any order."""

    design: str = "max"
    dataflow: str = "ws"
    array: Array = field(default_factory=lambda: Array(12, 15))

    def __str__(self) -> str:
        return f"{self.design},{self.dataflow},{self.array}"

    def accelerator(self, config: TrainConfig) -> Accelerator:
        """Return the accelerator, with the state of the run's optimizer."""
        words = OPTIMIZER_WORDS[config.optimizer]
        if config.optimizer == "sgd" and not config.momentum:
            words = 0
        return Accelerator(array=self.array, dataflow=self.dataflow, optimizer_words=words)


def _offered_designs() -> list[str]:
    """Return the designs with a fixed word width: the cost of others depends on the number formats that a run has used."""
    return [name for name in DESIGNS if not DESIGNS[name].own_arithmetic]


def parse_accelerator(text: str) -> AcceleratorPlatform:
    """Parse the text form; parts left out have their defaults."""
    offered = _offered_designs()
    parts = dict.fromkeys(DATAFLOWS, "dataflow") | dict.fromkeys(offered, "design")
    values: dict[str, str | Array] = {}
    for word in map(str.strip, text.split(",")):
        name = parts.get(word, "array")
        if name == "array" and not word[:1].isdigit():
            raise OptionError(
                f"--accelerator '{text}': '{word}' is not a design ({', '.join(offered)}), a dataflow "
                f"({', '.join(DATAFLOWS)}) or an array; {_ACCELERATOR_FORM}."
            )
        if name in values:
            raise OptionError(f"--accelerator '{text}' names two of {name}; {_ACCELERATOR_FORM}.")
        values[name] = parse_array(word) if name == "array" else word
    platform = AcceleratorPlatform(**values)  # type: ignore[arg-type]  # each has the type of its name
    if not DESIGNS[platform.design].predicts:
        raise OptionError(
            f"--accelerator '{text}': the design '{platform.design}' predicts nothing; choose one of: "
            f"{', '.join(name for name in offered if DESIGNS[name].predicts)}."
        )
    return platform


@dataclass(frozen=True)
class BatchCost:
    """A number of equal batches of a run, and the cycles of each."""

    phase: Phase
    batches: int
    cost: float


class CostModel(Protocol):
    """The cost of runs on a modelled platform, in cycles.

    `share` is the fraction of GP batches of an adaptive schedule, which cannot be counted in advance; None otherwise.
    """

    @property
    def text(self) -> str:
        """The platform in the text form of the option."""

    def run_cost(self, config: TrainConfig, share: float | None = None) -> float:
        """Return the cost of a whole run."""

    def batch_costs(self, config: TrainConfig, share: float | None = None) -> list[BatchCost]:
        """Return the number and the cost of each kind of batch of a run."""

    def details(self, config: TrainConfig, share: float | None = None) -> dict[str, Any]:
        """Return further JSON fields of a run's cost."""


class AcceleratorCost:
    """Cycles of runs on an accelerator; each kind of batch is simulated once."""

    def __init__(self, platform: AcceleratorPlatform, workload: Workload, epoch_length: EpochLength) -> None:
        self.platform = platform
        self.workload = workload
        self.epoch_length = epoch_length
        self._known: dict[tuple[PlanKey, str | None, Hashable, str, Accelerator, int], float] = {}

    @property
    def text(self) -> str:
        """The platform in the text form of the option."""
        return str(self.platform)

    def details(self, config: TrainConfig, share: float | None = None) -> dict[str, Any]:
        """Return nothing: an accelerator has no further fields."""
        return {}

    def batch_costs(self, config: TrainConfig, share: float | None = None) -> list[BatchCost]:
        """Return the number and the cost of each kind of batch; `share`: see `CostModel`."""
        learner = learner_of(config.schedule())
        variation, taught = batch_variation(config.method, config.method_options), 0
        kinds: Counter[tuple[Phase, PlanKey, Hashable]] = Counter()
        examples: dict[PlanKey, Plan] = {}
        for plan, count in planned_batches(config, self.epoch_length(config), workload_layout(self.workload), share):
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
        return sum(kind.batches * kind.cost for kind in self.batch_costs(config, share))

    def batch_cost(self, plan: Plan, config: TrainConfig, learner: str | None, variant: Hashable = None) -> float:
        """Return the cycles of one batch; `learner` is the source that learns in BP batches.

        `variant` is passed to the source's cost functions.
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
    """Return the source that learns in BP batches, None if none does."""
    return next((name for name in sorted(schedule.sources) if source_work(name).learns), None)


BEST = "best"
"""The pipeline on which the run is cheapest."""
MODELLED, BALANCED = "modelled", "balanced"
"""Costs of the stages: `modelled` cuts the model between layers; `balanced` divides the same work equally."""
_PIPELINE_FORM = "write for example dapple,devices=4,micro-batches=4 or best,devices=8,micro-batches=8,costs=balanced"


@dataclass(frozen=True)
class BatchWindow:
    """`length` GP batches, then a BP batch if `ended`; `variant` is passed to the source's cost functions for that batch."""

    length: int = 0
    ended: bool = True
    variant: Hashable = None


LONGEST_WINDOW = 12
"""GP batches of a window that are dry-run; each further one is assumed to add as much as the last."""


@dataclass(frozen=True)
class PipelinePlatform:
    """A pipeline in the text form of `--pipeline`."""

    schedule: str = BEST
    devices: int = 4
    micro_batches: int = 4
    costs: str = MODELLED

    def __str__(self) -> str:
        text = f"{self.schedule},devices={self.devices},micro-batches={self.micro_batches}"
        return text if self.costs == MODELLED else f"{text},costs={self.costs}"


def parse_pipeline(text: str) -> PipelinePlatform:
    """Parse the text form; parts left out have their defaults."""
    values: dict[str, str | int] = {}
    for word in map(str.strip, text.split(",")):
        key, value = _split_option(word)
        if key in values or key not in ("schedule", "devices", "micro_batches", "costs") or not value:
            raise OptionError(f"cannot read '{word}' in --pipeline '{text}'; {_PIPELINE_FORM}.")
        values[key] = _count(text, word, value) if key in ("devices", "micro_batches") else value
    platform = PipelinePlatform(**values)  # type: ignore[arg-type]  # each has the type of its name
    platform = replace(platform, schedule=registered_name(platform.schedule))
    if platform.schedule != BEST and platform.schedule not in PIPELINES:
        raise unknown_name("pipeline", platform.schedule, [BEST, *PIPELINES])
    if platform.costs not in (MODELLED, BALANCED):
        raise unknown_name("costs of a pipeline", platform.costs, (MODELLED, BALANCED))
    return platform


def _split_option(word: str) -> tuple[str, str]:
    """Return the name and the value of `name=value`; a word without `=` is the schedule."""
    name, equals, value = (part.strip() for part in word.partition("="))
    return (name.replace("-", "_"), value) if equals else ("schedule", name)


def _count(text: str, word: str, value: str) -> int:
    if not (value.isdecimal() and 1 <= int(value) <= 4096):
        raise OptionError(f"cannot read '{word}' in --pipeline '{text}'; give a whole number from 1 to 4096.")
    return int(value)


class PipelineCost:
    """Cycles of runs on a pipeline; each window is dry-run once. `candidates` restricts the choice of the best pipeline."""

    def __init__(
        self,
        platform: PipelinePlatform,
        accelerator: AcceleratorPlatform,
        workload: Workload,
        epoch_length: EpochLength,
        candidates: Sequence[str] = (),
    ) -> None:
        self.platform, self.accelerator, self.candidates = platform, accelerator, candidates
        self.workload, self.epoch_length = workload, epoch_length
        self._cuts: dict[str, int] = {}
        self._costs: dict[tuple[str | None, Hashable, int, int, Accelerator], Costs] = {}
        self._windows: dict[tuple[str, str | None, BatchWindow, int, Accelerator], float] = {}

    @property
    def text(self) -> str:
        """The platform in the text form of the option."""
        return str(self.platform)

    def details(self, config: TrainConfig, share: float | None = None) -> dict[str, Any]:
        """Return the run's pipeline, the cycles of a BP batch without bubbles, and the peak bytes of activations."""
        name = self.best(config, share)[0]
        return {"schedule": name, "bound": self.bound(config), "kept_bytes": self.kept_bytes(name, config)}

    def run_cost(self, config: TrainConfig, share: float | None = None) -> float:
        """Return the cycles of a whole run on its best pipeline."""
        return self.best(config, share)[1]

    def best(self, config: TrainConfig, share: float | None = None) -> tuple[str, float]:
        """Return the pipeline on which a run is cheapest, and its cycles."""
        windows = Counter(self._cut(config, share))
        source = source_of(config)
        costs = {name: self._run(name, config, source, windows) for name in self.schedules(config)}
        return min(costs.items(), key=lambda item: item[1])

    def batch_costs(self, config: TrainConfig, share: float | None = None) -> list[BatchCost]:
        """Return the costs of BP batches, and the mean cost of GP batches; skipped batches are left out."""
        name, cost = self.best(config, share)
        windows = Counter(self._cut(config, share))
        source = source_of(config)
        predicted = sum(window.length * count for window, count in windows.items())
        backprop: Counter[Hashable] = Counter()
        for window, count in windows.items():
            if window.ended:
                backprop[window.variant] += count
        costs = [
            BatchCost(Phase.BP, count, self._window(name, config, source, BatchWindow(variant=variant)))
            for variant, count in backprop.items()
        ]
        rest = cost - sum(kind.batches * kind.cost for kind in costs)
        return costs + ([BatchCost(Phase.GP, predicted, rest / predicted)] if predicted else [])

    def schedules(self, config: TrainConfig) -> list[str]:
        """Return the pipelines that a run may use: the chosen one, or, for `best` and for backprop, all that fit the model."""
        if self.platform.schedule != BEST and source_of(config) is not None:
            return [self.platform.schedule]
        able = [name for name in self.candidates or PIPELINES if self._is_able(name, config)]
        return able or ["gpipe"]  # whose error explains why none fits

    def bound(self, config: TrainConfig) -> float:
        """Return the cycles of a BP batch without bubbles: the work of all stages, divided by the devices."""
        costs = self._stage_costs("gpipe", None, config)
        work = sum(
            self.platform.micro_batches * (stage.forward + stage.backward) + stage.update_bp for stage in costs.stages
        )
        return work / self.platform.devices

    def kept_bytes(self, name: str, config: TrainConfig) -> float:
        """Return the peak bytes of activations on a device; with an error broadcast, GP batches keep some too."""
        source = source_of(config)
        runs = source is not None and not source_work(source).skips
        phases = [Phase.GP] * runs + [Phase.BP]
        return max(self._dry_run(name, config, source, phases).peak_bytes)

    def _is_able(self, name: str, config: TrainConfig) -> bool:
        try:
            self._stage_costs(name, None, config)
        except OptionError:
            return False
        return True

    def _run(self, name: str, config: TrainConfig, source: str | None, windows: Counter[BatchWindow]) -> float:
        return sum(count * self._window(name, config, source, window) for window, count in windows.items())

    def _cut(self, config: TrainConfig, share: float | None) -> Iterator[BatchWindow]:
        variation, waiting, taught = batch_variation(config.method, config.method_options), 0, 0
        planned = planned_batches(config, self.epoch_length(config), workload_layout(self.workload), share)
        if share is not None:
            planned = _interleaved(list(planned))
        for plan, count in planned:
            kind = batch_kind(plan)
            if kind is Phase.GP:
                waiting += count
            elif kind is Phase.BP:
                for number in range(taught, taught + count):
                    yield BatchWindow(waiting, variant=variation.at(number))
                    waiting = 0
                taught += count
        if waiting:
            yield BatchWindow(waiting, ended=False, variant=variation.predicted)

    def _window(self, name: str, config: TrainConfig, source: str | None, window: BatchWindow) -> float:
        if window.length > LONGEST_WINDOW:
            longest, before = (
                self._window(name, config, source, replace(window, length=LONGEST_WINDOW - less)) for less in (0, 1)
            )
            return longest + (window.length - LONGEST_WINDOW) * (longest - before)
        key = (name, source, window, config.batch_size, self.accelerator.accelerator(config))
        if key not in self._windows:
            phases = [Phase.BP] + [Phase.GP] * window.length + [Phase.BP] * window.ended
            first, whole = (
                self._dry_run(name, config, source, part, window.variant).steps for part in (phases[:1], phases)
            )
            self._windows[key] = whole - first
        return self._windows[key]

    def _dry_run(
        self, name: str, config: TrainConfig, source: str | None, phases: list[Phase], variant: Hashable = None
    ) -> Timeline:
        program = generate(name, self.platform.devices, self.platform.micro_batches, phases)
        if source is not None and source_work(source).output_error:
            program = with_broadcast(program)
        return dry_run(program, self._stage_costs(name, source, config, variant))

    def _stage_costs(self, name: str, source: str | None, config: TrainConfig, variant: Hashable = None) -> Costs:
        stages = self._stages(name)
        key = (source, variant, stages, config.batch_size, self.accelerator.accelerator(config))
        if key not in self._costs:
            self._costs[key] = self._modelled(source, stages, config, variant)
        return self._costs[key]

    def _stages(self, name: str) -> int:
        if name not in self._cuts:
            program = generate(name, self.platform.devices, self.platform.micro_batches, (Phase.BP,))
            self._cuts[name] = program.stages
        return self._cuts[name]

    def _modelled(self, source: str | None, stages: int, config: TrainConfig, variant: Hashable) -> Costs:
        platform, accelerator = self.platform, self.accelerator
        layers = len(self.workload.array_layers)
        if platform.costs == MODELLED and stages > layers:
            raise OptionError(
                f"--pipeline '{platform}': {stages} stages on {platform.devices} devices are more than the {layers} layers of "
                f"'{self.workload.name}'; give fewer devices, or costs=balanced."
            )
        if config.batch_size < platform.micro_batches:
            raise OptionError(
                f"--pipeline '{platform}': a batch of {config.batch_size} samples does not split into "
                f"{platform.micro_batches} micro-batches."
            )
        samples = ceil(config.batch_size / platform.micro_batches)
        costs = modelled_costs(
            self.workload,
            accelerator.accelerator(config),
            stages if platform.costs == MODELLED else 1,
            samples,
            design="baseline" if source is None else accelerator.design,
            source=SUPPLIED if source is None or source_work(source).skips else source,
            micro_batches=platform.micro_batches,
            variant=variant,
        )
        return costs if platform.costs == MODELLED else _balanced(costs, stages)


def _balanced(costs: Costs, stages: int) -> Costs:
    (whole,) = costs.stages
    parts = {name: value and value / stages for name, value in vars(whole).items()}
    return replace(
        costs, stages=(replace(whole, **{**parts, "error_bytes": whole.error_bytes}),) * stages, bandwidth=inf
    )


def source_of(config: TrainConfig) -> str | None:
    """Return the source of a run's GP batches, None for plain backprop."""
    sources = sorted(config.schedule().sources)
    return sources[0] if sources else None


def batch_kind(plan: Plan, platform: str = "pipeline") -> Phase | None:
    """Return the phase of a batch, None if it is skipped; raise if it has predicted and true gradients."""
    if plan.default == BACKPROP and not plan.by_site:
        return Phase.BP
    if plan.default != BACKPROP and source_work(plan.default).skips and not plan.by_site:
        return None
    if plan.hold_rest and not plan.by_site and not source_work(plan.default).input_gradients:
        return Phase.GP
    raise OptionError(
        f"its schedule mixes predicted and true gradients in one batch, for which there is no {platform} cost model; choose a "
        "schedule such as 1:1."
    )


def _interleaved(planned: list[tuple[Plan, int]]) -> Iterator[tuple[Plan, int]]:
    """Yield the GP and BP batches of an adaptive schedule mixed evenly, since their order is not known."""
    (backprop, true), (predicted, count) = planned
    for index in range(true):
        yield predicted, (index + 1) * count // true - index * count // true
        yield backprop, 1
    if not true:
        yield predicted, count
