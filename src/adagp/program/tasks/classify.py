"""Image classification: cross-entropy and top-1 accuracy."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagp.data.batches import Share
from adagp.data.loaders import image_loaders
from adagp.data.registry import DEFAULT_DATA_DIR
from adagp.layers.eval_mode import evaluation_mode
from adagp.models.build import build_model
from adagp.program.run.config import TrainConfig
from adagp.program.tasks.base import Task, facts_of_parts


class Classification(Task):
    """Learn to predict the class of an image."""

    def __init__(self, config: TrainConfig, data_dir: Path | None = None, download: bool = False) -> None:
        self.config = config
        self.data = image_loaders(
            config.dataset,
            config.batch_size,
            seed=config.seed,
            data_dir=data_dir or DEFAULT_DATA_DIR,
            download=download,
            size=config.image_size,
            validation=config.validation,
            test_samples=config.test_samples,
            augment=None if config.augment else False,
        )

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches in the training set."""
        return len(self.data.train)

    def data_facts(self) -> dict[str, Any]:
        """Return how many images there are, their shape and classes, and digests of them."""
        shape = "x".join(map(str, self.data.shape))
        parts = facts_of_parts(train=self.data.train.facts, test=self.data.test.facts)
        return {**parts, "image": shape, "classes": self.data.classes}

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and labels."""
        return self.data.train.epoch(epoch, start)

    def shares(self, epoch: int, start: int, share: Share) -> Iterator[tuple[Tensor, Tensor]]:
        """Read a share of each batch."""
        return self.data.train.epoch(epoch, start, share)

    def build_model(self) -> nn.Module:
        """Return the model for the data's images and classes."""
        data, config = self.data, self.config
        return build_model(
            config.model, classes=data.classes, image=data.shape, width=config.width, options=config.own_options
        )

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy."""
        return F.cross_entropy(output, targets, label_smoothing=self.config.label_smoothing)

    def score(self, output: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        """Count the images whose first guess is right."""
        return (output.argmax(1) == targets).sum(), len(targets)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return loss and accuracy on the test set."""
        device = next(model.parameters()).device
        loss = right = torch.zeros((), device=device)
        count = 0
        with evaluation_mode(model):
            for images, labels in self.data.test.epoch(0):
                images, labels = images.to(device), labels.to(device)
                output = model(images)
                loss = loss + F.cross_entropy(output, labels, reduction="sum")
                right = right + (output.argmax(1) == labels).sum()
                count += len(labels)
        return {"loss": loss.item() / count, "accuracy": right.item() / count}
