from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.transposed import Conv1D
from torch import Tensor, nn

from adagp.core.plan import Step
from adagp.errors import OptionError
from adagp.layers.sites import Site, survey
from adagp.layers.weights import gradient_norms
from adagp.papers.adagp.network import PredictorNetwork
from adagp.papers.adagp.source import LabelledSource, PredictedSource, ShuffledSource
from adagp.sources import BatchContext, LearnedSource, LearningOptions, RunningNorms, default_source
from adagp.sources.base import step_generator


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


def watched(source: PredictedSource) -> tuple[Site, ...]:
    """Bind `source` to layers whose weight counts its outputs on axis 1, and show it an output of each."""
    torch.manual_seed(3)
    last = nn.ConvTranspose2d(3, 2, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    sites = survey(nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=2), last, Conv1D(5, 7))).sites
    source.bind(sites, RunningNorms(sites))
    for parameter in source.network.parameters():
        nn.init.normal_(parameter, std=0.3)
    for site, shape in zip(sites, [(4, 6, 4, 4), (4, 2, 4, 4), (4, 3, 5)], strict=True):
        source.watch(site, (), torch.randn(shape))
    return sites


@pytest.mark.parametrize("normalize", [False, True])
def test_outputs_on_axis_1_are_predicted_and_learned_as_under_autograd(normalize: bool) -> None:
    """The slow way is the network itself, its rows put into the weight number by number."""
    source = PredictedSource(LearningOptions(grid=2, normalize=normalize))
    sites = watched(source)
    truths = [torch.randn_like(site.weight) for site in sites]
    source._norms.update(sites, gradient_norms(truths))
    scales = [gradient_norms([one]).item() / one.numel() ** 0.5 if normalize else 1.0 for one in truths]
    rows = source.predict(sites, source.shared(sites))
    slow = []
    for site, one in zip(sites, rows, strict=True):
        groups = getattr(site.module, "groups", 1)
        inputs, outputs = site.weight.shape[0] // groups, site.weight.shape[1]
        numbers = [
            one[place // inputs * outputs + output].view(inputs, *site.weight.shape[2:])[place % inputs]
            for place in range(len(site.weight))
            for output in range(outputs)
        ]
        slow.append(torch.stack(numbers).view(site.weight.shape))
    for site, scale, expected, found in zip(sites, scales, slow, source.produce(sites), strict=True):
        assert found is not None
        assert found.stride() == site.weight.stride()
        torch.testing.assert_close(found, scale * expected.detach())
    pairs = zip(slow, truths, scales, strict=True)
    loss = torch.stack([F.mse_loss(one, truth / scale) for one, truth, scale in pairs]).sum()
    expected_gradients = torch.autograd.grad(loss, list(source.network.parameters()))
    seen: list[Tensor] = []
    source.learner.on_gradients = lambda tensors: seen.extend(one.clone() for one in tensors)
    source.observe(sites, truths)
    for found, expected in zip(seen, [*expected_gradients, loss.detach()], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_outputs_on_axis_1_can_be_overfitted() -> None:
    source = PredictedSource(LearningOptions(grid=2, learning_rate=1e-2), channels=8)
    sites = watched(source)
    truths = [torch.randn_like(site.weight) for site in sites]
    for _ in range(400):
        source._norms.update(sites, gradient_norms(truths))
        source.observe(sites, truths)
    for truth, found in zip(truths, source.produce(sites), strict=True):
        assert found is not None
        assert F.cosine_similarity(found.flatten(), truth.flatten(), dim=0) > 0.9


def test_the_network_is_as_wide_as_the_widest_row(sites: tuple[Site, ...]) -> None:
    network = PredictedSource(channels=2).build_network(sites)
    assert isinstance(network, PredictorNetwork)
    assert network.readout.out_features == max(18, 108)
    assert isinstance(network.convolution, nn.Conv2d)
    assert network.convolution.out_channels == 2


def shard_of(site: Site, part: int, parts: int) -> slice:
    return slice(part * site.rows // parts, (part + 1) * site.rows // parts)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_learning_from_parts_of_the_rows_is_unbiased(
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
        drawn = [shard_of(site, part, parts) for site in sites]
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
        source.begin(BatchContext(Step(0, batch)))
        drawn = source._drawn(sites)
        assert drawn[1:] == source._drawn(sites[1:])
        seen.append([range(site.rows)[one] for site, one in zip(sites, drawn, strict=True)])
    assert {tuple(rows) for rows, _ in seen} == {(0,), (1,), (2,)}  # fewer rows than parts: one row each
    assert {tuple(rows) for _, rows in seen} == {(0,), (1,), (2,), (3, 4)}


def test_a_wrong_number_of_parts_is_rejected() -> None:
    with pytest.raises(OptionError, match=r"^the predictor learns from 1/0 of the rows; parts must be 1 or more\.$"):
        PredictedSource(parts=0)


def test_is_registered_and_learns() -> None:
    source = default_source("predicted")
    assert isinstance(source, PredictedSource)
    assert source.learns
    assert source.options == LearningOptions()


# Variants, against the plain predictor.


Bind = Callable[[LearnedSource], LearnedSource]
Watch = Callable[..., list[Tensor]]


def test_shuffled_is_the_predictor_on_other_rows(sites: tuple[Site, ...], bound: Bind, watch: Watch) -> None:
    options = LearningOptions(grid=2, seed=4)
    plain, shuffled = bound(PredictedSource(options)), bound(ShuffledSource(options))
    shuffled.network.load_state_dict(plain.network.state_dict())
    step = Step(2, 3)
    shuffled.begin(BatchContext(step))
    for source in (plain, shuffled):
        watch(source, sites, seed=0)
    generator = step_generator(4, step)
    for one, other in zip(plain.produce(sites), shuffled.produce(sites), strict=True):
        assert one is not None
        torch.testing.assert_close(other, one[torch.randperm(len(one), generator=generator)])


def test_the_order_is_drawn_again_every_batch(sites: tuple[Site, ...], bound: Bind, watch: Watch) -> None:
    source = bound(ShuffledSource(LearningOptions(grid=2)))
    watch(source, sites, seed=0)
    gradients = []
    for batch in (0, 0, 1, 2):
        source.begin(BatchContext(Step(0, batch)))
        gradients.append(source.produce(sites)[1].clone())  # type: ignore[union-attr]  # every site was watched
    assert torch.equal(gradients[0], gradients[1])
    assert not all(torch.equal(gradients[0], one) for one in gradients[2:])


def test_labels_are_features_of_the_read_out(sites: tuple[Site, ...], bound: Bind, watch: Watch) -> None:
    source = bound(LabelledSource(LearningOptions(grid=2)))
    network = source.network
    assert isinstance(network, PredictorNetwork)
    assert network.readout.in_features == 4 * 2 * 2 + 5
    source.begin(BatchContext(Step(0, 0), targets=torch.tensor([1, 1, 4, 0])))
    outputs = watch(source, sites, seed=0)
    produced = source.produce(sites)[1]
    assert produced is not None
    picture = outputs[1].mean(0)[:, None, None, None].expand(-1, 1, 2, 2)
    features = torch.relu(network.convolution(picture)).flatten(1)
    shares = torch.tensor([0.25, 0.5, 0, 0, 0.25]).expand(5, -1)
    torch.testing.assert_close(produced, network.readout(torch.cat([features, shares], 1))[:, :108].detach())
    assert LabelledSource.needs_targets
