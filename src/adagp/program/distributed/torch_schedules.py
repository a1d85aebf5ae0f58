"""Pipelines run by torch.distributed.pipelining: its stages and schedules run the passes, `StageUpdates` the updates.

A BP batch is a step of the schedule. A GP batch is a forward-only pass of a second schedule without autograd: a schedule that
alternates between the two would make all processes synchronize each time.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from adagp.core.plan import Plan
from adagp.data.batches import Share
from adagp.program.distributed.stages import ModelStage
from adagp.program.distributed.updates import BatchSums, StageUpdates, predicts
from adagp.program.distributed.worker import as_values
from adagp.program.tasks.base import take_share

SCHEDULES: dict[str, Callable[..., Any]] = {
    "gpipe": ScheduleGPipe,
    "dapple": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zb-v": ScheduleZBVZeroBubble,
}
"""The pipeline schedules that torch has, by our names."""
_ONE_STAGE = ("gpipe", "dapple")


class TorchWorker:
    """Trains batches like `Worker`, by a schedule of torch."""

    def __init__(self, pipeline: str, updates: StageUpdates) -> None:
        self.updates = updates
        self._backprop = self._schedule(pipeline)
        self._forward = self._schedule(pipeline)
        self._plan: Plan | None = None
        self._sums = BatchSums()
        self._done: dict[int, int] = {}
        self._batch = self._losses = 0
        self._targets: Any = None
        for number in updates.placement.local:  # called when a forward of the stage begins
            updates.stages[number].module.register_forward_pre_hook(partial(self._begin, number))

    def train(self, plans: Sequence[Plan], samples: Sequence[tuple[Any, Any]]) -> list[BatchSums]:
        """Train the coming batches with `samples` (inputs and targets), each under its plan; the trainer does not advance."""
        results = []
        hooks, local = self.updates.trainer.setup.hooks, self.updates.placement.local
        for self._batch, (plan, (inputs, self._targets)) in enumerate(zip(plans, samples, strict=True)):
            start = time.perf_counter()
            self.updates.world.phase = str(plan.phase)
            self._plan, self._sums, self._losses = plan, BatchSums(), 0
            self._done = dict.fromkeys(local, 0)
            with hooks.active(self.updates.listeners(local)):
                self._run(plan, inputs)
            for stage in local:
                self.updates.update(stage, self._batch, plan)
            self._sums.seconds = time.perf_counter() - start
            results.append(self._sums)
        self._plan = None
        self.updates.end()
        return results

    def _run(self, plan: Plan, inputs: Any) -> None:
        """Run the schedule. It splits targets, which must be one tensor: these are the numbers of the micro-batches."""
        placement, last = self.updates.placement, len(self.updates.stages) - 1
        numbers = torch.arange(self.updates.micro_batches) if last in placement.local else None
        options: dict[str, Any] = {"target": numbers, "return_outputs": False}
        share = take_share(Share(placement.replica, placement.replicas), inputs)
        arguments = as_values(share) if 0 in placement.local else []
        if predicts(plan):
            with torch.no_grad():
                self._forward.eval(*arguments, **options)
        else:
            self._backprop.step(*arguments, **options)

    def _schedule(self, pipeline: str) -> Any:
        updates = self.updates
        stages = [self._stage(number, updates.stages[number]) for number in updates.placement.local]
        schedule_stages = stages[0] if pipeline in _ONE_STAGE else stages
        return SCHEDULES[pipeline](schedule_stages, updates.micro_batches, loss_fn=self._loss, scale_grads=False)

    def _stage(self, number: int, stage: ModelStage) -> PipelineStage:
        updates = self.updates
        return _MeasuredStage(
            updates,
            stage.module,
            number,
            len(updates.stages),
            updates.trainer.device,
            input_args=_static(stage.inputs, gradients=number > 0),
            output_args=_static(stage.outputs, gradients=True),
            group=updates.placement.pipeline,
        )

    def _begin(self, stage: int, *_: Any) -> None:
        """Begin the next forward of a stage: every schedule runs a stage's micro-batches in their order."""
        if self._plan is None:  # not called by a schedule
            return
        self.updates.begin(stage, self._number(self._done[stage]), self._plan)
        self._done[stage] += 1

    def _loss(self, outputs: Any, number: Tensor) -> Tensor:
        assert self._plan is not None
        self._losses += 1
        index = self._number(self._losses - 1)
        return self.updates.loss(index, self._plan, as_values(outputs), self._targets, self._sums)

    def _number(self, index: int) -> int:
        """Return the number of a batch's micro-batch in the window."""
        return self._batch * self.updates.micro_batches + index


class _MeasuredStage(PipelineStage):
    """A stage of torch that counts the bytes it sends and the time it works."""

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
        # If a device has two neighbouring stages, torch's forward-only pass reads gradients that do not exist.
        if not self.has_backward:
            return ()
        return super().get_local_bwd_output(mb_index)  # type: ignore[no-untyped-call]

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)

    def _timed(self, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = work(*arguments, **options)
        self._updates.busy += time.perf_counter() - start
        return result

    def _counted(self, kind: str, operations: list[dist.P2POp]) -> list[dist.P2POp]:
        for operation in operations:
            self._updates.world.count(kind, operation.tensor.numel() * operation.tensor.element_size())
        return operations


def _static(values: Sequence[Tensor], *, gradients: bool) -> tuple[Tensor, ...]:
    """Return meta tensors like a stage's inputs or outputs; with `gradients`, floating-point ones require them."""
    return tuple(torch.empty_like(value).requires_grad_(gradients and value.is_floating_point()) for value in values)
