import pytest
import torch
from torch import Tensor, nn

from adagp.program.run import TrainConfig
from adagp.program.tasks.classify import Classification


class Breaks(nn.Module):
    """Fails on the second batch."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.BatchNorm1d(64).eval()
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        assert not self.training
        self.calls += 1
        if self.calls > 1:
            raise RuntimeError("no more")
        scores: Tensor = self.frozen(images.flatten(1))[:, :10]
        return scores


def test_an_evaluation_that_fails_leaves_the_modes_as_they_were() -> None:
    model = Breaks()
    with pytest.raises(RuntimeError, match="^no more$"):
        Classification(TrainConfig()).evaluate(model)
    assert (model.training, model.frozen.training) == (True, False)


def test_loss_and_accuracy_are_means_over_the_test_set() -> None:
    task = Classification(TrainConfig(batch_size=64))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    images, labels = (torch.cat(parts) for parts in zip(*task.data.test.epoch(0), strict=True))
    found = task.evaluate(model)
    assert found["accuracy"] == int((model(images).argmax(1) == labels).sum()) / len(labels)
    assert found["loss"] == pytest.approx(nn.functional.cross_entropy(model(images), labels).item())
