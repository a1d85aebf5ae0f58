"""A small convolutional network, its batches, and a trainer for it."""

from typing import Any

import torch
from torch import Tensor, nn

import adagp
from adagp.engine.trainer import Trainer
from adagp.schedules import Ladder, Rung, Schedule, WarmUp

Batches = list[tuple[Tensor, Tensor]]


def small_model(seed: int = 0, dropout: float = 0.2) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Conv2d(4, 6, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 9, 5),
    )


def small_batches(count: int, size: int = 8) -> Batches:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 1, 8, 8, generator=generator), torch.randint(0, 5, (size,), generator=generator))
        for _ in range(count)
    ]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)


def gp_only(warmup: int = 0) -> Schedule:
    return WarmUp(Ladder((Rung(1, 0),)), epochs=warmup)


def trainer_for(model: nn.Module, schedule: Schedule, **options: Any) -> Trainer:
    given = {"length": adagp.Epochs(9, 4), **options}
    return adagp.attach(model, given.pop("optimizer", None) or sgd(model), schedule=schedule, **given)


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_equal_states(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
