"""Pipeline parallel: every process computes some stages of the model, and the micro-batches of a batch flow through them.

What runs is a program of `adagp.pipe.generate`, validated before, or the schedule of the same name in
torch.distributed.pipelining; which process holds which stages is read from the program, so a pipeline of your own runs as
well. GP batches and the BP batch that ends their phase make a window: they flow without a pause. After a window, the
processes agree whether to save or to stop. Several pipelines may run side by side, each with its share of the samples.

Normalisation layers see micro-batches; where a stage has several copies, their running statistics are averaged.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from adagp.core.plan import Plan, Step
from adagp.errors import OptionError, TaskError
from adagp.layers.weights import is_spread, laid_like, local, part_of
from adagp.pipe.actions import INPUT_GRADIENT
from adagp.program.distributed.checkpoint import Loaded
from adagp.program.distributed.error_broadcast import last_stage_shares
from adagp.program.distributed.loop import ParallelLoop
from adagp.program.distributed.placement import CutModel, assign_stages, ordered
from adagp.program.distributed.processes import digest
from adagp.program.distributed.torch_schedules import SCHEDULES, TorchWorker
from adagp.program.distributed.updates import StageUpdates, predicts
from adagp.program.distributed.worker import Worker, as_values
from adagp.program.run.config import TrainConfig
from adagp.program.run.parallel import FSDP, ParallelLayout
from adagp.program.train.loop import Observer, to_device
from adagp.sources.base import BatchContext

LONGEST_WINDOW = 16
"""Batches that flow at most before the processes agree on anything."""


class PipelineLoop(ParallelLoop):
    """The loop of a pipeline parallel run; the first process keeps the whole model for evaluation and checkpoints."""

    def __init__(self, *arguments: Any, layout: ParallelLayout, cut: CutModel, **options: Any) -> None:
        super().__init__(*arguments, **options)
        micro_batches, name = self.config.micro_batches, layout.schedule
        self.cut, self.placement = cut, cut.placement
        shares = last_stage_shares(ordered(name, len(cut.placement.peers), micro_batches, (False,)).program)
        self.updates = StageUpdates(self.trainer, cut, micro_batches, self.task, self.rate, self.world, shares)
        self.stages = self.updates.stages
        by_torch = chosen_runtime(self.config.runtime, name) == "torch"
        self.worker = TorchWorker(name, self.updates) if by_torch else Worker(name, self.updates)
        self._elapsed = 0.0
        self._parts: list[dict[str, Any]] = []

    def _release_others(self) -> None:
        """Free the weights of stages that this process does not hold; the first one needs them, or has a whole model beside."""
        if self.world.rank > 0 or self.cut.whole is not None:
            held = {id(one) for stage in self.placement.local for one in self.stages[stage].parameters}
            others = [one for one in self.trainer.model.parameters() if id(one) not in held]
            release(others)
            for one in others:
                self.trainer.optimizer.state.pop(one, None)

    def _batches(self, epoch: int, observer: Observer) -> Iterator[None]:
        self._release_others()
        batches = self.task.batches(epoch, self.trainer.at.batch)
        while True:
            before = time.perf_counter()
            plans = self._window(epoch)
            samples = [to_device(self._fitting(one), self.device) for one in islice(batches, len(plans))]
            if not samples:
                return
            self.meter.add_seconds("data", time.perf_counter() - before)
            # A window has one BP batch at most, its last: what sources draw is for that one.
            step = Step(epoch, self.trainer.at.batch + len(plans) - 1)
            last = BatchContext(step, measured=not predicts(plans[-1]) and self.trainer.quality.due())
            for source in self.trainer.sources.values():
                source.begin(last)
            start = time.perf_counter()
            results = self.worker.train(plans, samples)
            self._elapsed += time.perf_counter() - start
            for plan, sums in zip(plans, results, strict=True):
                at = self.trainer.at
                self.meter.add(plan.phase, sums.loss, sums.right, sums.answers, sums.seconds, guarded=False)
                self.trainer.advance()
                self._tell(observer, at, plan.phase)
            self.world.add_up([self.make_requests()], "requests")
            self.check_copies(self._copies)
            yield

    def _fitting(self, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return a batch; refuse one that is not made of micro-batches as the stages were cut for."""
        parts = self.config.micro_batches * self.placement.replicas
        for given, known in zip(as_values(batch[0]), self.stages[0].inputs, strict=True):
            expected = (len(known) * parts, *known.shape[1:])
            if given.shape != expected:
                raise TaskError(
                    f"a batch has inputs of shape {tuple(given.shape)}, the first one had {expected}: a pipeline needs batches "
                    "of one shape (Task.fix_shapes)."
                )
        return batch

    def _window(self, epoch: int) -> list[Plan]:
        """Return the plans of the coming batches: GP batches up to the next BP batch, or to the end of the epoch."""
        plans: list[Plan] = []
        length = self.trainer.epoch_length(epoch)
        place = self.trainer.at.batch if self.trainer.at.epoch == epoch else length
        for batch in range(place, min(place + LONGEST_WINDOW, length)):
            plans.append(self.trainer.schedule.plan(Step(epoch, batch)))
            if plans[-1].held or plans[-1].hold_rest != predicts(plans[-1]):
                raise OptionError(
                    "a pipeline has a whole backward pass in a batch or none; this schedule has one that stops half-way."
                )
            if not predicts(plans[-1]):
                break
        return plans

    def _end_epoch(self, epoch: int) -> dict[str, Any]:
        self._reduce_meter(1.0)
        self.collect()
        return super()._end_epoch(epoch)

    def _extra(self) -> dict[str, Any]:
        updates = self.updates
        numbers = torch.tensor([updates.busy, self._elapsed, updates.refused], dtype=torch.float64)
        self.world.add_up([numbers], "metrics")
        busy, elapsed, refused = numbers.tolist()
        updates.busy, self._elapsed, updates.refused = 0.0, 0.0, 0
        share = 1 - busy / elapsed if elapsed else 0.0
        return super()._extra() | {"bubble_share": share, "refused_updates": round(refused)}

    # What is spread over the processes, and brought together in the first one.

    def _names(self) -> set[str]:
        """Return the names of the model's parameters and buffers that this process holds."""
        held = {id(one) for stage in self.placement.local for one in self.stages[stage].tensors}
        return {name for name, one in self.trainer.model.state_dict(keep_vars=True).items() if id(one) in held}

    def spread(self, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the first process's state but for weights and their optimizer's state, which each writes of its stages."""
        optimizer = state.pop("optimizer")
        common = state | {"optimizer": optimizer | {"state": {}}, "model": {}} if self.world.rank == 0 else {}
        return without_shards(common), {"held": self._held()}

    def collected(self, found: Loaded) -> dict[str, Any]:
        """Return the state of all stages together."""
        state = dict(found.common)
        held = self._by_stages(part["held"] for part in found.own if "held" in part)
        if held:
            model, optimizer = self.trainer.model.state_dict(), dict(state["optimizer"])
            optimizer["state"] = {}
            for part in held:
                model |= part["model"]
                optimizer["state"] |= part["optimizer"]
            state |= {"model": model, "optimizer": optimizer}
        self._parts = held
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the joint state, and each stage's figures."""
        if self.cut.whole is not None:
            self.cut.whole.load_state_dict(state["model"])
        super().load_state_dict(laid_out(state, self.trainer.model))
        for part in self._parts:
            self._adopt(part)

    @property
    def whole_model(self) -> nn.Module:
        """The model that is evaluated; of one whose weights are spread, one beside it."""
        return self.trainer.model if self.cut.whole is None else self.cut.whole

    def collect(self) -> None:
        """Bring weights, norms and quality figures of all stages together in the first process."""
        gives = self.placement.spread or (self.world.rank > 0 and self.placement.replica == 0)
        parts = self.world.gather(to_device(self._held(), torch.device("cpu")) if gives else None)
        if self.world.rank == 0:
            for part in self._by_stages(one for one in parts if one is not None):
                self.whole_model.load_state_dict(part["model"], strict=False)
                self._adopt(part)

    def _by_stages(self, parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return what processes hold, once for each of the stages: put together, where their weights are spread."""
        found: dict[tuple[int, ...], list[dict[str, Any]]] = {}
        for part in parts:
            found.setdefault(tuple(part["sites"]), []).append(part)
        return [joined(alike) for alike in found.values()]

    def _held(self) -> dict[str, Any]:
        trainer = self.trainer
        names = self._names()
        sites = [site.index for stage in self.placement.local for site in self.stages[stage].sites]
        places = [place for place, (name, _) in enumerate(trainer.model.named_parameters()) if name in names]
        state = trainer.optimizer.state_dict()["state"]
        held = {
            "model": {name: value for name, value in trainer.model.state_dict().items() if name in names},
            "optimizer": {place: state[place] for place in places if place in state},
            "sites": sites,
            "norms": trainer.norms.state_dict(),
            "quality": _of_sites(trainer.quality.state_dict(), sites),
            "sources": [source.site_state(sites) for source in self.updates.sources],
        }
        found: dict[str, Any] = as_parts(held)
        return found

    def _adopt(self, part: dict[str, Any]) -> None:
        """Take over the figures of some stages."""
        trainer = self.trainer
        for keeper, name in ((trainer.norms, "norms"), (trainer.quality, "quality")):
            state = keeper.state_dict()
            for field, value in part[name].items():
                if isinstance(value, Tensor):
                    state[field][part["sites"]] = value[part["sites"]]
                elif isinstance(value, dict):
                    state[field] |= value
            keeper.load_state_dict(state)
        # Older checkpoints have "feedback", with a part of each source that has states by site.
        for source, state in zip(self.updates.sources, part.get("sources", part.get("feedback", [])), strict=False):
            source.load_site_state(state)

    def _copies(self) -> dict[str, str]:
        copies = {f"stage {stage}": digest(tensors_in(self.stages[stage].tensors)) for stage in self.placement.local}
        copies |= {name: digest(tied) for name, tied in self.cut.tied.copies()}
        for name, source in zip(self.trainer.sources, self.updates.sources, strict=True):
            for stage in self.placement.local:
                learned = source.site_state([site.index for site in self.stages[stage].sites])
                copies[f"{name} in stage {stage}"] = digest(tensors_in(learned))
        return copies | {"the predictor": digest(self._replicated())}


def check_pipeline(config: TrainConfig, layout: ParallelLayout, devices: int) -> None:
    """Refuse a run that no pipeline of `devices` processes can do."""
    name = layout.schedule
    runtime = chosen_runtime(config.runtime, name)
    _, holders = assign_stages(name, devices, config.micro_batches)
    if FSDP not in layout.kinds:
        return
    if len(set(holders)) < len(holders):
        raise OptionError(
            f"--parallel {layout}: in pipeline '{name}' two processes of one pipeline hold the same stage, each for its own "
            "micro-batches; fsdp adds up gradients between pipelines alone. Use data in the place of fsdp."
        )
    program = ordered(name, devices, config.micro_batches, (False,)).program
    if runtime == "programs" and any(action.kind == INPUT_GRADIENT for row in program.devices for action in row):
        raise OptionError(
            f"--parallel {layout}: pipeline '{name}' takes the gradients of weights apart from the backward pass, at the end "
            "of which fsdp adds them up. Use another pipeline, or data in the place of fsdp."
        )


def chosen_runtime(wanted: str, pipeline: str) -> str:
    """Return what runs a pipeline, `programs` or `torch`; refuse one that torch does not have."""
    if wanted == "torch" and pipeline not in SCHEDULES:
        raise OptionError(
            f"torch has no schedule for the pipeline '{pipeline}', only for {', '.join(SCHEDULES)}; leave out --runtime."
        )
    return "programs" if wanted == "auto" else wanted


def _of_sites(state: dict[str, Any], sites: Collection[int]) -> dict[str, Any]:
    """Return figures with those of some sites alone, where they are kept by site: the first process has others' as well."""
    return {
        name: {site: value for site, value in one.items() if site in sites} if isinstance(one, dict) else one
        for name, one in state.items()
    }


def tensors_in(state: Any) -> Iterator[Tensor]:
    """Yield the tensors in lists and nested dictionaries, in the order of their keys, but for spread ones."""
    if isinstance(state, Tensor):
        yield from () if is_spread(state) else (state,)
    elif isinstance(state, list):
        for one in state:
            yield from tensors_in(one)
    elif isinstance(state, dict):
        for key in sorted(state, key=str):
            yield from tensors_in(state[key])


_PART, _ROWS = "first row of a part", "rows"


def without_shards(state: Any) -> Any:
    """Return a nested state without its spread tensors."""
    if isinstance(state, dict):
        return {key: without_shards(one) for key, one in state.items() if not is_spread(one)}
    return state


def as_parts(state: Any) -> Any:
    """Return a nested state with the part held here in the place of each spread tensor, and a note which one it is."""
    if is_spread(state):
        return {_PART: part_of(state).rows.start, _ROWS: local(state)}
    if isinstance(state, dict):
        return {key: as_parts(one) for key, one in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(as_parts(one) for one in state)
    return state


def joined(states: Sequence[Any]) -> Any:
    """Return the state whose parts several processes have; what they have alike is taken from the first."""
    first = states[0]
    if isinstance(first, dict):
        if _PART in first:
            return torch.cat([one[_ROWS] for one in sorted(states, key=lambda one: int(one[_PART]))])
        return {key: joined([one[key] for one in states if key in one]) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(joined(values) for values in zip(*states, strict=True))
    return first


def laid_out(state: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Return a loop's state with weights, and what the optimizer keeps of each, spread as those of `model` are."""
    own = model.state_dict()
    weights = {name: laid_like(one, own[name]) if name in own else one for name, one in state["model"].items()}
    parameters = list(model.parameters())
    kept = {place: _like(moments, parameters[place]) for place, moments in state["optimizer"]["state"].items()}
    return {**state, "model": weights, "optimizer": state["optimizer"] | {"state": kept}}


def _like(moments: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    return {
        name: laid_like(one, parameter) if isinstance(one, Tensor) and one.shape == parameter.shape else one
        for name, one in moments.items()
    }


def release(parameters: Iterable[Tensor]) -> None:
    """Free the memory of `parameters`, which keep their shape: one zero stands for all their numbers."""
    for one in parameters:
        one.data = one.data.new_zeros(()).expand(one.shape)
