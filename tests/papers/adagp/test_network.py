import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from adagp.papers.adagp.network import PredictorNetwork


def drawn_network(width: int, grid: int = 4, channels: int = 4) -> PredictorNetwork:
    network = PredictorNetwork(width, grid, channels)
    nn.init.normal_(network.readout.weight)
    nn.init.normal_(network.readout.bias)
    return network


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 20)), min_size=1, max_size=4), st.integers(1, 4))
def test_equals_the_whole_computation_masked(sites: list[tuple[int, int]], grid: int) -> None:
    """Site by site, all outputs of the fully connected layer, the surplus cut off."""
    torch.manual_seed(len(sites))
    network = drawn_network(20, grid)
    summaries = [torch.randn(rows, 1, grid, grid) for rows, _ in sites]
    found = network(summaries, [width for _, width in sites])
    for one, summary, (rows, width) in zip(found, summaries, sites, strict=True):
        whole = network.readout(torch.relu(network.convolution(summary)).flatten(1))
        assert one.shape == (rows, width)
        torch.testing.assert_close(one, whole[:, :width], rtol=1e-5, atol=1e-5)


def test_masked_outputs_learn_nothing() -> None:
    torch.manual_seed(0)
    network = drawn_network(6)
    (rows,) = network([torch.randn(3, 1, 4, 4)], [4])
    rows.sum().backward()
    gradient = network.readout.weight.grad
    assert gradient is not None
    assert gradient[:4].abs().sum(1).gt(0).all()
    assert not gradient[4:].any()


def test_an_untrained_network_predicts_nothing() -> None:
    assert not PredictorNetwork(5)([torch.randn(2, 1, 4, 4)], [5])[0].any()


def test_it_is_small() -> None:
    """One 3x3 convolution of few channels and one fully connected layer as wide as the widest row."""
    shapes = {name: tuple(parameter.shape) for name, parameter in PredictorNetwork(100).named_parameters()}
    assert shapes == {
        "convolution.weight": (4, 1, 3, 3),
        "convolution.bias": (4,),
        "readout.weight": (100, 64),
        "readout.bias": (100,),
    }
