"""The predictor with its input shuffled, and with labels: against the plain predictor."""

from collections.abc import Callable

import torch
from torch import Tensor

from adagp.core.plan import Step
from adagp.layers.sites import Site
from adagp.papers.adagp.network import PredictorNetwork
from adagp.papers.adagp.source import PredictedSource
from adagp.papers.adagp.variants import LabelledSource, ShuffledSource
from adagp.sources import BatchContext, LearnedSource, LearningOptions
from adagp.sources.support.randomness import step_generator

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


def test_the_order_is_drawn_afresh_every_batch(sites: tuple[Site, ...], bound: Bind, watch: Watch) -> None:
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
