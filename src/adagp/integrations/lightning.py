"""Lightning: `Trainer(callbacks=[PredictedGradientsCallback(method="feedback", model="net")])`. Automatic optimization only."""

import math
import weakref
from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Tensor

from adagp.engine.attach import AttachOptions, attach
from adagp.engine.batch import Batch
from adagp.engine.trainer import Trainer
from adagp.errors import UsageError
from adagp.integrations import require
from adagp.models.vision import prepare_torchvision

require("lightning")
prepare_torchvision()  # which Lightning imports

import lightning.pytorch as pl  # noqa: E402

__all__ = ["PredictedGradientsCallback", "pl"]


class PredictedGradientsCallback(pl.Callback):  # type: ignore[misc]  # its types are not read
    """Trains a LightningModule, or the part of it that `model` names, with `adagp.attach(..., **options)`.

    Accumulation, clipping, learning-rate schedulers, bf16 and checkpoints are Lightning's own. If the module overrides
    `backward`, its method is called in batches with a backward pass. One callback may be used for several models, one after the
    other. If the method needs the error at the model's output, `model` must be the part that the training step calls and whose
    output the loss is computed from. For methods that use the labels, `targets` is a function that returns the labels of a
    batch; by default a batch is a pair of inputs and labels.
    """

    def __init__(
        self, model: str = "", *, targets: Callable[[Any], Any] | None = None, **options: Unpack[AttachOptions]
    ) -> None:
        self.part = model
        self.options = options
        self.targets = targets
        self.trainer: Trainer | None = None
        self._batch: Batch | None = None
        self._complete = False
        self._loaded: dict[str, Any] | None = None  # from a checkpoint, for the next fit
        self._ended: dict[str, Any] | None = None  # of the last fit
        self._fitted: weakref.ref[pl.LightningModule] | None = None
        self._own_backward: Callable[[Tensor], object] | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Attach to the model, and replace Lightning's backward pass."""
        if not pl_module.automatic_optimization:
            raise UsageError(
                "PredictedGradientsCallback works with automatic optimization; use trainer.batch() in a manual loop."
            )
        if trainer.world_size > 1 or getattr(trainer.precision_plugin, "scaler", None) is not None:
            raise UsageError("PredictedGradientsCallback works on one device, in 32-bit or bf16 precision.")
        length = {} if {"steps", "length", "epochs"} & self.options.keys() else {"steps": _steps(trainer)}
        self.trainer = attach(pl_module.get_submodule(self.part), trainer.optimizers, **length, **self.options)
        is_continued = self._fitted is not None and self._fitted() is pl_module
        state = self._loaded or (self._ended if is_continued else None)
        if state is not None:
            self.trainer.load_state_dict(state)
        self._loaded, self._fitted = None, weakref.ref(pl_module)
        has_own = type(pl_module).backward is not pl.LightningModule.backward
        self._own_backward = pl_module.backward if has_own else None
        pl_module.backward = self._backward

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Begin a batch, unless gradients of the last ones are still being accumulated."""
        if self.trainer is None:
            return
        targets = self._targets(batch) if self.trainer.needs_targets else None
        if self._batch is None:
            self._batch, self._complete = self.trainer.begin(targets), False
        elif targets is not None:
            self._batch.see_targets(targets)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Compute the remaining gradients before Lightning clips them; abandon a batch whose `training_step` returned None."""
        if self._batch is not None and self._batch.is_untouched:
            self._batch.abandon()
            self._batch = None
        if self._batch is not None and not self._complete:
            self._batch.complete()
            self._complete = True

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the batch, if the optimizer was stepped."""
        if self._batch is not None and self._complete:
            self._batch.finish()
            self._batch = None

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Detach from the model."""
        self._leave(pl_module)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Detach from the model."""
        self._leave(pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Return the trainer's state, for Lightning's checkpoints."""
        state = self._loaded or self._ended if self.trainer is None else self.trainer.state_dict()
        return {} if state is None else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint until training starts."""
        self._loaded = state_dict or None

    def _targets(self, batch: Any) -> Any:
        if self.targets is not None:
            return self.targets(batch)
        if isinstance(batch, tuple | list) and len(batch) == 2:
            return batch[1]
        raise UsageError(
            "the method needs the targets: give PredictedGradientsCallback(targets=...), a function that finds them in a "
            "batch."
        )

    def _backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        assert self._batch is not None, "a batch has begun"
        if self._own_backward is None:
            self._batch.differentiate(loss)
        else:
            self._batch.differentiate(loss, self._own_backward)

    def _leave(self, pl_module: pl.LightningModule) -> None:
        if self.trainer is None:
            return
        if self._batch is not None:
            self._batch.abandon()
            self._batch = None
        self._ended = self.trainer.state_dict()
        self.trainer.detach()
        self.trainer = None
        vars(pl_module).pop("backward", None)


def _steps(trainer: pl.Trainer) -> int:
    """Return the number of optimizer steps of the run; raise if Lightning cannot compute it."""
    steps = trainer.estimated_stepping_batches
    if not math.isfinite(steps) or steps < 1:
        raise UsageError(
            "the length of the run is not known (max_epochs=-1, or data without a length): give "
            "PredictedGradientsCallback(steps=...), or max_steps to Lightning's Trainer."
        )
    return int(steps)
