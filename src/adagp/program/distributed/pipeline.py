"""Pipeline parallel: every process computes some stages of the model, and the micro-batches of a batch flow through them.

A pipeline runs a validated program of `adagp.pipe.generate`, or the schedule of the same name in
torch.distributed.pipelining; which process holds which stages is read from the program, so user-defined pipelines run as
well. GP batches and the BP batch that ends their phase make a window, through which micro-batches flow without a bubble. After
a window, the processes agree whether to save or to stop. Several pipelines may run next to each other, each with its share of
the samples.

Normalisation layers see micro-batches; if a stage has several copies, their running statistics are averaged.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from adagp.core.plan import Plan, Step
from adagp.errors import OptionError, TaskError
from adagp.layers.weights import is_sharded, local, shard_of, sharded_like
from adagp.pipe.actions import INPUT_GRADIENT
from adagp.program.distributed.checkpoint import Loaded
from adagp.program.distributed.error_broadcast import last_stage_shares
from adagp.program.distributed.loop import ParallelLoop
from adagp.program.distributed.placement import CutModel, assign_stages, program_order
from adagp.program.distributed.processes import digest
from adagp.program.distributed.torch_schedules import SCHEDULES, TorchWorker
from adagp.program.distributed.updates import StageUpdates, predicts
from adagp.program.distributed.worker import Worker, as_values
from adagp.program.run.config import TrainConfig
from adagp.program.run.parallel import FSDP, ParallelLayout
from adagp.program.train.loop import Observer, to_device
from adagp.sources.base import BatchContext

LONGEST_WINDOW = 16
"""Most batches in a window."""


class PipelineLoop(ParallelLoop):
    """The loop of a pipeline parallel run; the first process has the whole model for evaluation and checkpoints."""

    def __init__(self, *arguments: Any, layout: ParallelLayout, cut: CutModel, **options: Any) -> None:
        super().__init__(*arguments, **options)
        micro_batches, name = self.config.micro_batches, layout.schedule
        self.cut, self.placement = cut, cut.placement
        shares = last_stage_shares(program_order(name, len(cut.placement.peers), micro_batches, (False,)).program)
        self.updates = StageUpdates(self.trainer, cut, micro_batches, self.task, self.rate, self.world, shares)
        self.stages = self.updates.stages
        by_torch = chosen_runtime(self.config.runtime, name) == "torch"
        self.worker = TorchWorker(name, self.updates) if by_torch else Worker(name, self.updates)
        self._elapsed = 0.0
        self._parts: list[dict[str, Any]] = []

    def _release_others(self) -> None:
        """Free the weights of other processes' stages; the first process needs them if it has no other whole model."""
        if self.world.rank > 0 or self.cut.whole is not None:
            stage_parameters = {
                id(parameter) for stage in self.placement.local for parameter in self.stages[stage].parameters
            }
            others = [
                parameter for parameter in self.trainer.model.parameters() if id(parameter) not in stage_parameters
            ]
            release(others)
            for parameter in others:
                self.trainer.optimizer.state.pop(parameter, None)

    def _batches(self, epoch: int, observer: Observer) -> Iterator[None]:
        self._release_others()
        batches = self.task.batches(epoch, self.trainer.at.batch)
        while True:
            started = time.perf_counter()
            plans = self._window(epoch)
            samples = [to_device(self._with_fixed_shape(batch), self.device) for batch in islice(batches, len(plans))]
            if not samples:
                return
            self.meter.add_seconds("data", time.perf_counter() - started)
            # A window has at most one BP batch, its last: sources draw random numbers for that step.
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
                self._notify(observer, at, plan.phase)
            self.world.all_reduce([self.make_requests()], "requests")
            self.check_copies(self._copies)
            yield

    def _with_fixed_shape(self, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return a batch; raise TaskError if its shape is not the one that the stages were cut for."""
        parts = self.config.micro_batches * self.placement.replicas
        for tensor, micro_batch in zip(as_values(batch[0]), self.stages[0].inputs, strict=True):
            expected = (len(micro_batch) * parts, *micro_batch.shape[1:])
            if tensor.shape != expected:
                raise TaskError(
                    f"a batch has inputs of shape {tuple(tensor.shape)}, the first one had {expected}: a pipeline needs "
                    "batches of one shape (Task.fix_shapes)."
                )
        return batch

    def _window(self, epoch: int) -> list[Plan]:
        """Return the plans of the coming batches: GP batches up to the next BP batch, or to the end of the epoch."""
        plans: list[Plan] = []
        length = self.trainer.epoch_length(epoch)
        start = self.trainer.at.batch if self.trainer.at.epoch == epoch else length
        for batch in range(start, min(start + LONGEST_WINDOW, length)):
            plans.append(self.trainer.schedule.plan(Step(epoch, batch)))
            if plans[-1].frozen or plans[-1].hold_rest != predicts(plans[-1]):
                raise OptionError(
                    "a pipeline runs the whole backward pass of a batch or none; in this schedule it stops half-way."
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
        numbers = torch.tensor([updates.busy, self._elapsed, updates.rejected], dtype=torch.float64)
        self.world.all_reduce([numbers], "metrics")
        busy, elapsed, rejected = numbers.tolist()
        updates.busy, self._elapsed, updates.rejected = 0.0, 0.0, 0
        share = 1 - busy / elapsed if elapsed else 0.0
        return super()._extra() | {"bubble_share": share, "rejected_updates": round(rejected)}

    # State that is distributed over the processes, and collected in the first one.

    def _names(self) -> set[str]:
        stage_tensors = {id(tensor) for stage in self.placement.local for tensor in self.stages[stage].tensors}
        return {
            name
            for name, tensor in self.trainer.model.state_dict(keep_vars=True).items()
            if id(tensor) in stage_tensors
        }

    def split_state(self, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the first process's state, but for weights and optimizer state, which each process writes for its stages."""
        optimizer = state.pop("optimizer")
        common = state | {"optimizer": optimizer | {"state": {}}, "model": {}} if self.world.rank == 0 else {}
        return without_shards(common), {"held": self._stage_parts()}

    def merged_state(self, loaded: Loaded) -> dict[str, Any]:
        """Return the state of all stages together."""
        state = dict(loaded.common)
        parts = self._by_stages(part["held"] for part in loaded.own if "held" in part)
        if parts:
            model, optimizer = self.trainer.model.state_dict(), dict(state["optimizer"])
            optimizer["state"] = {}
            for part in parts:
                model |= part["model"]
                optimizer["state"] |= part["optimizer"]
            state |= {"model": model, "optimizer": optimizer}
        self._parts = parts
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the common state, and what processes had of their stages."""
        if self.cut.whole is not None:
            self.cut.whole.load_state_dict(state["model"])
        super().load_state_dict(sharded_state(state, self.trainer.model))
        for part in self._parts:
            self._adopt(part)

    @property
    def whole_model(self) -> nn.Module:
        """The model to evaluate: the trained one, or if that is sharded, another one."""
        return self.trainer.model if self.cut.whole is None else self.cut.whole

    def collect(self) -> None:
        """Collect weights, norms, quality metrics and source states of all stages in the first process."""
        sends = self.placement.sharded or (self.world.rank > 0 and self.placement.replica == 0)
        parts = self.world.gather(to_device(self._stage_parts(), torch.device("cpu")) if sends else None)
        if self.world.rank == 0:
            for part in self._by_stages(part for part in parts if part is not None):
                self.whole_model.load_state_dict(part["model"], strict=False)
                self._adopt(part)

    def _by_stages(self, parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return what processes hold, once for each set of stages; sharded tensors are joined."""
        copies: dict[tuple[int, ...], list[dict[str, Any]]] = {}
        for part in parts:
            copies.setdefault(tuple(part["sites"]), []).append(part)
        return [joined(shards) for shards in copies.values()]

    def _stage_parts(self) -> dict[str, Any]:
        trainer = self.trainer
        names = self._names()
        sites = [site.index for stage in self.placement.local for site in self.stages[stage].sites]
        indices = [index for index, (name, _) in enumerate(trainer.model.named_parameters()) if name in names]
        state = trainer.optimizer.state_dict()["state"]
        state_of_stages = {
            "model": {name: value for name, value in trainer.model.state_dict().items() if name in names},
            "optimizer": {index: state[index] for index in indices if index in state},
            "sites": sites,
            "norms": trainer.norms.state_dict(),
            "quality": _of_sites(trainer.quality.state_dict(), sites),
            "sources": [source.site_state(sites) for source in self.updates.sources],
        }
        parts: dict[str, Any] = as_parts(state_of_stages)
        return parts

    def _adopt(self, part: dict[str, Any]) -> None:
        trainer = self.trainer
        for statistic, name in ((trainer.norms, "norms"), (trainer.quality, "quality")):
            state = statistic.state_dict()
            for field, value in part[name].items():
                if isinstance(value, Tensor):
                    state[field][part["sites"]] = value[part["sites"]]
                elif isinstance(value, dict):
                    state[field] |= value
            statistic.load_state_dict(state)
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
    """Raise OptionError if no pipeline of `devices` processes can do the run."""
    name = layout.schedule
    runtime = chosen_runtime(config.runtime, name)
    _, holders = assign_stages(name, devices, config.micro_batches)
    if FSDP not in layout.kinds:
        return
    if len(set(holders)) < len(holders):
        raise OptionError(
            f"--parallel {layout}: in pipeline '{name}' two processes of one pipeline hold the same stage, each for its own "
            "micro-batches; fsdp sums gradients only between pipelines. Use data instead of fsdp."
        )
    program = program_order(name, devices, config.micro_batches, (False,)).program
    if runtime == "programs" and any(action.kind == INPUT_GRADIENT for row in program.devices for action in row):
        raise OptionError(
            f"--parallel {layout}: pipeline '{name}' computes weight gradients separately from the backward pass, at the end "
            "of which fsdp sums them. Use another pipeline, or data instead of fsdp."
        )


def chosen_runtime(runtime: str, pipeline: str) -> str:
    """Return the runtime of a pipeline, `programs` or `torch`; raise OptionError if torch does not have the pipeline."""
    if runtime == "torch" and pipeline not in SCHEDULES:
        raise OptionError(
            f"torch has no schedule for the pipeline '{pipeline}', only for {', '.join(SCHEDULES)}; leave out --runtime."
        )
    return "programs" if runtime == "auto" else runtime


def _of_sites(state: dict[str, Any], sites: Collection[int]) -> dict[str, Any]:
    """Return a state whose dicts by site have the entries of some sites only: the first process has others, too."""
    return {
        name: {site: value for site, value in entry.items() if site in sites} if isinstance(entry, dict) else entry
        for name, entry in state.items()
    }


def tensors_in(state: Any) -> Iterator[Tensor]:
    """Yield the tensors in lists and nested dictionaries, in the order of their keys, without sharded ones."""
    if isinstance(state, Tensor):
        yield from () if is_sharded(state) else (state,)
    elif isinstance(state, list):
        for entry in state:
            yield from tensors_in(entry)
    elif isinstance(state, dict):
        for key in sorted(state, key=str):
            yield from tensors_in(state[key])


_PART, _ROWS = "first row of a part", "rows"


def without_shards(state: Any) -> Any:
    """Return a nested state without its sharded tensors."""
    if isinstance(state, dict):
        return {key: without_shards(value) for key, value in state.items() if not is_sharded(value)}
    return state


def as_parts(state: Any) -> Any:
    """Return a nested state with each sharded tensor replaced by this process's shard and its first row."""
    if is_sharded(state):
        return {_PART: shard_of(state).rows.start, _ROWS: local(state)}
    if isinstance(state, dict):
        return {key: as_parts(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(as_parts(value) for value in state)
    return state


def joined(states: Sequence[Any]) -> Any:
    """Join the `as_parts` of several processes to the whole state; what is not sharded is taken from the first."""
    first = states[0]
    if isinstance(first, dict):
        if _PART in first:
            return torch.cat([part[_ROWS] for part in sorted(states, key=lambda part: int(part[_PART]))])
        return {key: joined([state[key] for state in states if key in state]) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(joined(values) for values in zip(*states, strict=True))
    return first


def sharded_state(state: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Return a loop's state with weights, and their optimizer states, sharded like those of `model`."""
    model_state = model.state_dict()
    weights = {
        name: sharded_like(value, model_state[name]) if name in model_state else value
        for name, value in state["model"].items()
    }
    parameters = list(model.parameters())
    moments = {index: _like(values, parameters[index]) for index, values in state["optimizer"]["state"].items()}
    return {**state, "model": weights, "optimizer": state["optimizer"] | {"state": moments}}


def _like(moments: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    return {
        name: sharded_like(value, parameter) if isinstance(value, Tensor) and value.shape == parameter.shape else value
        for name, value in moments.items()
    }


def release(parameters: Iterable[Tensor]) -> None:
    """Free the memory of `parameters`, which keep their shape: they become an expanded zero."""
    for parameter in parameters:
        parameter.data = parameter.data.new_zeros(()).expand(parameter.shape)
