"""Data parallel: every process has the whole model and trains on its share of each batch.

In a BP batch DDP averages the gradients. Besides, after every batch's forward (and backward), one flat tensor is averaged:
the pooled summaries of the sites' outputs, from which every process then predicts, or learns to predict, the same
gradients; the running statistics of normalisation layers; and the processes' wishes to stop or save. So a GP batch sends the
summaries instead of the gradients, and all copies stay equal bit by bit.

Normalisation layers use the statistics of the process's own share, as DDP has it. Their running statistics, used in
evaluation, are the processes' means; the variance between the shares' means is not in them.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from adagp.distributed.loop import ParallelLoop
from adagp.distributed.processes import digest
from adagp.engine.batch import Batch
from adagp.plan import BACKPROP
from adagp.train.loop import News, Observer, to_device


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

    def run(self, observer: Observer, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train to the end, or until some process wants to stop."""
        try:
            return super().run(observer, stop)
        finally:
            # It must not outlive the process group: freed after it, it waits for threads that wait for Python's lock.
            del self._distributed

    def _train(self, inputs: Any, targets: Any, before: float, observer: Observer) -> None:
        place = self.trainer.at
        inputs, targets = self._share(inputs), self._share(targets)
        start = self._clock()
        with self.trainer.batch() as batch:
            self.group.phase = str(batch.phase)
            output, loss = self._passes(batch, inputs, targets)
            batch.step()
        seconds = self._clock() - start
        right, answers = self.task.score(output, targets)
        self.meter.add_seconds("data", start - before)
        self.meter.add(batch.phase, loss.item(), float(right), answers, seconds, batch.guarded)
        self.check_copies(self._copies)
        observer.on_batch(News(place.epoch, place.batch, batch.phase, self.meter.mean_loss, self.meter.mean_score))

    def _passes(self, batch: Batch, inputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
        """Run forward and backward, and average what the processes have seen before sources look at it."""
        plan = batch.plan
        whole = not plan.hold_rest and plan.default == BACKPROP and not plan.by_site
        output = (self._distributed if whole else self.trainer.model)(inputs)
        loss = self.task.loss(output, targets)
        shared = [*self._buffers, self.make_wishes()]
        for source in self.learners:
            shared = source.shared(self.trainer.survey.sites) + shared
        if batch.needs_backward:
            batch.backward(loss, more=True)
            if whole:
                self.group.count("gradients", self._gradient_bytes)
            else:
                parameters = self.trainer.model.parameters()
                self.group.average([one.grad for one in parameters if one.grad is not None], "gradients")
        self.group.average(shared, "summaries")
        # Autograd is done. The second half of backward() asks for a loss again; this one has no gradient to give.
        batch.backward(torch.zeros((), requires_grad=True))
        return output, loss.detach()

    def _share(self, value: Tensor) -> Tensor:
        share = len(value) // self.group.size
        part: Tensor = to_device(value[self.group.rank * share : (self.group.rank + 1) * share], self.device)
        return part

    def _copies(self) -> dict[str, str]:
        states = [self.trainer.model.state_dict(), *(source.network.state_dict() for source in self.learners)]
        return {"the model and its predictor": digest(tensor for state in states for tensor in state.values())}

    def _end_epoch(self, epoch: int) -> dict[str, Any]:
        self.group.phase = ""
        self._reduce_meter(1 / self.group.size)
        return super()._end_epoch(epoch)
