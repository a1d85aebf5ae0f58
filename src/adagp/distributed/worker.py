"""One process of a pipeline: it does the actions of its device one after the other, and exchanges data with the others."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor

from adagp.distributed.processes import World
from adagp.distributed.stages import ModelStage
from adagp.engine.batch import Batch
from adagp.engine.hooks import Listeners
from adagp.engine.trainer import Trainer
from adagp.pipe.actions import BACKWARD, FORWARD, UPDATE, Action
from adagp.pipe.generate import generate
from adagp.pipe.order import Order
from adagp.plan import Phase, Plan, Step
from adagp.sources.support.learned import LearnedSource
from adagp.tasks.base import Task
from adagp.train.rates import Rate

AHEAD = 3
"""Actions for which the input is awaited in advance, so that a neighbour's sending overlaps with our work."""


@dataclass
class BatchSums:
    """What a process saw of a batch: its share of the mean loss, of the right answers and of the answers; and the time."""

    loss: float = 0.0
    right: float = 0.0
    answers: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class StagePlacement:
    """The stages `local` that a process holds, and `partners`: the process group of all that hold the same, if several do."""

    local: tuple[int, ...]
    copies: int = 1
    partners: dist.ProcessGroup | None = None


@dataclass
class _Window:
    """Batches under way: their samples, results that are still needed, transfers that have not ended."""

    plans: Sequence[Plan]
    samples: Sequence[tuple[Tensor, Tensor]]
    sums: list[BatchSums]
    kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    arriving: dict[Action, tuple[dist.Work, Tensor]] = field(default_factory=dict)
    leaving: list[tuple[dist.Work, Tensor]] = field(default_factory=list)
    here: dict[Action, Tensor] = field(default_factory=dict)


@dataclass
class Worker:
    """Does the actions of the device number `world.rank`: forwards, backwards and updates of the stages placed on it.

    The guard refuses for a stage alone: a common answer would make every stage wait for the last one. `refused` counts the
    refusals; `busy` is the time spent working, not waiting, in seconds.
    """

    pipeline: str
    trainer: Trainer
    stages: Sequence[ModelStage]
    placement: StagePlacement
    micro_batches: int
    task: Task
    rate: Rate
    world: World
    busy: float = 0.0
    refused: int = 0

    def __post_init__(self) -> None:
        self._updated: set[int] = set()
        self.learners = [source for source in self.trainer.sources.values() if isinstance(source, LearnedSource)]
        for source in self.learners:
            source.learner.on_gradients = self._add_up_predictor

    def train(self, plans: Sequence[Plan], samples: Sequence[tuple[Tensor, Tensor]]) -> list[BatchSums]:
        """Train the coming batches with `samples` (inputs and targets), each under its plan; the trainer does not advance."""
        order = ordered(self.pipeline, self.world.size, self.micro_batches, tuple(plan.hold_rest for plan in plans))
        state = _Window(plans, samples, [BatchSums() for _ in plans])
        actions = order.program.devices[self.world.rank]
        before = time.perf_counter()
        for place, action in enumerate(actions):
            for coming in actions[place : place + AHEAD]:
                self._await(order, state, coming)
            batch = order.program.batch_of(action)
            self.world.phase = str(plans[batch].phase)
            self._do(order, state, action, batch)
            now = time.perf_counter()
            state.sums[batch].seconds += now - before
            before = now
        for work, _ in state.leaving:
            work.wait()
        return state.sums

    def _do(self, order: Order, state: _Window, action: Action, batch: int) -> None:
        stage, kind, number = action
        if kind == UPDATE:
            self._update(stage, batch, state.plans[batch])
            return
        value = self._arrived(state, action)
        start = time.perf_counter()
        up = kind == FORWARD
        result = self._forward(state, action, batch, value) if up else self._backward(state, action, value)
        self.busy += time.perf_counter() - start
        self._pass_on(order, state, Action(stage + 1 if up else stage - 1, kind, number), result)

    def _forward(self, state: _Window, action: Action, batch: int, value: Tensor | None) -> Tensor | None:
        stage, _, number = action
        inputs, targets = (self._part(one, number) for one in state.samples[batch])
        value = inputs if value is None else value
        learning = not state.plans[batch].hold_rest
        listeners = Listeners(dict.fromkeys(self.stages[stage].sites, self.learners), everywhere=True)
        with torch.set_grad_enabled(learning), self.trainer.setup.hooks.active(listeners):
            output = self.stages[stage].forward(value.requires_grad_(learning and stage > 0))
        if stage + 1 == len(self.stages):
            with torch.set_grad_enabled(learning):
                loss = self.task.loss(output, targets) / self.micro_batches
            self._score(state.sums[batch], loss, output, targets)
            output = loss
        if learning:
            state.kept[stage, number] = (value, output)
        return output.detach()

    def _backward(self, state: _Window, action: Action, gradient: Tensor | None) -> Tensor | None:
        value, output = state.kept.pop((action.stage, action.number))
        output.backward(gradient)
        return value.grad

    def _score(self, sums: BatchSums, loss: Tensor, output: Tensor, targets: Tensor) -> None:
        right, answers = self.task.score(output.detach(), targets)
        sums.loss += loss.item()
        sums.right += float(right)
        sums.answers += answers

    def _part(self, samples: Tensor, number: int) -> Tensor:
        size = len(samples) // self.micro_batches
        start = number % self.micro_batches * size
        return samples[start : start + size]

    # Updates: the engine's batch, for the sites of some stages.

    def _update(self, stage: int, batch: int, plan: Plan) -> None:
        """Update `stage` by a batch; by a BP batch all stages of this process, when the last of them is asked for."""
        stages = [stage]
        if not plan.hold_rest:
            self._updated.add(stage)
            if len(self._updated) < len(self.placement.local):
                return
            self._updated.clear()
            stages = list(self.placement.local)
        self._exchange(stages, with_gradients=not plan.hold_rest)
        start = time.perf_counter()
        sites = [site for one in stages for site in self.stages[one].sites]
        at = self.trainer.at
        self.rate.before_batch(self.trainer.done + batch)
        update = Batch(self.trainer.setup, plan, Step(at.epoch, at.batch + batch), sites=sites)
        update.complete(self._all_agree)
        update.step()
        self.refused += update.guarded
        self.trainer.optimizer.zero_grad(set_to_none=True)
        for source in self.learners:
            source.drop(sites)
        self.busy += time.perf_counter() - start

    def _all_agree(self, finite: bool) -> bool:
        refusals = torch.tensor([float(not finite)])
        self.world.add_up([refusals], "requests")
        return refusals.item() == 0

    def _exchange(self, stages: Sequence[int], *, with_gradients: bool) -> None:
        """Add up the gradients of all copies of each stage, and average their summaries and running statistics."""
        if self.placement.partners is None:
            return
        tensors: list[Tensor] = []
        for stage in stages:
            tensors += [tensor for source in self.learners for tensor in source.shared(self.stages[stage].sites)]
            tensors += self.stages[stage].buffers
        scales = [1 / self.placement.copies] * len(tensors)
        for one in [one for stage in stages for one in self.stages[stage].parameters] if with_gradients else []:
            if one.grad is None:  # all copies must send the same tensors
                one.grad = torch.zeros_like(one)
            tensors.append(one.grad)
            scales.append(1.0)
        kind = "gradients" if with_gradients else "summaries"
        self.world.add_up(tensors, kind, scales, self.placement.partners)

    def _add_up_predictor(self, tensors: list[Tensor]) -> None:
        self.world.add_up(tensors, "predictor", [1 / self.placement.copies] * len(tensors))

    # Transfers: forwards carry a stage's output up, backwards its gradient down. Both sides know the shapes.

    def _source(self, action: Action) -> Action | None:
        """Return the action of another stage whose result `action` works on."""
        stage, kind, number = action
        if kind == FORWARD and stage > 0:
            return Action(stage - 1, FORWARD, number)
        if kind == BACKWARD and stage + 1 < len(self.stages):
            return Action(stage + 1, BACKWARD, number)
        return None

    def _await(self, order: Order, state: _Window, action: Action) -> None:
        source = self._source(action)
        if source is None or action in state.arriving or action in state.here:
            return
        holder = order.places[source][0]
        if holder == self.world.rank:
            return
        stage = self.stages[action.stage]
        buffer = torch.empty(stage.input_shape if action.kind == FORWARD else stage.output_shape)
        work = dist.irecv(buffer, holder, tag=self._tag(action))
        assert work is not None
        state.arriving[action] = (work, buffer)

    def _arrived(self, state: _Window, action: Action) -> Tensor | None:
        if self._source(action) is None:
            return None
        if action in state.here:
            return state.here.pop(action)
        work, buffer = state.arriving.pop(action)
        work.wait()
        return buffer

    def _pass_on(self, order: Order, state: _Window, to: Action, result: Tensor | None) -> None:
        """Give `result` to the device that does `to`, if there is such a stage."""
        if result is None or not 0 <= to.stage < len(self.stages):
            return
        holder = order.places[to][0]
        if holder == self.world.rank:
            state.here[to] = result
            return
        result = result.contiguous()
        self.world.count(
            "activations" if to.kind == FORWARD else "input gradients", result.numel() * result.element_size()
        )
        work = dist.isend(result, holder, tag=self._tag(to))
        assert work is not None
        state.leaving = [(one, tensor) for one, tensor in state.leaving if not one.is_completed()]
        state.leaving.append((work, result))

    def _tag(self, action: Action) -> int:
        return 2 * (action.number * len(self.stages) + action.stage) + (action.kind == BACKWARD)


@lru_cache(maxsize=64)
def ordered(name: str, devices: int, micro_batches: int, predicted: tuple[bool, ...]) -> Order:
    """Return the validated program for batches that are predicted or not."""
    return Order(generate(name, devices, micro_batches, [Phase.GP if one else Phase.BP for one in predicted]))
