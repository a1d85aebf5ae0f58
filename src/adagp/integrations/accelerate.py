"""accelerate: the methods `accumulate` and `backward` of `AcceleratedBatches(...)` replace those of the accelerator."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Unpack

from torch import Tensor, nn

from adagp.engine.attach import AttachOptions, attach
from adagp.engine.batch import Batch
from adagp.errors import UsageError
from adagp.integrations import require
from adagp.models.vision import prepare_torchvision

require("accelerate")
prepare_torchvision()  # which accelerate may import

from accelerate import Accelerator  # noqa: E402
from accelerate.optimizer import AcceleratedOptimizer  # noqa: E402

__all__ = ["AcceleratedBatches", "Accelerator"]


class AcceleratedBatches:
    """Trains a model and an optimizer that `accelerator.prepare` has returned, in your own loop.

    `options` are those of `adagp.attach`; `steps` counts steps of the optimizer. Everything else in the loop stays: the
    optimizer's `step` and `zero_grad`, `accelerator.clip_grad_norm_`, schedulers. Save and load `trainer` with the rest:
    `accelerator.register_for_checkpointing(batches.trainer)`.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: AcceleratedOptimizer,
        **options: Unpack[AttachOptions],
    ) -> None:
        if accelerator.scaler is not None:
            raise UsageError("predicted gradients need 32-bit or bf16 precision here; fp16 scales the loss.")
        self.accelerator = accelerator
        self.model = model
        self.trainer = attach(model, optimizer.optimizer, **options)
        self._batch: Batch | None = None

    @contextmanager
    def accumulate(self, targets: Any = None) -> Iterator[Batch]:
        """Replace `accelerator.accumulate(model)`: the body trains on a batch, or on one micro-batch of a batch.

        Methods that use the labels need the `targets` of this batch or micro-batch.
        """
        if targets is None and self.trainer.needs_targets:
            raise UsageError("the method needs the targets: call accumulate(targets).")
        with self.accelerator.accumulate(self.model):
            batch = self._batch
            if batch is None:
                batch = self._batch = self.trainer.begin(targets)
            elif targets is not None:
                batch.see_targets(targets)
            try:
                yield batch
                if self.accelerator.sync_gradients:
                    self._batch = None
                    batch.finish()
            except BaseException:
                self._batch = None
                batch.abandon()
                raise

    def backward(self, loss: Tensor) -> None:
        """Replace `accelerator.backward(loss)`: put true or produced gradients into `.grad`."""
        if self._batch is None:
            raise UsageError("backward() was called outside accumulate().")
        more = not self.accelerator.sync_gradients
        self._batch.backward(loss / self.accelerator.gradient_accumulation_steps, more=more)
