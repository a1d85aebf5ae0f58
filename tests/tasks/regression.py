"""A user's module: a data set without files, a task that is judged by its error, and a model for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagp.data import DATASETS, DatasetInfo
from adagp.data.batches import epoch_order
from adagp.models.references import import_function
from adagp.modes import evaluation_mode
from adagp.run.config import TrainConfig
from adagp.run.metrics import SHARE, Metric
from adagp.tasks.base import Task
from adagp.tasks.build import TASKS


def perceptron() -> nn.Module:
    """Return a model from four numbers to one."""
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))


@TASKS.register("regression")
class Regression(Task):
    """Learn a function of four numbers."""

    metrics = (Metric("mean_squared_error", higher_is_better=False), Metric("largest_error", "m", False))
    metrics_at_end = (Metric("explained", SHARE, title="explained variance"),)

    def __init__(self, config: TrainConfig, data_dir: Path | None, download: bool) -> None:
        self.config = config
        self.inputs = torch.randn(320, 4, generator=torch.Generator().manual_seed(1))
        self.targets = torch.sin(self.inputs[:, :1] + self.inputs[:, 1:2]) + 0.5 * self.inputs[:, 2:3]

    @property
    def batches_per_epoch(self) -> int:
        return 256 // self.config.batch_size

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        order = epoch_order(256, self.config.seed, epoch, shuffle=True)
        for chosen in list(order.split(self.config.batch_size))[start : self.batches_per_epoch]:
            yield self.inputs[chosen], self.targets[chosen]

    def build_model(self) -> nn.Module:
        model: nn.Module = import_function(self.config.model)()
        return model

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(output, targets)

    def score(self, output: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        return F.mse_loss(output, targets, reduction="sum"), len(targets)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        errors = self._errors(model)
        mean = errors.square().mean().item()
        return {"loss": mean, "mean_squared_error": mean, "largest_error": errors.abs().max().item()}

    def final_metrics(self, model: nn.Module) -> dict[str, Any]:
        return {"test_explained": 1 - float(self._errors(model).var() / self.targets[256:].var())}

    @torch.no_grad()
    def _errors(self, model: nn.Module) -> Tensor:
        with evaluation_mode(model):
            answers: Tensor = model(self.inputs[256:])
        return answers - self.targets[256:]


DATASETS.add("waves", DatasetInfo("waves", "regression", "sines of random numbers"))
