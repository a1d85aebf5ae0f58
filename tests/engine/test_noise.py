"""Correlation and noise scale from consecutive batches: by hand, against single samples' gradients, and from a trainer."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adagp
from adagp.engine.noise import NoiseMeter


def site(size: int = 3) -> Any:
    return SimpleNamespace(index=0, weight=nn.Parameter(torch.zeros(size)))


def test_three_batches_by_hand() -> None:
    meter = NoiseMeter([site()], 1)
    truths = [torch.tensor(values) for values in ([1.0, 0, 0], [1.0, 1, 0], [1.0, 0, 2])]
    predictions = [torch.tensor(values) for values in ([2.0, 0, 0], [2.0, 1, 0], [2.0, 1, 1])]
    assert meter.read() == [[{"sample_correlation": None, "noise_batches": None}]]
    for truth, prediction in zip(truths, predictions, strict=True):
        meter.prepare_record([site()], [truth], [[prediction]])()
    # Differences (0, 1, 0) and (0, -1, 2), predicted (0, 1, 0) and (0, 0, 1); products of consecutive gradients 1 and 1.
    (figures,) = meter.read()[0]
    assert figures["sample_correlation"] == pytest.approx((1 + 2) / ((1 + 5) * (1 + 1)) ** 0.5)
    assert figures["noise_batches"] == pytest.approx((1 + 5) / (2 * 2))
    meter.prepare_record([site()], [truths[0]], [[None]])()
    assert meter.read() == [[{"sample_correlation": None, "noise_batches": None}]]


def test_batches_estimate_the_figures_of_single_samples() -> None:
    """Samples' gradients are drawn around a mean, with a known correlation of their predictions."""
    generator = torch.Generator().manual_seed(1)
    mean, batch, rho = torch.full((40,), 0.5, dtype=torch.float64), 16, 0.6
    meter = NoiseMeter([site(40)], 1)
    for _ in range(3000):
        noise, other = torch.randn(2, batch, 40, generator=generator, dtype=torch.float64)
        samples, predicted = mean + noise, mean + rho * noise + (1 - rho**2) ** 0.5 * other
        meter.prepare_record([site(40)], [samples.mean(0)], [[predicted.mean(0)]])()
    (figures,) = meter.read()[0]
    assert figures["sample_correlation"] == pytest.approx(rho, abs=0.02)
    # tr(S) / |G|^2 = 40 / (40 * 0.25) = 4 samples, which are a quarter of a batch
    assert figures["noise_batches"] == pytest.approx(4 / batch, rel=0.05)


def trainer_for(noise: bool) -> tuple[Any, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    engine = adagp.EngineOptions(metrics_every=1, noise=noise)
    options: dict[str, Any] = {"method": "feedback", "length": adagp.Epochs(4, 8), "engine": engine}
    return adagp.attach(model, optimizer, **options), model


def batch(index: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(index)
    inputs = torch.randn(32, 6, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def test_users_read_them_by_site() -> None:
    plain, _ = trainer_for(noise=False)
    trainer, _ = trainer_for(noise=True)
    for index in range(12):
        for each in (plain, trainer):
            each.step(*batch(index), nn.functional.cross_entropy)
    state = trainer.state_dict()
    sites, without = trainer.read_sites(), plain.read_sites()
    assert "sample_correlation" not in without["0"]
    for name, figures in sites.items():
        assert -1 <= figures["sample_correlation"] <= 1
        assert figures["noise_batches"] is None or figures["noise_batches"] > 0
        assert {key: figures[key] for key in without[name]} == without[name], "nothing else changes"
    again, _ = trainer_for(noise=True)
    again.load_state_dict(state)
    assert again.read_sites() == sites
    former, _ = trainer_for(noise=True)
    former.load_state_dict(plain.state_dict())  # a checkpoint without them
    assert former.read_sites()["0"]["sample_correlation"] is None
