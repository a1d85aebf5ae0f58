"""One process of a pipeline: it does the actions of its device, one after the other, and talks to its neighbours."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor

from adagp.distributed.processes import Group
from adagp.distributed.stages import ModelStage
from adagp.distributed.update import Updater
from adagp.engine.hooks import Audience, Watcher
from adagp.pipe.actions import BACKWARD, FORWARD, UPDATE, Action
from adagp.pipe.generate import generate
from adagp.pipe.order import Order
from adagp.plan import Phase, Plan
from adagp.tasks.base import Task

AHEAD = 3
"""Actions for which the input is awaited in advance, so that a neighbour's sending goes on beside our work."""


@dataclass
class BatchSums:
    """What a process saw of a batch: its share of the mean loss, of the right answers and of the answers; and the time."""

    loss: float = 0.0
    right: float = 0.0
    answers: int = 0
    seconds: float = 0.0


@dataclass
class _Run:
    """What is under way: the batches' samples, results that are still needed, transfers that are still going on."""

    plans: Sequence[Plan]
    samples: Sequence[tuple[Tensor, Tensor]]
    sums: list[BatchSums]
    rates: Sequence[float]
    kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    arriving: dict[Action, tuple[dist.Work, Tensor]] = field(default_factory=dict)
    leaving: list[tuple[dist.Work, Tensor]] = field(default_factory=list)
    here: dict[Action, Tensor] = field(default_factory=dict)


class Worker:
    """Does the actions of the device number `group.rank`. `busy` is the time spent working, not waiting, in seconds."""

    def __init__(
        self,
        name: str,
        stages: Sequence[ModelStage],
        micro_batches: int,
        task: Task,
        group: Group,
        watcher: Watcher,
        updater: Updater,
    ) -> None:
        self.name = name
        self.stages = stages
        self.micro_batches = micro_batches
        self.task = task
        self.group = group
        self.watcher = watcher
        self.updater = updater
        self.busy = 0.0

    def run(
        self, plans: Sequence[Plan], samples: Sequence[tuple[Tensor, Tensor]], rates: Sequence[float] = ()
    ) -> list[BatchSums]:
        """Train the batches with `samples` (inputs and targets), each under its plan; at its rate, if there are `rates`."""
        order = ordered(self.name, len(self.stages), self.micro_batches, tuple(plan.hold_rest for plan in plans))
        state = _Run(plans, samples, [BatchSums() for _ in plans], rates)
        actions = order.program.devices[self.group.rank]
        before = time.perf_counter()
        for place, action in enumerate(actions):
            for coming in actions[place : place + AHEAD]:
                self._await(order, state, coming)
            batch = order.program.batch_of(action)
            self.group.phase = str(plans[batch].phase)
            self._do(order, state, action, batch)
            now = time.perf_counter()
            state.sums[batch].seconds += now - before
            before = now
        for work, _ in state.leaving:
            work.wait()
        return state.sums

    def _do(self, order: Order, state: _Run, action: Action, batch: int) -> None:
        stage, kind, number = action
        if kind == UPDATE:
            self.busy += self.updater.update(stage, state.plans[batch], state.rates[batch] if state.rates else None)
            return
        value = self._arrived(state, action)
        start = time.perf_counter()
        up = kind == FORWARD
        result = self._forward(state, action, batch, value) if up else self._backward(state, action, value)
        self.busy += time.perf_counter() - start
        self._pass_on(order, state, Action(stage + 1 if up else stage - 1, kind, number), result)

    def _forward(self, state: _Run, action: Action, batch: int, value: Tensor | None) -> Tensor | None:
        stage, _, number = action
        inputs, targets = (self._part(one, number) for one in state.samples[batch])
        value = inputs if value is None else value
        learning = not state.plans[batch].hold_rest
        with torch.set_grad_enabled(learning), self.watcher.awake(Audience(self.updater.audience(stage))):
            output = self.stages[stage].forward(value.requires_grad_(learning and stage > 0))
        if stage + 1 == len(self.stages):
            with torch.set_grad_enabled(learning):
                loss = self.task.loss(output, targets) / self.micro_batches
            self._score(state.sums[batch], loss, output, targets)
            output = loss
        if learning:
            state.kept[stage, number] = (value, output)
        return output.detach()

    def _backward(self, state: _Run, action: Action, gradient: Tensor | None) -> Tensor | None:
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

    # Transfers: forwards carry a stage's output up, backwards its gradient down. Both sides know the shapes.

    def _source(self, action: Action) -> Action | None:
        """Return the action of another stage whose result `action` works on."""
        stage, kind, number = action
        if kind == FORWARD and stage > 0:
            return Action(stage - 1, FORWARD, number)
        if kind == BACKWARD and stage + 1 < len(self.stages):
            return Action(stage + 1, BACKWARD, number)
        return None

    def _await(self, order: Order, state: _Run, action: Action) -> None:
        source = self._source(action)
        if source is None or action in state.arriving or action in state.here:
            return
        holder = order.places[source][0]
        if holder == self.group.rank:
            return
        stage = self.stages[action.stage]
        buffer = torch.empty(stage.input_shape if action.kind == FORWARD else stage.output_shape)
        work = dist.irecv(buffer, holder, tag=self._tag(action))
        assert work is not None
        state.arriving[action] = (work, buffer)

    def _arrived(self, state: _Run, action: Action) -> Tensor | None:
        if self._source(action) is None:
            return None
        if action in state.here:
            return state.here.pop(action)
        work, buffer = state.arriving.pop(action)
        work.wait()
        return buffer

    def _pass_on(self, order: Order, state: _Run, to: Action, result: Tensor | None) -> None:
        """Give `result` to the device that does `to`, if there is such a stage."""
        if result is None or not 0 <= to.stage < len(self.stages):
            return
        holder = order.places[to][0]
        if holder == self.group.rank:
            state.here[to] = result
            return
        result = result.contiguous()
        self.group.count(
            "activations" if to.kind == FORWARD else "input gradients", result.numel() * result.element_size()
        )
        work = dist.isend(result, holder, tag=self._tag(to))
        assert work is not None
        state.leaving = [(one, tensor) for one, tensor in state.leaving if not one.is_completed()]
        state.leaving.append((work, result))

    def _tag(self, action: Action) -> int:
        return 2 * (action.number * len(self.stages) + action.stage) + (action.kind == BACKWARD)


@lru_cache(maxsize=64)
def ordered(name: str, stages: int, micro_batches: int, predicted: tuple[bool, ...]) -> Order:
    """Return the validated program for batches that are predicted or not."""
    return Order(generate(name, stages, micro_batches, [Phase.GP if one else Phase.BP for one in predicted]))
