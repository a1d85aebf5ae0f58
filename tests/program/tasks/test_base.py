from typing import Any

import pytest
from torch import nn

from adagp.data import DATASETS, DatasetInfo
from adagp.errors import OptionError, TaskError
from adagp.program.run import TrainConfig
from adagp.program.run.metrics import ACCURACY, Metric
from adagp.program.tasks.base import TASKS, build_task, evaluated
from adagp.program.tasks.classify import Classification


class Careless(Classification):
    """Says what it is told to say."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        found: dict[str, float] = self.found
        return found


@pytest.mark.parametrize(
    ("found", "missing", "given"),
    [
        ({}, "loss", "nothing"),
        ({"accuracy": 0.5}, "loss", "accuracy (float)"),
        ({"loss": 1, "accuracy": "high"}, "accuracy", "loss (int), accuracy (str)"),
    ],
)
def test_what_is_declared_must_be_returned_as_a_number(found: Any, missing: str, given: str) -> None:
    with pytest.raises(TaskError) as caught:
        evaluated(Careless(found), nn.Identity())
    assert str(caught.value) == (
        f"Careless.evaluate must return a number for '{missing}', which the task declares; it returned: {given}."
    )


def test_more_than_what_is_declared_is_welcome() -> None:
    found = {"loss": float("nan"), "accuracy": 0.5, "box_loss": 2.0}
    assert evaluated(Careless(found), nn.Identity()) is found


def test_the_first_metric_is_what_runs_are_compared_by(monkeypatch: pytest.MonkeyPatch) -> None:
    task, bleu = Careless({}), Metric("bleu")
    monkeypatch.setattr(Careless, "metrics_at_end", (bleu,))
    assert (task.metric, task.all_metrics) == (ACCURACY, (ACCURACY, bleu))
    monkeypatch.setattr(Careless, "metrics", ())
    with pytest.raises(TaskError, match="^Careless declares no metrics; it needs one at least.$"):
        _ = task.metric


def test_a_data_set_of_an_unknown_task_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DATASETS, "_things", {"mine": DatasetInfo("mine", "image", "of my own")})
    with pytest.raises(OptionError) as caught:
        build_task(TrainConfig(dataset="mine"))
    assert str(caught.value) == (
        f"unknown task 'image'. Did you mean 'images'? Choose from: {', '.join(sorted(TASKS))}."
    )
