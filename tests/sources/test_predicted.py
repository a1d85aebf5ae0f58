from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from adagp.errors import OptionError
from adagp.plan import Step
from adagp.predictor.layout import gradient_norms
from adagp.predictor.network import PredictorNetwork
from adagp.sites import Site
from adagp.sources import LearnedSource, LearningOptions, Moment, PredictedSource, RunningNorms, default_source


def test_produces_row_by_row(
    sites: tuple[Site, ...], bound: Callable[[LearnedSource], LearnedSource], watch: Callable[..., list[Tensor]]
) -> None:
    """One output channel at a time: batch mean, 2x2 averages, the network, as many numbers as the row has."""
    source = bound(PredictedSource(LearningOptions(grid=2)))
    outputs = watch(source, sites, seed=0)
    network = source.network
    assert isinstance(network, PredictorNetwork)
    for site, output, produced in zip(sites, outputs, source.produce(sites), strict=True):
        assert produced is not None
        assert produced.shape == site.weight.shape
        assert not produced.requires_grad
        for row in range(site.rows):
            mean = sum(output[sample, row] for sample in range(4)) / 4
            assert isinstance(mean, Tensor)
            cells = [mean] * 4 if mean.dim() == 0 else [mean[:3, :3], mean[:3, 3:], mean[3:, :3], mean[3:, 3:]]
            picture = torch.stack([cell.mean() for cell in cells]).view(2, 2)
            features = torch.relu(network.convolution(picture[None, None])).flatten()
            numbers = network.readout.weight @ features + network.readout.bias
            torch.testing.assert_close(produced[row].flatten(), numbers[: site.width].detach())


def test_the_network_is_as_wide_as_the_widest_row(sites: tuple[Site, ...]) -> None:
    network = PredictedSource(channels=2).build_network(sites)
    assert isinstance(network, PredictorNetwork)
    assert network.readout.out_features == max(18, 108)
    assert isinstance(network.convolution, nn.Conv2d)
    assert network.convolution.out_channels == 2


def part_of(site: Site, part: int, parts: int) -> slice:
    return slice(part * site.rows // parts, (part + 1) * site.rows // parts)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts_of_the_rows_teach_the_same_on_average(
    sites: tuple[Site, ...],
    bound: Callable[[LearnedSource], LearnedSource],
    watch: Callable[..., list[Tensor]],
    monkeypatch: pytest.MonkeyPatch,
    parts: int,
) -> None:
    """Also where the rows (3 and 5) do not divide; loss and gradients are those of autograd on the rows that were drawn."""
    source = bound(PredictedSource(LearningOptions(grid=2), parts=parts))
    watch(source, sites, seed=0)
    truths = [torch.randn(site.weight.shape) for site in sites]
    source._norms.update(sites, gradient_norms(truths))
    expected = LearnedSource.learn(source, sites, truths, None)
    gradients = [parameter.grad for parameter in source.network.parameters()]
    found = torch.zeros(())
    sums = [torch.zeros_like(parameter) for parameter in source.network.parameters()]
    for part in range(parts):
        drawn = [part_of(site, part, parts) for site in sites]
        monkeypatch.setattr(source, "_drawn", lambda sites, drawn=drawn: drawn)
        found = found + source.learn(sites, truths, None)
        for total, parameter in zip(sums, source.network.parameters(), strict=True):
            assert parameter.grad is not None
            total += parameter.grad
    torch.testing.assert_close(found / parts, expected)
    for total, gradient in zip(sums, gradients, strict=True):
        torch.testing.assert_close(total / parts, gradient, rtol=1e-4, atol=1e-5)


def test_parts_are_drawn_by_step_and_reach_all_rows(sites: tuple[Site, ...]) -> None:
    source = PredictedSource(parts=4)
    source.bind(sites, RunningNorms(sites))
    seen = []
    for batch in range(60):
        source.begin(Moment(Step(0, batch)))
        drawn = source._drawn(sites)
        assert drawn[1:] == source._drawn(sites[1:])
        seen.append([range(site.rows)[one] for site, one in zip(sites, drawn, strict=True)])
    assert {tuple(rows) for rows, _ in seen} == {(0,), (1,), (2,)}  # fewer rows than parts: one row each
    assert {tuple(rows) for _, rows in seen} == {(0,), (1,), (2,), (3, 4)}


def test_a_wrong_number_of_parts_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^the predictor learns from one of 0 parts; it must be 1 or more\.$"):
        PredictedSource(parts=0)


def test_is_registered_and_learns() -> None:
    source = default_source("predicted")
    assert isinstance(source, PredictedSource)
    assert source.learns
    assert source.options == LearningOptions()
