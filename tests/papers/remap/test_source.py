from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from adagp.errors import OptionError
from adagp.layers.sites import Site
from adagp.papers.remap.network import RemapNetwork
from adagp.papers.remap.source import RemappedSource
from adagp.sources import LearnedSource, LearningOptions, default_source


def test_produces_copies_of_one_vector(
    sites: tuple[Site, ...], bound: Callable[[LearnedSource], LearnedSource], watch: Callable[..., list[Tensor]]
) -> None:
    """Batch mean, 2x2 maxima of each channel, the network, the mean over channels, repeated over the weight."""
    source = bound(RemappedSource(LearningOptions(grid=2), outputs=20, channels=3))
    outputs = watch(source, sites, seed=0)
    network = source.network
    assert isinstance(network, RemapNetwork)
    network.eval()
    for site, output, produced in zip(sites, outputs, source.produce(sites), strict=True):
        assert produced is not None
        assert produced.shape == site.weight.shape
        vectors = []
        for row in range(site.rows):
            mean = output[:, row].mean(0)
            cells = [mean] * 4 if mean.dim() == 0 else [mean[:3, :3], mean[:3, 3:], mean[3:, :3], mean[3:, 3:]]
            picture = torch.stack([cell.max() for cell in cells]).view(2, 2)
            vectors.append(network.readout(network.features(picture[None, None]))[0])
        vector = torch.stack(vectors).mean(0).tolist()
        whole = site.weight.numel() // 20
        by_hand = vector * whole + vector[-1:] * (site.weight.numel() - 20 * whole)
        torch.testing.assert_close(produced.flatten(), torch.tensor(by_hand))


def test_the_network_does_not_grow_with_the_model(sites: tuple[Site, ...]) -> None:
    source = RemappedSource(outputs=30)
    sizes = {sum(one.numel() for one in source.build_network(some).parameters()) for some in (sites, sites[:1])}
    assert len(sizes) == 1


def test_is_registered_and_learns_with_the_papers_scheduler() -> None:
    source = default_source("remapped")
    assert isinstance(source, RemappedSource)
    assert source.learns
    assert source.options == LearningOptions(plateau=True)
    assert source.outputs == 10_000


def test_outputs_are_checked() -> None:
    with pytest.raises(OptionError) as caught:
        RemappedSource(outputs=0)
    assert str(caught.value) == "the re-mapping predictor has 0 outputs; it must have 1 or more."
