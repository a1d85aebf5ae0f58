"""A model in the channels-last format trains as it does in the logical order, but for rounding."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagp import EngineOptions, Epochs, attach
from adagp.engine.trainer import Trainer
from adagp.papers.adagp.source import PredictedSource
from adagp.schedules import Schedule, parse_schedule
from adagp.sources import LearnedSource


def build(last: bool, schedule: str | Schedule) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 4, 3, groups=2),
        nn.ReLU(),
        nn.Conv2d(4, 8, 1),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 3),
    )
    if last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return attach(
        model,
        optimizer,
        method=None if isinstance(schedule, Schedule) else "adagp",
        length=Epochs(2, 6),
        schedule=schedule,
        engine=EngineOptions(metrics_every=2),
    )


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(5, 2, 9, 8, generator=generator), torch.randint(0, 3, (5,), generator=generator))
        for _ in range(12)
    ]


@pytest.mark.medium
@pytest.mark.parametrize("source", ["predicted", "remapped", "topk", "replay", "feedback"])
def test_the_format_changes_nothing_but_rounding(source: str) -> None:
    text = "sites=every 2nd conv" if source == "topk" else "1:1"
    trainers = [build(last, parse_schedule(text, 2, source=source)) for last in (False, True)]
    for inputs, targets in batches():
        for trainer in trainers:
            trainer.step(inputs, targets, F.cross_entropy)
    plain, last = (trainer.model.state_dict() for trainer in trainers)
    assert last["0.weight"].is_contiguous(memory_format=torch.channels_last)
    for name, value in plain.items():
        torch.testing.assert_close(last[name], value, rtol=1e-3, atol=1e-4, msg=name)


def test_gradients_lie_as_the_weights_do() -> None:
    """So that the optimizer walks through both at the speed of memory."""
    trainer = build(last=True, schedule="1:1")
    for inputs, targets in batches()[:6]:
        trainer.step(inputs, targets, F.cross_entropy)
    inputs, targets = batches()[0]
    with trainer.batch() as batch:
        assert batch.phase == "gp"
        batch.backward(F.cross_entropy(trainer.model(inputs), targets))
        for site in trainer.survey.sites[:2]:
            assert site.weight.grad is not None
            assert site.weight.grad.stride() == site.weight.stride()
        batch.step()


@pytest.mark.parametrize("last", [False, True])
def test_learning_without_autograd_equals_learning_with_it(last: bool) -> None:
    """The reference path is `LearnedSource.learn`: per-site losses under autograd."""
    fast, slow = build(last, "1:1"), build(last, "1:1")
    source = slow.sources["predicted"]
    assert isinstance(source, PredictedSource)
    source.learn = lambda sites, truths, scales: LearnedSource.learn(source, sites, truths, scales)  # type: ignore[method-assign]
    source.forecast = lambda sites: LearnedSource.forecast(source, sites)  # type: ignore[method-assign]
    for inputs, targets in batches():
        for trainer in (fast, slow):
            trainer.step(inputs, targets, F.cross_entropy)
    found, expected = (trainer.sources["predicted"].state_dict() for trainer in (fast, slow))
    for name, value in expected["network"].items():
        torch.testing.assert_close(found["network"][name], value, rtol=1e-3, atol=1e-5, msg=name)
    assert found["epoch_batches"] == expected["epoch_batches"]
    torch.testing.assert_close(found["epoch_loss"], expected["epoch_loss"])
