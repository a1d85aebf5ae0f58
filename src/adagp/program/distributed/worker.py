"""One process of a pipeline: it runs the actions of its device in order, and exchanges data with the other devices.

Messages from one device to another are received in the order in which they are sent, which both read from the program, and each
direction has its own group: so no tags are needed, which nccl does not have.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from adagp.core.plan import Plan
from adagp.pipe.actions import BACKWARD, FORWARD, INPUT_GRADIENT, UPDATE, WEIGHT_GRADIENT, Action
from adagp.pipe.order import Order
from adagp.program.distributed.placement import program_order
from adagp.program.distributed.updates import BatchSums, StageUpdates, predicts

AHEAD = 3
"""Actions whose inputs are received in advance, so that transfers overlap with computation."""

Values = list[Tensor]
"""The tensors that pass a cut for one micro-batch: activations, or the gradients of those that have one."""


@dataclass
class _Window:
    """The running batches: their samples, results that are still needed, transfers in flight.

    `coming` are the actions here that wait for results of each other device, in the order in which that device sends them.
    """

    plans: Sequence[Plan]
    samples: Sequence[tuple[Any, Any]]
    sums: list[BatchSums]
    stored: dict[tuple[int, int], tuple[Values, Values]] = field(default_factory=dict)
    half_done: dict[tuple[int, int], tuple[Values, Values | None] | list[dict[str, object]]] = field(
        default_factory=dict
    )
    coming: dict[int, Iterator[Action]] = field(default_factory=dict)
    arriving: dict[Action, list[tuple[dist.Work, Tensor]]] = field(default_factory=dict)
    leaving: list[tuple[dist.Work, Tensor]] = field(default_factory=list)
    here: dict[Action, Values] = field(default_factory=dict)


class Worker:
    """Runs the actions of its device: forwards, backwards and updates of its stages."""

    def __init__(self, pipeline: str, updates: StageUpdates) -> None:
        self.pipeline = pipeline
        self.updates = updates
        self.stages, self.placement = updates.stages, updates.placement
        self.micro_batches, self.world = updates.micro_batches, updates.world

    def train(self, plans: Sequence[Plan], samples: Sequence[tuple[Any, Any]]) -> list[BatchSums]:
        """Train the coming batches with `samples` (inputs and targets), each under its plan; the trainer does not advance."""
        predicted = tuple(map(predicts, plans))
        broadcast = self.updates.errors is not None
        order = program_order(self.pipeline, len(self.placement.peers), self.micro_batches, predicted, broadcast)
        state = _Window(plans, samples, [BatchSums() for _ in plans], coming=self._coming(order))
        actions = order.program.devices[self.placement.device]
        before = time.perf_counter()
        for position, action in enumerate(actions):
            for coming in actions[position : position + AHEAD]:
                self._await(order, state, coming)
            batch = order.program.batch_of(action)
            self.world.phase = str(plans[batch].phase)
            self._do(order, state, action, batch)
            now = time.perf_counter()
            state.sums[batch].seconds += now - before
            before = now
        for work, _ in state.leaving:
            work.wait()
        self.updates.end()
        return state.sums

    def _do(self, order: Order, state: _Window, action: Action, batch: int) -> None:
        kind = action.kind
        if kind == UPDATE:
            self.updates.update(action.stage, batch, state.plans[batch])
            return
        values = self._arrived(state, action)
        start = time.perf_counter()
        if kind == FORWARD:
            result = self._forward(state, action, batch, values)
        elif kind == BACKWARD:
            result = self._backward(state, action, values)
        elif kind == INPUT_GRADIENT:
            result = self._input_gradient(state, action, values)
        else:
            self._weight_gradient(state, action)
        self.updates.busy += time.perf_counter() - start
        if kind != WEIGHT_GRADIENT:
            self._pass_on(order, state, action, result)

    def _forward(self, state: _Window, action: Action, batch: int, values: Values | None) -> Values:
        stage, _, number = action
        plan = state.plans[batch]
        inputs, targets = state.samples[batch]
        values = as_values(self.updates.part(inputs, number)) if values is None else values
        learning = not predicts(plan)
        for value in values if learning and stage > 0 else []:
            value.requires_grad_(value.is_floating_point())
        self.updates.begin(stage, number, plan)
        hooks = self.updates.trainer.setup.hooks
        with torch.set_grad_enabled(learning), hooks.active(self.updates.listeners([stage])):
            outputs = list(self.stages[stage].forward(values))
        if stage + 1 == len(self.stages):
            with torch.set_grad_enabled(learning):
                outputs = [self.updates.loss(number, plan, outputs, targets, state.sums[batch])]
        if learning:
            state.stored[stage, number] = (values, outputs)
        return [output.detach() for output in outputs]

    def _backward(self, state: _Window, action: Action, gradients: Values | None) -> Values:
        values, outputs = state.stored.pop((action.stage, action.number))
        self.updates.before_backward(action.stage)
        _differentiate(outputs, gradients)
        return _gradients(values)

    # A backward in two parts. The first stage sends no gradient: it does everything in the second part.

    def _input_gradient(self, state: _Window, action: Action, gradients: Values | None) -> Values:
        stage, _, number = action
        values, outputs = state.stored.pop((stage, number))
        if stage == 0:
            state.half_done[stage, number] = (outputs, gradients)
            return []
        padded = None if gradients is None else _for_outputs(outputs, gradients)
        _, groups = stage_backward_input(outputs, padded, list(values), iter(self.stages[stage].parameters))
        state.half_done[stage, number] = groups
        return _gradients(values)

    def _weight_gradient(self, state: _Window, action: Action) -> None:
        rest = state.half_done.pop((action.stage, action.number))
        if isinstance(rest, tuple):
            _differentiate(*rest)
        else:
            stage_backward_weight(iter(self.stages[action.stage].parameters), rest)

    # Transfers: forwards carry a stage's outputs up, backwards their gradients down. Both sides know the shapes.

    def _source(self, order: Order, action: Action) -> Action | None:
        """Return the action of another stage whose result is the input of `action`."""
        stage, kind, number = action
        if kind == FORWARD:
            return Action(stage - 1, FORWARD, number) if stage > 0 else None
        if kind in (BACKWARD, INPUT_GRADIENT) and stage + 1 < len(self.stages):
            return _backward_of(order, stage + 1, number)
        return None

    def _target(self, order: Order, action: Action) -> Action | None:
        """Return the action of another stage whose input is the result of `action`."""
        stage, kind, number = action
        neighbour = stage + 1 if kind == FORWARD else stage - 1
        if kind not in (FORWARD, BACKWARD, INPUT_GRADIENT) or not 0 <= neighbour < len(self.stages):
            return None
        return Action(neighbour, FORWARD, number) if kind == FORWARD else _backward_of(order, neighbour, number)

    def _coming(self, order: Order) -> dict[int, Iterator[Action]]:
        """Return the actions here whose inputs each other device sends, in the order of its program."""
        here = self.placement.device
        coming: dict[int, Iterator[Action]] = {}
        for device, row in enumerate(order.program.devices):
            targets = [self._target(order, action) for action in row] if device != here else []
            coming[device] = iter([target for target in targets if target and order.positions[target][0] == here])
        return coming

    def _await(self, order: Order, state: _Window, action: Action) -> None:
        """Begin to receive the input of `action`, and before it everything that the same device sends earlier."""
        source = self._source(order, action)
        if source is None or action in state.arriving or action in state.here:
            return
        holder = order.positions[source][0]
        if holder == self.placement.device:
            return
        for coming in state.coming[holder]:
            state.arriving[coming] = list(self._receive(coming, self.placement.peers[holder]))
            if coming == action:
                break

    def _receive(self, action: Action, sender: int) -> Iterator[tuple[dist.Work, Tensor]]:
        lane = self.placement.lane(sender, self.world.rank)
        for like in self._passing(action):
            buffer = torch.empty(like.shape, dtype=like.dtype, device=self.updates.trainer.device)
            work = dist.irecv(buffer, sender, group=lane)
            assert work is not None
            yield work, buffer

    def _passing(self, action: Action) -> Values:
        """Return meta tensors like the inputs of `action`."""
        stage = self.stages[action.stage]
        return list(stage.inputs) if action.kind == FORWARD else _with_gradient(stage.outputs)

    def _arrived(self, state: _Window, action: Action) -> Values | None:
        if action in state.here:
            return state.here.pop(action)
        if action not in state.arriving:
            return None
        arriving = state.arriving.pop(action)
        with self.world.waiting():
            for work, _ in arriving:
                work.wait()
        return [buffer for _, buffer in arriving]

    def _pass_on(self, order: Order, state: _Window, action: Action, result: Values) -> None:
        """Send the result of `action` to the device that needs it, if there is such a stage."""
        to = self._target(order, action)
        if to is None:
            return
        holder = order.positions[to][0]
        if holder == self.placement.device:
            state.here[to] = result
            return
        state.leaving = [(work, tensor) for work, tensor in state.leaving if not work.is_completed()]
        for tensor in result:
            value = tensor.contiguous()
            kind = "activations" if to.kind == FORWARD else "input gradients"
            self.world.count(kind, value.numel() * value.element_size())
            receiver = self.placement.peers[holder]
            lane = self.placement.lane(self.world.rank, receiver)
            work = dist.isend(value, receiver, group=lane)
            assert work is not None
            state.leaving.append((work, value))


def as_values(inputs: Any) -> Values:
    """Return the inputs of a model as a list of tensors."""
    return list(inputs) if isinstance(inputs, tuple) else [inputs]


def _backward_of(order: Order, stage: int, number: int) -> Action:
    """Return the backward of a micro-batch on a stage: the whole one, or its first part."""
    whole = Action(stage, BACKWARD, number)
    return whole if whole in order.positions else Action(stage, INPUT_GRADIENT, number)


def _with_gradient(values: Sequence[Tensor]) -> Values:
    return [value for value in values if value.is_floating_point()]


def _gradients(values: Sequence[Tensor]) -> Values:
    """Return the gradients of a stage's inputs; zeros for an input that no output depends on."""
    return [torch.zeros_like(value) if value.grad is None else value.grad for value in _with_gradient(values)]


def _for_outputs(outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return a gradient for each output; integer outputs have none, and torch ignores what stands for theirs."""
    rest = iter(gradients)
    return [next(rest) if output.is_floating_point() else output for output in outputs]


def _differentiate(outputs: Sequence[Tensor], gradients: Sequence[Tensor] | None) -> None:
    if gradients is None:
        outputs[0].backward()
        return
    pairs = zip(_with_gradient(outputs), gradients, strict=True)
    trained = [(output, gradient) for output, gradient in pairs if output.requires_grad]
    torch.autograd.backward([output for output, _ in trained], [gradient for _, gradient in trained])
