"""A task: a function of four numbers is learned and judged by its error. With it come its data set and a model.

adagp train --plugin examples.plugins.sine_regression --dataset sine --epochs 20
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagp.data import DATASETS, DatasetInfo
from adagp.data.batches import epoch_order
from adagp.layers.eval_mode import evaluation_mode
from adagp.models.build import import_function
from adagp.program.run.config import DATASET_DEFAULTS, TrainConfig
from adagp.program.run.metrics import SHARE, Metric
from adagp.program.tasks.base import TASKS, Task

TRAIN, TEST = 256, 64
"""Samples."""


def perceptron() -> nn.Module:
    """Return a model from four numbers to one."""
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))


@TASKS.register("regression")
class Regression(Task):
    """Learn sin(a + b) + c / 2; the fourth number means nothing."""

    metrics = (Metric("mean_squared_error", higher_is_better=False), Metric("largest_error", "m", False))
    metrics_at_end = (Metric("explained", SHARE, title="explained variance"),)

    def __init__(self, config: TrainConfig, data_dir: Path | None, download: bool) -> None:
        self.config = config
        self.inputs = torch.randn(TRAIN + TEST, 4, generator=torch.Generator().manual_seed(1))
        self.targets = torch.sin(self.inputs[:, :1] + self.inputs[:, 1:2]) + 0.5 * self.inputs[:, 2:3]

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches only."""
        return TRAIN // self.config.batch_size

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of an epoch, whose order is a function of the seed and the epoch."""
        order = epoch_order(TRAIN, self.config.seed, epoch, shuffle=True)
        for chosen in list(order.split(self.config.batch_size))[start : self.batches_per_epoch]:
            yield self.inputs[chosen], self.targets[chosen]

    def build_model(self) -> nn.Module:
        """Return a model that is named as package.module:function."""
        model: nn.Module = import_function(self.config.model)()
        return model

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error."""
        return F.mse_loss(output, targets)

    def score(self, output: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        """Return the sum of squared errors and the number of samples."""
        return F.mse_loss(output, targets, reduction="sum"), len(targets)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the errors on samples that were held out."""
        errors = self._errors(model)
        mean = errors.square().mean().item()
        return {"loss": mean, "mean_squared_error": mean, "largest_error": errors.abs().max().item()}

    def final_metrics(self, model: nn.Module) -> dict[str, Any]:
        """Return the share of the variance that the trained model explains."""
        return {"test_explained": 1 - float(self._errors(model).var() / self.targets[TRAIN:].var())}

    @torch.no_grad()
    def _errors(self, model: nn.Module) -> Tensor:
        with evaluation_mode(model):
            answers: Tensor = model(self.inputs[TRAIN:])
        return answers - self.targets[TRAIN:]


DATASETS.add("sine", DatasetInfo("sine", "regression", "sines of random numbers"))
DATASET_DEFAULTS["sine"] = {"model": f"{__name__}:perceptron", "batch_size": 32, "lr": 0.05}
