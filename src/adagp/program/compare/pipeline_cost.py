"""What runs cost on a modelled pipeline of accelerators, in cycles: dry runs of the pipeline's own programs.

A run is cut into windows: GP batches and the BP batch after them. A window's cost is what it adds after a BP batch, so that
batches may overlap as far as the pipeline's rule of weights lets them. Plain backprop gets the best of all exact pipelines,
without any predictor. Methods get the pipeline that was asked for, `best` being the one on which the run is cheapest.
A source that needs the error at the model's output has it broadcast to all stages, which wait for it.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any

from adagp.core.methods import batch_variation
from adagp.core.plan import BACKPROP, Phase, Plan
from adagp.errors import OptionError, unknown_name
from adagp.hw import Accelerator, Workload
from adagp.hw.layout import workload_layout
from adagp.hw.stages import SUPPLIED, source_work
from adagp.pipe import PIPELINES, Costs, Timeline, generate, simulate, with_broadcast
from adagp.pipe.modelled import modelled_costs
from adagp.program.compare.accelerator_cost import AcceleratorPlatform, BatchCost
from adagp.program.compare.methods import planned_batches
from adagp.program.run.config import TrainConfig

BEST = "best"
"""The pipeline on which the run is cheapest."""
MODELLED, BALANCED = "modelled", "balanced"
"""Where costs come from: layers as they are, cut between two of them; or the same work, divided equally among the stages."""
_FORM = "write for example dapple,devices=4,micro-batches=4 or best,devices=8,micro-batches=8,costs=balanced"


@dataclass(frozen=True)
class BatchWindow:
    """GP batches, and the BP batch that ends them, if one does; `variant` is what the source's cost functions get for it."""

    length: int = 0
    ended: bool = True
    variant: Hashable = None


LONGEST_WINDOW = 12
"""GP batches of a window that are dry-run; each one more adds what the last one added."""


@dataclass(frozen=True)
class PipelinePlatform:
    """A pipeline by the text form of `--pipeline`."""

    schedule: str = BEST
    devices: int = 4
    micro_batches: int = 4
    costs: str = MODELLED

    def __str__(self) -> str:
        text = f"{self.schedule},devices={self.devices},micro-batches={self.micro_batches}"
        return text if self.costs == MODELLED else f"{text},costs={self.costs}"


def parse_pipeline(text: str) -> PipelinePlatform:
    """Return the platform that `text` names; what it does not name has its default."""
    found: dict[str, str | int] = {}
    for word in (part.strip() for part in text.split(",")):
        name, equals, value = (part.strip() for part in word.partition("="))
        key = name.replace("-", "_") if equals else "schedule"
        if (
            key in found
            or key not in ("schedule", "devices", "micro_batches", "costs")
            or not (word and (value or not equals))
        ):
            raise OptionError(f"cannot read '{word}' in --pipeline '{text}'; {_FORM}.")
        found[key] = _count(text, word, value) if key in ("devices", "micro_batches") else value or name
    platform = PipelinePlatform(**found)  # type: ignore[arg-type]  # each has the type of its name
    if platform.schedule != BEST and platform.schedule not in PIPELINES:
        raise unknown_name("pipeline", platform.schedule, [BEST, *PIPELINES])
    if platform.costs not in (MODELLED, BALANCED):
        raise unknown_name("costs of a pipeline", platform.costs, (MODELLED, BALANCED))
    return platform


def _count(text: str, word: str, value: str) -> int:
    if not (value.isdecimal() and 1 <= int(value) <= 4096):
        raise OptionError(f"cannot read '{word}' in --pipeline '{text}'; give a whole number from 1 to 4096.")
    return int(value)


class PipelineCost:
    """Cycles of runs on a pipeline; every window is dry-run once. The best one is of `candidates`, if there are any."""

    def __init__(
        self,
        platform: PipelinePlatform,
        accelerator: AcceleratorPlatform,
        workload: Workload,
        batches_per_epoch: int,
        candidates: Sequence[str] = (),
    ) -> None:
        self.platform, self.accelerator, self.candidates = platform, accelerator, candidates
        self.workload, self.batches_per_epoch = workload, batches_per_epoch
        self._cuts: dict[str, int] = {}
        self._costs: dict[tuple[str | None, Hashable, int, int, Accelerator], Costs] = {}
        self._windows: dict[tuple[str, str | None, BatchWindow, int, Accelerator], float] = {}

    @property
    def text(self) -> str:
        """The platform in the form in which users name it."""
        return str(self.platform)

    def details(self, config: TrainConfig, share: float | None = None) -> dict[str, Any]:
        """Return the pipeline that a run uses, what a batch by backprop would cost without any bubble, and the most bytes of
        activations that a device keeps.
        """
        name = self.best(config, share)[0]
        return {"schedule": name, "bound": self.bound(config), "kept_bytes": self.kept_bytes(name, config)}

    def run_cost(self, config: TrainConfig, share: float | None = None) -> float:
        """Return the cycles of a whole run on the best pipeline that it may use."""
        return self.best(config, share)[1]

    def best(self, config: TrainConfig, share: float | None = None) -> tuple[str, float]:
        """Return the pipeline that a run uses, and its cycles."""
        windows = Counter(self._cut(config, share))
        source = source_of(config)
        costs = {name: self._run(name, config, source, windows) for name in self.schedules(config)}
        return min(costs.items(), key=lambda item: item[1])

    def batch_costs(self, config: TrainConfig, share: float | None = None) -> list[BatchCost]:
        """Return what BP batches cost, and what GP batches cost on average; batches that are not trained on are left out."""
        name, cost = self.best(config, share)
        windows = Counter(self._cut(config, share))
        source = source_of(config)
        predicted = sum(window.length * count for window, count in windows.items())
        backprop: Counter[Hashable] = Counter()
        for window, count in windows.items():
            if window.ended:
                backprop[window.variant] += count
        found = [
            BatchCost(Phase.BP, count, self._window(name, config, source, BatchWindow(variant=variant)))
            for variant, count in backprop.items()
        ]
        rest = cost - sum(one.batches * one.cost for one in found)
        return found + ([BatchCost(Phase.GP, predicted, rest / predicted)] if predicted else [])

    def schedules(self, config: TrainConfig) -> list[str]:
        """Return the pipelines that a run may use: the one that was asked for, or all that the devices and the model allow.

        Backprop may use all of them.
        """
        if self.platform.schedule != BEST and source_of(config) is not None:
            return [self.platform.schedule]
        able = [name for name in self.candidates or PIPELINES if self._is_able(name, config)]
        return able or ["gpipe"]  # which says why

    def bound(self, config: TrainConfig) -> float:
        """Return the cycles of a batch by backprop without any bubble: all stages' work, shared equally by the devices."""
        costs = self._stage_costs("gpipe", None, config)
        work = sum(self.platform.micro_batches * (one.forward + one.backward) + one.update_bp for one in costs.stages)
        return work / self.platform.devices

    def kept_bytes(self, name: str, config: TrainConfig) -> float:
        """Return the most bytes of activations that a device keeps at a time; with an error broadcast in GP batches, too."""
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
        """Yield the windows of a run."""
        variation, waiting, taught = batch_variation(config.method, config.method_options), 0, 0
        planned = planned_batches(config, self.batches_per_epoch, workload_layout(self.workload), share)
        if share is not None:
            planned = _spread(list(planned))
        for plan, count in planned:
            kind = _kind(plan)
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
                self._window(name, config, source, replace(window, length=LONGEST_WINDOW - one)) for one in (0, 1)
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
        return simulate(program, self._stage_costs(name, source, config, variant))

    def _stage_costs(self, name: str, source: str | None, config: TrainConfig, variant: Hashable = None) -> Costs:
        stages = self._stages(name)
        key = (source, variant, stages, config.batch_size, self.accelerator.accelerator(config))
        if key not in self._costs:
            self._costs[key] = self._modelled(source, stages, config, variant)
        return self._costs[key]

    def _stages(self, name: str) -> int:
        """Return the parts that a pipeline cuts the model into."""
        if name not in self._cuts:
            program = generate(name, self.platform.devices, self.platform.micro_batches, (Phase.BP,))
            self._cuts[name] = program.stages
        return self._cuts[name]

    def _modelled(self, source: str | None, stages: int, config: TrainConfig, variant: Hashable) -> Costs:
        platform, place = self.platform, self.accelerator
        layers = len(self.workload.array_layers)
        if platform.costs == MODELLED and stages > layers:
            raise OptionError(
                f"--pipeline '{platform}': {stages} stages on {platform.devices} devices are more than the {layers} layers of "
                f"'{self.workload.name}'; give fewer devices, or costs=balanced."
            )
        samples = ceil(config.batch_size / platform.micro_batches)
        costs = modelled_costs(
            self.workload,
            place.accelerator(config),
            stages if platform.costs == MODELLED else 1,
            samples,
            design="baseline" if source is None else place.design,
            source=SUPPLIED if source is None or source_work(source).skips else source,
            micro_batches=platform.micro_batches,
            variant=variant,
        )
        return costs if platform.costs == MODELLED else _balanced(costs, stages)


def _balanced(costs: Costs, stages: int) -> Costs:
    """Return the work of one stage shared equally by `stages`."""
    (whole,) = costs.stages
    parts = {name: value and value / stages for name, value in vars(whole).items()}
    return replace(
        costs, stages=(replace(whole, **{**parts, "error_bytes": whole.error_bytes}),) * stages, bandwidth=inf
    )


def source_of(config: TrainConfig) -> str | None:
    """Return the source of a run's GP batches, None for plain backprop."""
    sources = sorted(config.schedule().sources)
    return sources[0] if sources else None


def _kind(plan: Plan) -> Phase | None:
    """Return the phase of a batch in a pipeline: BP, GP, or none if it is not run at all."""
    if plan.default == BACKPROP and not plan.by_site:
        return Phase.BP
    if plan.default != BACKPROP and source_work(plan.default).skips and not plan.by_site:
        return None
    if plan.hold_rest and not plan.by_site and not source_work(plan.default).input_gradients:
        return Phase.GP
    raise OptionError(
        "its schedule takes some layers from a source and others by backprop in one batch, which the pipeline regime does not "
        "cost; give it a schedule such as 1:1."
    )


def _spread(planned: list[tuple[Plan, int]]) -> Iterator[tuple[Plan, int]]:
    """Yield GP and BP batches of an adaptive schedule as evenly mixed as they can be, since nobody knows their order."""
    (backprop, true), (predicted, count) = planned
    for place in range(true):
        yield predicted, (place + 1) * count // true - place * count // true
        yield backprop, 1
    if not true:
        yield predicted, count
