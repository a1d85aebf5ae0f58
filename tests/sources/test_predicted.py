from collections.abc import Callable

import torch
from torch import Tensor, nn

from adagp.predictor.network import PredictorNetwork
from adagp.sites import Site
from adagp.sources import SOURCES, LearnedSource, LearningOptions, PredictedSource


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


def test_is_registered_and_learns() -> None:
    source = SOURCES["predicted"]()
    assert isinstance(source, PredictedSource)
    assert source.learns
    assert source.options == LearningOptions()
