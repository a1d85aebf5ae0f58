"""The contract of a task, through which the training loop gets data, loss and score; and the table of tasks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adagp.core.registry import Registry, import_reference
from adagp.data import DATASETS
from adagp.data.batches import Share
from adagp.errors import TaskError
from adagp.models.registry import DETECTION, IMAGES, LANGUAGE, TRANSLATION
from adagp.program.run.config import TrainConfig
from adagp.program.run.metrics import ACCURACY, Metric


class Task(ABC):
    """Batches to train on, their loss, and the evaluation on held-out data.

    Batches are a pure function of the epoch and the batch's place in it, so that a run can be resumed anywhere.
    `metrics` (one at least) are what `evaluate` returns besides `loss`; runs are compared by the first of them. What
    `final_metrics` returns for tables is declared in `metrics_at_end`.
    """

    metrics: tuple[Metric, ...] = (ACCURACY,)
    metrics_at_end: tuple[Metric, ...] = ()

    @property
    def metric(self) -> Metric:
        """The metric that runs are compared by."""
        if not self.metrics:
            raise TaskError(f"{type(self).__name__} declares no metrics; it needs one at least.")
        return self.metrics[0]

    @property
    def all_metrics(self) -> tuple[Metric, ...]:
        """The metrics of each epoch, and those at the end of a run."""
        return (self.metric, *self.metrics[1:], *self.metrics_at_end)

    @property
    @abstractmethod
    def batches_per_epoch(self) -> int:
        """Batches in each epoch."""

    def data_facts(self) -> dict[str, Any]:
        """Return plain values that identify the data: a run can be resumed only with the data it was started with."""
        return {"batches_per_epoch": self.batches_per_epoch}

    @abstractmethod
    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, Any]]:
        """Yield `(inputs, targets)` from batch `start` of `epoch` on. A tuple of inputs is passed as several arguments."""

    def shares(self, epoch: int, start: int, share: Share) -> Iterator[tuple[Any, Any]]:
        """Yield one of several equal shares of each of these batches, for a process that trains on that share only.

        This default reads whole batches; a task that can read less overrides it.
        """
        for inputs, targets in self.batches(epoch, start):
            yield take_share(share, inputs), take_share(share, targets)

    def fix_shapes(self) -> None:  # noqa: B027  # most tasks have nothing to do
        """Let the inputs of all batches have the same shapes from now on, as pipelines need them."""

    def weight(self, targets: Any) -> int | None:
        """Return the number of items that the loss averages over (words, objects), if equal shares of a batch may differ in it.

        The batch's loss is the mean of its shares' losses, weighted by this number (by 1 if it is 0). None: equal weights, as
        for a loss that is a mean over samples.
        """
        return None

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return the untrained model, initialised from torch's global random state."""

    @abstractmethod
    def loss(self, output: Any, targets: Any) -> Tensor:
        """Return the mean loss of a batch."""

    @abstractmethod
    def score(self, output: Any, targets: Any) -> tuple[Tensor, int]:
        """Return the sum of the first metric over a batch's answers, and how many answers there are.

        For accuracy that is the number of right answers, for the mean squared error the sum of squared errors. A metric that
        is not a mean of answers sums something else, from which `average` computes the metric.
        """

    def average(self, total: float, answers: int) -> float:
        """Return the first metric of `answers` answers, whose scores add up to `total`: their mean, by default."""
        return total / max(1, answers)

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the figures on held-out data, `loss` and all `metrics` among them. The model's mode is kept."""

    def final_metrics(self, model: nn.Module) -> dict[str, Any]:
        """Return figures that cost too much for every epoch, by their names in the summary. The model's mode is kept.

        A metric that `metrics_at_end` declares is called `test_` and its name.
        """
        return {}


def take_share(share: Share, value: Any) -> Any:
    """Return the share of a batch's inputs or targets: of tensors, and tensors in tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return share.of(value)
    if isinstance(value, tuple | list):
        return type(value)(take_share(share, item) for item in value)
    if isinstance(value, dict):
        return {name: take_share(share, item) for name, item in value.items()}
    return value


def check_evaluation(task: Task, model: nn.Module) -> None:
    """Evaluate the untrained model, so that a user's task which breaks the contract fails before training.

    Our own tasks are tested and skip this.
    """
    if type(task).__module__.partition(".")[0] != __name__.partition(".")[0]:
        with torch.random.fork_rng(devices=[]):
            evaluated(task, model)


def facts_of_parts(**parts: dict[str, Any]) -> dict[str, Any]:
    """Return `data_facts` of a training and a test set, by `train_samples`, `train_digest`, ..."""
    return {f"{part}_{name}": value for part, facts in parts.items() for name, value in facts.items()}


def evaluated(task: Task, model: nn.Module) -> dict[str, float]:
    """Return the result of the task's `evaluate`; raise if a declared metric is missing or not a number."""
    figures = task.evaluate(model)
    for name in ("loss", *(metric.name for metric in task.metrics)):
        if not isinstance(figures.get(name), int | float):
            raise TaskError(
                f"{type(task).__name__}.evaluate must return a number for '{name}', which the task declares; it returned: "
                f"{', '.join(f'{key} ({type(value).__name__})' for key, value in figures.items()) or 'nothing'}."
            )
    return figures


TaskBuilder = Callable[[TrainConfig, Path | None, bool], Task]
"""Makes a task from the configuration, the data folder, and whether to download."""


def _builtin(reference: str) -> TaskBuilder:
    """Return the builder of one of our own tasks, whose module is imported only when it is needed."""
    return lambda *arguments: import_reference(reference, what="a task", kind="Class")(*arguments)


TASKS: Registry[TaskBuilder] = Registry("task")
"""The task of each kind of data set."""
TASKS.add(IMAGES, _builtin("adagp.program.tasks.classify:Classification"))
TASKS.add(DETECTION, _builtin("adagp.program.tasks.detect:Detection"))
TASKS.add(LANGUAGE, _builtin("adagp.program.tasks.language:LanguageModelling"))
TASKS.add(TRANSLATION, _builtin("adagp.program.tasks.translate:Translation"))


def build_task(config: TrainConfig, data_dir: Path | None = None, download: bool = False) -> Task:
    """Return the task of the configuration's data set; a path to a `.npz` file is an image set."""
    kind = IMAGES if config.dataset.endswith(".npz") else DATASETS[config.dataset].task
    return TASKS[kind](config, data_dir, download)
