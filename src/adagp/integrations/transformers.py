"""transformers: `class MyTrainer(PredictedGradientsMixin, Trainer)`, with the options of `adagp.attach` as `adagp={...}`."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adagp.engine.attach import AttachOptions, attach
from adagp.engine.batch import Batch
from adagp.engine.trainer import Trainer
from adagp.errors import UsageError
from adagp.integrations import require
from adagp.models.vision import prepare_torchvision

require("transformers")
prepare_torchvision()  # which transformers may import

from transformers import TrainerCallback  # noqa: E402

__all__ = ["AttachOptions", "PredictedGradientsMixin"]

STATE = "adagp.pt"
"""The file in a checkpoint's folder with the state of the sources."""


class PredictedGradientsMixin:
    """A mixin for `transformers.Trainer`, which still does accumulation, clipping, schedulers, bf16, checkpoints and resuming.

    Models of transformers compute the loss themselves. For a method that needs the error at the output, name the layer whose
    output the loss is computed from: `adagp={"method": "feedback", "output": "classifier"}`, or `lm_head` in language models.
    """

    def __init__(self, *arguments: Any, adagp: AttachOptions | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._options: AttachOptions = adagp or {}
        self._attached: Trainer | None = None
        self._batch: Batch | None = None
        self._checkpoint: str | None = None
        self.add_callback(_Steps(self))  # type: ignore[attr-defined]  # of transformers.Trainer, as is all below

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Train on a batch, or on one micro-batch of it, as the schedule plans."""
        if self._attached is None:
            self._attached = self._attach()
        labels = self._labels(inputs) if self._attached.needs_targets else None
        if self._batch is None:
            self._batch = self._attached.begin(labels)
        elif labels is not None:
            self._batch.see_targets(labels)
        batch, accelerator = self._batch, self.accelerator  # type: ignore[attr-defined]

        def backward(loss: Tensor, **_: Any) -> None:
            batch.backward(loss, more=not accelerator.gradient_state.sync_gradients)

        accelerator.backward = backward
        try:
            return super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc, no-any-return]
        finally:
            del accelerator.backward

    def _inner_training_loop(self, *arguments: Any, **named: Any) -> Any:
        """Detach from the model at the end, also after an exception or an interrupt."""
        try:
            return super()._inner_training_loop(*arguments, **named)  # type: ignore[misc]
        finally:
            self.ended()

    def _labels(self, inputs: dict[str, Any]) -> Tensor:
        """Return the labels of a batch: the first tensor among the inputs that the Trainer's `label_names` name."""
        names = self.args.label_names or ["labels"]  # type: ignore[attr-defined]
        labels = [inputs[name] for name in names if isinstance(inputs.get(name), Tensor)]
        if not labels:
            raise UsageError(f"the method needs the targets, and a batch has no '{names[0]}' (see label_names).")
        return labels[0].to(self.args.device)  # type: ignore[attr-defined, no-any-return]

    def _attach(self) -> Trainer:
        if self.accelerator.scaler is not None or self.args.n_gpu > 1:  # type: ignore[attr-defined]
            raise UsageError("PredictedGradientsMixin works with one device per process, in 32-bit or bf16 precision.")
        optimizer = self.optimizer  # type: ignore[attr-defined]
        optimizer = getattr(optimizer, "optimizer", optimizer)
        trainer = attach(self.model, optimizer, **{"steps": self.state.max_steps, **self._options})  # type: ignore[attr-defined]
        if self._checkpoint is not None and (Path(self._checkpoint) / STATE).is_file():
            trainer.load_state_dict(torch.load(Path(self._checkpoint) / STATE, weights_only=True))
        return trainer

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        self._checkpoint = checkpoint

    def stepped(self) -> None:
        """Record that the optimizer was stepped."""
        if self._batch is not None:
            self._batch.finish()
            self._batch = None

    def saved(self, folder: Path) -> None:
        """Save the state of the sources into a checkpoint's folder."""
        if self._attached is not None and folder.is_dir():
            torch.save(self._attached.state_dict(), folder / STATE)

    def ended(self) -> None:
        """Detach from the model."""
        if self._attached is not None:
            if self._batch is not None:
                self._batch.abandon()
                self._batch = None
            self._attached.detach()
            self._attached = None


class _Steps(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Passes the events of the loop to the mixin."""

    def __init__(self, owner: PredictedGradientsMixin) -> None:
        self.owner = owner

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record that the optimizer was stepped."""
        self.owner.stepped()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save next to the checkpoint that was just written."""
        self.owner.saved(Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Detach from the model."""
        self.owner.ended()
