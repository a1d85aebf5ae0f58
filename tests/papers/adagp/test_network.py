"""The predictor network, and its matrix products against the network itself under autograd."""

import copy
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adagp.hw.accelerator import PredictorShape
from adagp.layers.weights import as_rows, gradient_norms, kernel_taps
from adagp.papers.adagp.network import ClosedForm, PredictorNetwork, RowBlock, row_blocks


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


def test_its_size_is_that_of_the_accelerator_model() -> None:
    for width in (1, 100, 4608):
        assert sum(one.numel() for one in PredictorNetwork(width).parameters()) == PredictorShape().parameters(width)


SITES = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 5), st.sampled_from([1, 2, 3]), st.booleans()), min_size=1, max_size=5
)
"""Rows, channels, side of the kernel, and whether the weight lies channels-last."""


def drawn(width: int, grid: int, channels: int, context: int) -> PredictorNetwork:
    network = PredictorNetwork(width, grid, channels, context)
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    return network


def truth_of(rows: int, channels: int, side: int, last: bool) -> Tensor:
    form = torch.channels_last if last else torch.contiguous_format
    return torch.randn(rows, channels, side, side).contiguous(memory_format=form)


def slow_loss(
    network: PredictorNetwork,
    summaries: Sequence[Tensor],
    truths: Sequence[Tensor],
    scales: Sequence[float],
    weights: Sequence[float],
    context: Tensor | None,
) -> Tensor:
    predictions = network(summaries, [truth[0].numel() for truth in truths], context)
    rows = zip(predictions, truths, scales, weights, strict=True)
    losses = [weight * F.mse_loss(one, (truth / scale).reshape(one.shape)) for one, truth, scale, weight in rows]
    return torch.stack(losses).sum()


@settings(max_examples=60)
@given(SITES, st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.booleans(), st.booleans())
def test_equals_the_network_under_autograd(
    sites: list[tuple[int, int, int, bool]], grid: int, channels: int, context: int, scaled: bool, weighted: bool
) -> None:
    """Predictions, loss and all gradients, to single precision: 1e-4 of the largest number."""
    torch.manual_seed(len(sites))
    truths = sorted((truth_of(*site) for site in sites), key=lambda truth: (truth[0].numel(), len(truth)))
    network = drawn(max(truth[0].numel() for truth in truths) + 1, grid, channels, context)
    slow = copy.deepcopy(network)
    summaries = [torch.randn(len(truth), 1, grid, grid) for truth in truths]
    shared = torch.randn(context) if context else None
    taps = [kernel_taps(truth) for truth in truths]
    weights = [1.5 + place % 2 for place in range(len(truths))] if weighted else None
    parts = row_blocks([(len(truth), truth[0].numel(), one) for truth, one in zip(truths, taps, strict=True)], weights)
    form = ClosedForm(network)

    results = [torch.empty(part.stop - part.start, part.width) for part in parts]
    norms = form.predict(summaries, shared, parts, results)
    close(norms, gradient_norms(results))
    expected = slow(summaries, [part.width for part in parts], shared)
    for result, one, truth, part in zip(results, expected, truths, parts, strict=True):
        logical = one.detach().view(truth.shape)
        close(result, as_rows(logical, part.taps))

    scales = [0.5 + place for place in range(len(parts))] if scaled else [1.0] * len(parts)
    rows = [as_rows(truth, one) for truth, one in zip(truths, taps, strict=True)]
    loss = form.learn(summaries, shared, parts, rows, gradient_norms(truths), scales if scaled else None)
    slowly = slow_loss(slow, summaries, truths, scales, weights or [1.0] * len(parts), shared)
    slowly.backward()
    close(loss, slowly.detach())
    for one, other in zip(network.parameters(), slow.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        close(one.grad, other.grad)


def close(one: Tensor, other: Tensor) -> None:
    bound = 1e-4 * max(1.0, other.abs().max().item())
    torch.testing.assert_close(one, other, rtol=1e-4, atol=bound)


def test_buffers_are_reused_and_resized() -> None:
    """A second batch, smaller and larger, is not disturbed by what the first one left."""
    torch.manual_seed(0)
    network = drawn(6, 2, 2, 0)
    form = ClosedForm(network)
    for rows in (4, 2, 2, 5):
        summaries, parts, result = [torch.randn(rows, 1, 2, 2)], row_blocks([(rows, 6, 1)]), torch.empty(rows, 6)
        form.predict(summaries, None, parts, [result])
        close(result, network(summaries, [6])[0].detach())


@pytest.mark.parametrize("shrink", [1.0, 1e-3])
def test_norms_of_wide_results_come_from_gram_matrices(shrink: float) -> None:
    """To 1e-5, in any order of widths, also where the result is a thousandth of what its factors could give."""
    torch.manual_seed(0)
    network = drawn(300, 2, 1, 0)  # four features and a 1; a result of 80 numbers per row or more is not read
    with torch.no_grad():
        network.readout.bias.mul_(shrink)
        network.readout.weight.mul_(shrink)
        network.readout.weight += torch.tensor([1.0, -1.0, 0.0, 0.0])  # cancels where two features are the same
        network.convolution.weight.zero_()
        nn.init.ones_(network.get_parameter("convolution.bias"))
    sizes = [(3, 300, 1), (4, 90, 9), (2, 7, 1), (5, 180, 4), (3, 300, 1)]
    summaries = [torch.randn(rows, 1, 2, 2) for rows, _, _ in sizes]
    results = [torch.empty(rows, width) for rows, width, _ in sizes]
    norms = ClosedForm(network).predict(summaries, None, row_blocks(sizes), results)
    expected = torch.stack([result.double().norm() for result in results])
    torch.testing.assert_close(norms.double(), expected, rtol=1e-5, atol=0)


def test_a_result_that_overflows_has_no_finite_norm() -> None:
    network = drawn(300, 2, 1, 0)
    with torch.no_grad():
        network.readout.bias.fill_(1e38)
    result = torch.empty(2, 300)
    assert (
        not ClosedForm(network).predict([torch.ones(2, 1, 2, 2)], None, row_blocks([(2, 300, 1)]), [result]).isfinite()
    )


def test_a_changed_layer_is_read_again() -> None:
    """After a step of the learner's fused optimizer, which torch's version counter does not show, and after loading."""
    torch.manual_seed(0)
    network = drawn(6, 2, 2, 0)
    before = copy.deepcopy(network.state_dict())
    form = ClosedForm(network)
    summaries, parts, result = [torch.randn(4, 1, 2, 2)], row_blocks([(4, 6, 1)]), torch.empty(4, 6)
    seen = []
    for change in (
        lambda: None,
        lambda: learn_a_step(form, summaries, parts),
        lambda: network.load_state_dict(before),
    ):
        change()
        form.predict(summaries, None, parts, [result])
        close(result, network(summaries, [6])[0].detach())
        seen.append(result.clone())
    assert torch.equal(seen[0], seen[2])
    assert (seen[1] - seen[0]).abs().max() > 0.05


def learn_a_step(form: ClosedForm, summaries: Sequence[Tensor], parts: Sequence[RowBlock]) -> None:
    truth = torch.randn(4, 6)
    form.learn(summaries, None, parts, [truth], gradient_norms([truth]))
    torch.optim.Adam(form.network.parameters(), lr=0.1, fused=True).step()
