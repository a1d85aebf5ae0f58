"""Decoders, whose weights count their outputs on axis 1, train from every source."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.transposed import Conv1D
from torch import Tensor, nn

import adagp
from adagp.schedules import Ladder, Rung, Schedule, WarmUp, parse_schedule
from adagp.sources.controls import ZeroSource

STILL = {"zero", "momentum", "skip"}
"""Sources that leave weights alone where no momentum moves them."""


def decoder() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 32),
        nn.Unflatten(1, (8, 2, 2)),
        nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1, groups=2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 3, 2, stride=2),
        nn.Flatten(2),
        nn.ReLU(),
        nn.ConvTranspose1d(3, 2, 3, padding=1),
        nn.Flatten(),
        Conv1D(5, 128),
    )


def trainer_for(schedule: Schedule, *, last: bool = False, **options: Any) -> adagp.Trainer:
    model = decoder()
    if last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return adagp.attach(
        model,
        optimizer,
        length=adagp.Epochs(9, 2),
        schedule=schedule,
        engine=adagp.EngineOptions(metrics_every=1),
        **options,
    )


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(4, 6, generator=generator), torch.tensor([0, 1, 2, 4])) for _ in range(count)]


@pytest.mark.parametrize(
    "source", sorted(adagp.METHODS[name].source for name in adagp.METHODS if name not in ("bp", "control"))
)
def test_a_bp_and_a_gp_batch(source: str) -> None:
    trainer = trainer_for(WarmUp(Ladder((Rung(1, 0),), source), epochs=1), sample=batches(1)[0][0])
    model = trainer.model
    assert [site.name for site in trainer.survey.sites] == ["0", "2", "5", "8", "10"]
    weights = {f"{site.name}.weight" for site in trainer.survey.sites}
    *seen, now = batches(3)
    for inputs, targets in seen:
        trainer.step(inputs, targets, F.cross_entropy)

    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    result = trainer.step(*now, F.cross_entropy)
    assert result.phase is adagp.Phase.GP
    assert not result.guarded
    assert all(value.isfinite().all() for value in model.parameters())
    changed = {key for key, value in model.named_parameters() if not torch.equal(value, before[key])}
    assert changed == (set() if source in STILL else weights)


@pytest.mark.medium
@pytest.mark.parametrize("source", ["predicted", "remapped", "topk", "feedback", "dni", "average"])
def test_the_memory_format_changes_nothing_but_rounding(source: str) -> None:
    trainers = [trainer_for(WarmUp(Ladder((Rung(1, 1),), source), epochs=1), last=last) for last in (False, True)]
    for inputs, targets in batches(8):
        for trainer in trainers:
            trainer.step(inputs, targets, F.cross_entropy)
    plain, last = (trainer.model.state_dict() for trainer in trainers)
    assert last["2.weight"].is_contiguous(memory_format=torch.channels_last)
    for name, value in plain.items():
        torch.testing.assert_close(last[name], value, rtol=1e-3, atol=1e-4, msg=name)


def gradients(sites: str, **sources: adagp.Source) -> list[Tensor]:
    """Return the weight gradients of a batch in which the one of `sources` serves the schedule's `sites`."""
    trainer = trainer_for(
        parse_schedule(f"sites={sites}; first=allowed", 9, source=next(iter(sources))), sources=sources
    )
    ((inputs, targets),) = batches(1)
    with trainer.batch() as batch:
        batch.backward(F.cross_entropy(trainer.model(inputs), targets))
        found = [site.weight.grad.clone() for site in trainer.survey.sites if site.weight.grad is not None]
        batch.step()
    return found


def test_schedules_count_transposed_convolutions_as_convolutions() -> None:
    found = gradients("every 2nd conv", zero=ZeroSource())
    assert [bool(one.any()) for one in found] == [True, True, False, True, True]
    found = gradients("every 1st linear", zero=ZeroSource())
    assert [bool(one.any()) for one in found] == [False, True, True, True, False]


def test_all_positions_are_the_true_gradient() -> None:
    """The first transposed convolution has 4x4 of them; as the schedule replaces others by zeros, only it is compared."""
    true, found = gradients("every 2nd conv", zero=ZeroSource())[1], gradients("2", topk=adagp.TopKSource(k=16))[1]
    torch.testing.assert_close(found, true)
    assert not torch.allclose(gradients("2", topk=adagp.TopKSource(k=1))[1], true)
