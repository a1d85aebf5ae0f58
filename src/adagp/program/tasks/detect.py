"""Object detection: YOLO-v3's loss, class accuracy, and mean average precision at an overlap of one half."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adagp.data import DATASETS
from adagp.data.batches import Share, evaluated_on, held_out
from adagp.data.detection import CLASSES, BoxedBatch, BoxedBatches, read_voc
from adagp.data.registry import DEFAULT_DATA_DIR, locate
from adagp.errors import ModelError, OptionError
from adagp.layers.eval_mode import evaluation_mode
from adagp.models.build import build_model
from adagp.models.registry import DETECTION
from adagp.program.run.config import TrainConfig
from adagp.program.run.metrics import Metric
from adagp.program.tasks.base import Task, facts_of_parts
from adagp.program.tasks.yolo import ANCHORS, average_precisions, detect, loss_parts, require_pycocotools, right_classes

STRIDES = (8, 16, 32)


class Detection(Task):
    """Learn to find objects, their boxes and their classes.

    Accuracy is the share of objects whose class is predicted correctly by the slot responsible for them (ADA-GP's class
    accuracy); difficult objects are left out.
    """

    metrics_at_end = (Metric("map50", title="mAP@0.5", lowest=0.0, highest=1.0),)

    def __init__(self, config: TrainConfig, data_dir: Path | None = None, download: bool = False) -> None:
        info = DATASETS[config.dataset]
        self.config = config
        self.size = check_size(config.image_size or info.shape[-1])
        require_pycocotools()
        train, test = read_voc(locate(info, data_dir or DEFAULT_DATA_DIR, download))
        if config.validation:
            parts = held_out(len(train), config.validation)
            train, test = [train[number] for number in parts[0]], [train[number] for number in parts[1]]
        test = [test[number] for number in evaluated_on(len(test), config.test_samples)]
        self.train = BoxedBatches(train, config.batch_size, size=self.size, seed=config.seed, train=True)
        self.test = BoxedBatches(test, config.batch_size, size=self.size, train=False)

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches in the training set."""
        return len(self.train)

    def data_facts(self) -> dict[str, Any]:
        """Return how many samples there are, and digests of them."""
        return facts_of_parts(train=self.train.facts, test=self.test.facts)

    def batches(self, epoch: int, start: int = 0) -> Iterator[BoxedBatch]:
        """Yield images, and boxes with labels."""
        return self.train.epoch(epoch, start)

    def shares(self, epoch: int, start: int, share: Share) -> Iterator[BoxedBatch]:
        """Read a share of each batch."""
        return self.train.epoch(epoch, start, share)

    def weight(self, targets: tuple[Tensor, Tensor]) -> int:
        """Count the objects that the loss is the mean of."""
        return int((targets[1] >= 0).sum())

    def build_model(self) -> nn.Module:
        """Return the model, tried out on two images: a misfit of model and data shows before training."""
        image = (3, self.size, self.size)
        model = build_model(
            self.config.model,
            classes=len(CLASSES),
            image=image,
            width=self.config.width,
            task=DETECTION,
            options=self.config.own_options,
        )
        check_outputs(model, self.size, len(CLASSES), self.config.model)
        return model

    def loss(self, output: Sequence[Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean loss per object of the batch."""
        parts = loss_parts(output, *targets)
        return parts.total / max(1, parts.objects)

    def score(self, output: Sequence[Tensor], targets: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        """Count the objects whose class is predicted correctly."""
        return right_classes(output, *targets)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the loss per object, with its three parts, and the class accuracy on the test set."""
        sums = torch.zeros(4, dtype=torch.float64)
        objects = 0
        with evaluation_mode(model):
            for output, targets in self._answers(model):
                parts = loss_parts(output, *targets)
                right, count = right_classes(output, *targets)
                sums += torch.stack([parts.box, parts.objectness, parts.category, right]).double().cpu()
                objects += count
        box, objectness, category, accuracy = (sums / max(1, objects)).tolist()
        return {
            "loss": box + objectness + category,
            "accuracy": accuracy,
            "box_loss": box,
            "objectness_loss": objectness,
            "class_loss": category,
        }

    @torch.no_grad()
    def final_metrics(self, model: nn.Module) -> dict[str, Any]:
        """Return `test_map50`: average precision at IoU 0.5, averaged over the classes that are there, and each class's."""
        with evaluation_mode(model):
            detections = [detected for output, _ in self._answers(model) for detected in detect(output)]
        precisions = average_precisions(detections, self.test.objects, len(CLASSES))
        each = {name: float(value) for name, value in zip(CLASSES, precisions, strict=True) if not np.isnan(value)}
        return {"test_map50": sum(each.values()) / max(1, len(each)), "test_ap50": each}

    def _answers(self, model: nn.Module) -> Iterator[tuple[Any, Any]]:
        device = next(model.parameters()).device
        for images, (boxes, labels) in self.test.epoch(0):
            yield model(images.to(device)), (boxes.to(device), labels.to(device))


def check_size(size: int) -> int:
    """Return the image size, a whole number of the coarsest cells."""
    if size < STRIDES[-1] or size % STRIDES[-1]:
        raise OptionError(f"--image-size is {size}; for detection it must be a multiple of {STRIDES[-1]} pixels.")
    return size


@torch.no_grad()
def check_outputs(model: nn.Module, size: int, classes: int, name: str) -> None:
    """Raise if a model cannot take such images or its output has not YOLO-v3's layout. Its mode is kept."""
    try:
        with evaluation_mode(model):
            output: Any = model(torch.zeros(2, 3, size, size))
    except RuntimeError as error:
        raise ModelError(
            f"model '{name}' cannot take images of 3x{size}x{size}: {str(error).splitlines()[0]}."
        ) from None
    expected = [(2, len(ANCHORS[0]), size // stride, size // stride, 5 + classes) for stride in STRIDES]
    several = isinstance(output, tuple | list)
    shapes: Any = [tuple(getattr(tensor, "shape", ())) for tensor in output] if several else type(output).__name__
    if shapes != expected:
        raise ModelError(
            f"model '{name}' returns {shapes} for a batch of 2 images; for {classes} classes it must return three tensors "
            f"of {', '.join(map(str, expected))}."
        )
