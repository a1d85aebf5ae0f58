"""Data parallel: every process has the whole model and trains on its share of each batch.

In a BP batch DDP averages the gradients. Besides, after every batch's forward (and backward), one flat tensor is averaged:
the pooled summaries of the sites' outputs, from which every process then predicts, or learns to predict, the same
gradients; the running statistics of normalisation layers; and the processes' requests to stop or save. So a GP batch sends
the summaries instead of the gradients, and all copies stay equal bit by bit.

Normalisation layers use the statistics of the process's own share, as DDP has it. Their running statistics, used in
evaluation, are the processes' means; the variance between the shares' means is not in them.
"""

import inspect
from typing import Any

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from adagp.distributed.loop import ParallelLoop
from adagp.distributed.processes import digest
from adagp.engine.batch import Batch, BatchResult
from adagp.plan import BACKPROP
from adagp.train.loop import Observer


class DataLoop(ParallelLoop):
    """The loop of a data parallel run."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        model = self.trainer.model
        known = inspect.signature(DistributedDataParallel).parameters
        name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # before torch 2.13
        without: dict[str, Any] = {name: False}  # buffers are averaged with the summaries
        self._distributed = DistributedDataParallel(model, **without)
        self._gradient_bytes = sum(one.numel() * one.element_size() for one in model.parameters() if one.requires_grad)
        self._buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]

    def close(self) -> None:
        """Free DDP: if the process group went first, DDP would wait for threads that wait for Python's lock."""
        del self._distributed

    def _train(self, inputs: Any, targets: Any, before: float, observer: Observer) -> None:
        super()._train(inputs, targets, before, observer)
        self.check_copies(self._copies)

    def _own(self, value: Tensor) -> Any:
        share = len(value) // self.world.size
        return super()._own(value[self.world.rank * share : (self.world.rank + 1) * share])

    def _step(self, inputs: Any, targets: Any) -> BatchResult:
        """Train on this process's share; what the processes have seen is averaged before sources look at it."""
        with self.trainer.batch() as batch:
            self.world.phase = str(batch.phase)
            plan = batch.plan
            whole = not plan.hold_rest and plan.default == BACKPROP and not plan.by_site
            output = (self._distributed if whole else self.trainer.model)(inputs)
            loss = self.task.loss(output, targets)
            shared = [*self._buffers, self.make_requests()]
            for source in self.learners:
                shared = source.shared(self.trainer.survey.sites) + shared
            batch.differentiate(loss)
            self._average_gradients(batch, whole=whole)
            if self.trainer.schedule.adapts and batch.loss is not None:
                shared.append(batch.loss)  # the schedule must decide the same everywhere
            self.world.average(shared, "summaries")
            batch.complete()
            batch.step()
        return BatchResult(batch.phase, loss.detach(), output, batch.guarded)

    def _average_gradients(self, batch: Batch, *, whole: bool) -> None:
        """Average the gradients, unless DDP has done so in a backward pass through the whole model."""
        if whole:
            self.world.count("gradients", self._gradient_bytes)
        elif batch.needs_backward:
            parameters = self.trainer.model.parameters()
            self.world.average([one.grad for one in parameters if one.grad is not None], "gradients")

    def _copies(self) -> dict[str, str]:
        states = [self.trainer.model.state_dict(), *(source.network.state_dict() for source in self.learners)]
        return {"the model and its predictor": digest(tensor for state in states for tensor in state.values())}

    def _end_epoch(self, epoch: int) -> dict[str, Any]:
        self._reduce_meter(1 / self.world.size)
        return super()._end_epoch(epoch)
