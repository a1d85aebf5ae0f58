"""Pipelines run by torch.distributed.pipelining: its stages and schedules do the passes, ours the updates.

A BP batch is a step of the schedule. A GP batch is its forward-only pass, without autograd, with stages of their own: a
schedule that changes between the two makes all processes wait for each other each time.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from adagp.distributed.stages import ModelStage
from adagp.distributed.updates import BatchSums, StageUpdates, predicts
from adagp.plan import Plan

SCHEDULES: dict[str, Callable[..., Any]] = {
    "gpipe": ScheduleGPipe,
    "dapple": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zb-v": ScheduleZBVZeroBubble,
}
"""The pipelines that torch has, by our names."""
_ONE_STAGE = ("gpipe", "dapple")


class TorchWorker:
    """Trains batches as `Worker` does, by a schedule of torch."""

    def __init__(self, pipeline: str, updates: StageUpdates) -> None:
        self.updates = updates
        self._backprop = self._schedule(pipeline)
        self._forward = self._schedule(pipeline)
        self._plan: Plan | None = None
        self._sums = BatchSums()
        self._done: dict[int, int] = {}
        self._batch = self._losses = 0

    def train(self, plans: Sequence[Plan], samples: Sequence[tuple[Tensor, Tensor]]) -> list[BatchSums]:
        """Train the coming batches with `samples` (inputs and targets), each under its plan; the trainer does not advance."""
        found = []
        hooks, local = self.updates.trainer.setup.hooks, self.updates.placement.local
        for self._batch, (plan, (inputs, targets)) in enumerate(zip(plans, samples, strict=True)):
            start = time.perf_counter()
            self.updates.world.phase = str(plan.phase)
            self._plan, self._sums, self._losses = plan, BatchSums(), 0
            self._done = dict.fromkeys(local, 0)
            with hooks.active(self.updates.listeners(local)):
                self._run(plan, self._share(inputs), self._share(targets))
            for stage in local:
                self.updates.update(stage, self._batch, plan)
            self._sums.seconds = time.perf_counter() - start
            found.append(self._sums)
        self.updates.end()
        return found

    def _run(self, plan: Plan, inputs: Tensor, targets: Tensor) -> None:
        local, last = self.updates.placement.local, len(self.updates.stages) - 1
        given: dict[str, Any] = {"target": targets if last in local else None, "return_outputs": False}
        arguments = (inputs,) if 0 in local else ()
        if predicts(plan):
            with torch.no_grad():
                self._forward.eval(*arguments, **given)
        else:
            self._backprop.step(*arguments, **given)

    def _share(self, samples: Tensor) -> Tensor:
        placement = self.updates.placement
        size = len(samples) // placement.replicas
        return samples[placement.replica * size : (placement.replica + 1) * size]

    def _schedule(self, pipeline: str) -> Any:
        updates = self.updates
        stages = [self._stage(number, updates.stages[number]) for number in updates.placement.local]
        given = stages[0] if pipeline in _ONE_STAGE else stages
        return SCHEDULES[pipeline](given, updates.micro_batches, loss_fn=self._loss, scale_grads=False)

    def _stage(self, number: int, stage: ModelStage) -> PipelineStage:
        updates = self.updates
        return _MeasuredStage(
            updates,
            _Announced(stage.module, lambda: self._begin(number)),
            number,
            len(updates.stages),
            updates.trainer.device,
            input_args=_static(stage.inputs, gradients=number > 0),
            output_args=_static(stage.outputs, gradients=True),
            group=updates.placement.pipeline,
        )

    def _begin(self, stage: int) -> None:
        """Take note of the next forward of a stage: every schedule does a stage's micro-batches in their order."""
        assert self._plan is not None
        self.updates.begin(stage, self._number(self._done[stage]), self._plan)
        self._done[stage] += 1

    def _loss(self, output: Tensor, targets: Tensor) -> Tensor:
        assert self._plan is not None
        self._losses += 1
        return self.updates.loss(self._number(self._losses - 1), self._plan, output, targets, self._sums)

    def _number(self, place: int) -> int:
        return self._batch * self.updates.micro_batches + place


class _Announced(nn.Module):
    """A stage that says when a forward begins."""

    def __init__(self, module: nn.Module, begin: Callable[[], None]) -> None:
        super().__init__()
        self.module = module
        self._begin = begin

    def forward(self, *values: Tensor) -> Any:
        self._begin()
        return self.module(*values)


class _MeasuredStage(PipelineStage):
    """A stage of torch that counts the bytes it sends and the time in which it works."""

    def __init__(self, updates: StageUpdates, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._updates = updates

    def forward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        return self._timed(super().forward_one_chunk, *arguments, **options)

    def backward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        return self._timed(super().backward_one_chunk, *arguments, **options)

    def backward_weight_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        return self._timed(super().backward_weight_one_chunk, *arguments, **options)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._counted("activations", super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._counted("input gradients", super().get_bwd_send_ops(bwd_chunk_id))

    def get_local_bwd_output(self, mb_index: int) -> Any:
        # Where two neighbouring stages lie on one device, torch's forward-only pass asks for gradients that there are none of.
        if not self.has_backward:
            return ()
        return super().get_local_bwd_output(mb_index)  # type: ignore[no-untyped-call]

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)

    def _timed(self, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        found = work(*arguments, **options)
        self._updates.busy += time.perf_counter() - start
        return found

    def _counted(self, kind: str, operations: list[dist.P2POp]) -> list[dist.P2POp]:
        for one in operations:
            self._updates.world.count(kind, one.tensor.numel() * one.tensor.element_size())
        return operations


def _static(values: Sequence[Tensor], *, gradients: bool) -> tuple[Tensor, ...]:
    """Return what a stage is told of its tensors; floating-point ones that come from a stage, or go to one, have a gradient."""
    return tuple(torch.empty_like(one).requires_grad_(gradients and one.is_floating_point()) for one in values)
