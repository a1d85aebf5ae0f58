"""The figures of merit against slow loops."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adagp
from adagp.engine.metrics import NoiseMeter, QualityMeter, cosine
from adagp.errors import OptionError
from adagp.layers.sites import survey


def meter(interval: int = 1) -> QualityMeter:
    return QualityMeter(survey(nn.Linear(3, 2, bias=False)).sites, interval)


def slow_figures(truth: Tensor, prediction: Tensor) -> dict[str, float]:
    pairs = list(zip(truth.flatten().tolist(), prediction.flatten().tolist(), strict=True))
    true_norm, norm = (math.sqrt(sum(pair[side] ** 2 for pair in pairs)) for side in (0, 1))
    relative = [abs((one - other) / one) for one, other in pairs if one != 0]
    return {
        "cosine": sum(one * other for one, other in pairs) / (true_norm * norm),
        "norm_ratio": norm / true_norm,
        "mse": sum((one - other) ** 2 for one, other in pairs) / len(pairs),
        "mape": sum(relative) / len(relative),
    }


def test_figures_equal_slow_loops_and_are_averaged() -> None:
    one = meter()
    sites = survey(nn.Linear(3, 2, bias=False)).sites
    torch.manual_seed(0)
    truths, predictions = [torch.randn(2, 3) for _ in range(3)], [torch.randn(2, 3) for _ in range(3)]
    truths[1][0, 0] = 0.0  # dividing by it would give infinity
    for truth, prediction in zip(truths, predictions, strict=True):
        one.record(sites, [truth], [[prediction]])
    (figures,) = one.read().values()
    slow = [slow_figures(truth, prediction) for truth, prediction in zip(truths, predictions, strict=True)]
    for name in ("cosine", "norm_ratio", "mse", "mape"):
        assert figures[name] == pytest.approx(sum(row[name] for row in slow) / 3, rel=1e-5)
    follow = [float(cosine(truths[place], truths[place - 1])) for place in (1, 2)]
    assert figures["cosine_previous"] == pytest.approx(sum(follow) / 2, rel=1e-5)
    assert one.read() == {"": dict.fromkeys(figures)}


def test_only_every_interval_th_batch_is_sampled_and_copied() -> None:
    one = meter(interval=3)
    sites = survey(nn.Linear(3, 2, bias=False)).sites
    due, kept = [], []
    for _ in range(7):
        due.append(one.due())
        one.record(sites, [torch.ones(2, 3)], [[torch.ones(2, 3)]] if one.due() else [])
        kept.append(bool(one._previous))
    assert due == [True, False, False, True, False, False, True]
    assert kept == [False, False, True, False, False, True, False]


def test_sites_that_were_not_called_have_no_figures() -> None:
    one = meter()
    one.record(survey(nn.Linear(3, 2, bias=False)).sites, [torch.ones(2, 3)], [[None]])
    assert one.read() == {"": dict.fromkeys(["cosine", "norm_ratio", "mse", "mape", "cosine_previous"])}


def test_a_zero_prediction_has_mape_one_and_no_cosine() -> None:
    one = meter()
    one.record(survey(nn.Linear(3, 2, bias=False)).sites, [torch.ones(2, 3)], [[torch.zeros(2, 3)]])
    (figures,) = one.read().values()
    assert figures == {"cosine": None, "norm_ratio": 0.0, "mse": 1.0, "mape": 1.0, "cosine_previous": None}


def test_a_negative_interval_is_rejected() -> None:
    with pytest.raises(OptionError, match=r"^the metrics interval is -1; it must be 0 \(never\) or more\.$"):
        meter(-1)


def test_every_learner_is_compared_on_its_own() -> None:
    sites = survey(nn.Linear(3, 2, bias=False)).sites
    both = QualityMeter(sites, 1, ["exact", "opposite"])
    both.record(sites, [torch.ones(2, 3)], [[torch.ones(2, 3)], [-2 * torch.ones(2, 3)]])
    state = both.state_dict()
    found = both.read()
    assert list(found) == [" (exact)", " (opposite)"]
    assert [found[" (exact)"][name] for name in ("cosine", "mse")] == pytest.approx([1, 0])
    assert [found[" (opposite)"][name] for name in ("cosine", "norm_ratio")] == pytest.approx([-1, 2])
    other = QualityMeter(sites, 1, ["exact", "opposite"])
    other.load_state_dict(state)
    assert other.read() == found


def test_a_checkpoint_with_the_figures_of_one_learner_is_read() -> None:
    """As checkpoints were written before each learner had its own figures."""
    one = meter()
    one.record(survey(nn.Linear(3, 2, bias=False)).sites, [torch.ones(2, 3)], [[torch.ones(2, 3)]])
    old = {name: value[:, 0] if name in ("sums", "counts") else value for name, value in one.state_dict().items()}
    again = meter()
    again.load_state_dict(old)
    assert again.read() == one.read()
    several = QualityMeter(survey(nn.Linear(3, 2, bias=False)).sites, 1, ["first", "second"])
    several.load_state_dict(old)
    found = several.read()
    assert found[" (first)"]["cosine"] == pytest.approx(1)
    assert found[" (second)"]["cosine"] is None


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
