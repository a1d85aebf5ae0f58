"""Correlation and noise scale against single samples' gradients, taken in a loop."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from adagp.program.compare.noise import NoiseStatistics, two_batch_sizes


def sample_gradients(samples: int) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Return the gradients of each sample: of a small network, and of the same one with other weights at its end."""
    generator = torch.Generator().manual_seed(0)
    first, last = nn.Linear(5, 7), nn.Linear(7, 3)
    net = nn.Sequential(first, nn.Tanh(), last)
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    inputs = torch.randn(samples, 5, generator=generator)
    labels = torch.randint(0, 3, (samples,), generator=generator)
    weights = [first.weight, last.weight]

    def gradients(index: int) -> list[Tensor]:
        loss = nn.functional.cross_entropy(net(inputs[index : index + 1]), labels[index : index + 1])
        return list(torch.autograd.grad(loss, weights))

    truths = [gradients(index) for index in range(samples)]
    with torch.no_grad():
        last.weight.add_(torch.randn(last.weight.shape, generator=generator))
    return truths, [gradients(index) for index in range(samples)]


def flat(gradients: Sequence[Sequence[Tensor]]) -> Tensor:
    return torch.stack([torch.cat([part.flatten() for part in sample]) for sample in gradients]).double()


def statistics(truths: list[list[Tensor]], predictions: list[list[Tensor]], batch: int) -> NoiseStatistics:
    found = NoiseStatistics(batch)
    for start in range(0, len(truths), batch):
        means = [
            [torch.stack(parts).mean(0) for parts in zip(*samples[start : start + batch], strict=True)]
            for samples in (truths, predictions)
        ]
        found.add(*means)
    return found


def test_single_samples_by_hand() -> None:
    truths, predictions = sample_gradients(40)
    found = statistics(truths, predictions, 1)
    true, predicted = (flat(each) - flat(each).mean(0) for each in (truths, predictions))
    correlation = (true * predicted).sum() / (true.square().sum() * predicted.square().sum()).sqrt()
    assert 0.1 < correlation < 0.95
    assert found.correlation() == pytest.approx(float(correlation))
    variance = flat(truths).var(0).sum()
    square = flat(truths).mean(0).square().sum() - variance / 40
    assert found.noise_scale() == pytest.approx(float(variance / square))


def test_minibatches_estimate_the_same_figures() -> None:
    """A minibatch's gradient is the mean of its samples': the correlation and the noise scale are those of samples."""
    truths, predictions = sample_gradients(6000)
    single, batches = (statistics(truths, predictions, batch) for batch in (1, 20))
    assert batches.correlation() == pytest.approx(single.correlation(), abs=0.06)
    assert batches.noise_scale() == pytest.approx(single.noise_scale(), rel=0.15)


def test_what_is_predicted_exactly_or_not_at_all() -> None:
    truths, predictions = sample_gradients(20)
    assert statistics(truths, truths, 2).correlation() == pytest.approx(1)
    negative = [[-part for part in sample] for sample in truths]
    assert statistics(truths, negative, 2).correlation() == pytest.approx(-1)
    alone = NoiseStatistics(2)
    alone.add(truths[0], predictions[0])
    assert alone.figures() == {"correlation": None, "noise_scale": None}, "one minibatch has no variance"
    alone.add(truths[1], None)
    assert alone.correlation() is None
    constant = NoiseStatistics(4)
    for sample in truths[:3]:
        constant.add(sample, predictions[0])
    assert constant.correlation() is None
    opposite = NoiseStatistics(4)
    for sample in (truths[0], negative[0]):
        opposite.add(sample, None)
    assert opposite.noise_scale() is None, "the mean gradient is zero"


@given(gradient=st.floats(0.1, 10), noise=st.floats(0.1, 1000), small=st.integers(1, 64), factor=st.integers(2, 50))
def test_two_batch_sizes_recover_gradient_and_noise(gradient: float, noise: float, small: int, factor: int) -> None:
    """A gradient of b samples has the expected squared norm |G|^2 + tr(S) / b."""
    large = small * factor
    found_gradient, found_noise = two_batch_sizes(gradient + noise / small, gradient + noise / large, small, large)
    assert found_gradient == pytest.approx(gradient, rel=1e-6, abs=1e-6)
    assert found_noise == pytest.approx(noise, rel=1e-6, abs=1e-6)
