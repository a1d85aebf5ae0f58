"""Synthetic gradients: the networks' answers, the local gradients, and learning, each by hand."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import adagp
from adagp.core.plan import Step
from adagp.errors import OptionError
from adagp.layers.sites import Site, survey
from adagp.papers.dni.source import DecoupledSource, SyntheticNetwork, SyntheticSource
from adagp.schedules import Ladder, Rung, WarmUp
from adagp.sources import BatchContext, LearningOptions, RunningNorms
from adagp.sources.local import weight_gradient

MODEL = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(108, 5, bias=False))


def bound(source: SyntheticSource) -> tuple[SyntheticSource, tuple[Site, ...]]:
    """Bind, and give every network an answer that is not zero."""
    sites = survey(MODEL).sites
    source.bind(sites, RunningNorms(sites))
    torch.manual_seed(2)
    for network in source.networks:
        assert isinstance(network, SyntheticNetwork)
        nn.init.normal_(network.last.weight)  # type: ignore[arg-type]  # a convolution or linear layer
        network.scale.fill_(0.5)
        network.input_scale.fill_(2.0)
    return source, sites


@pytest.mark.parametrize("labels", [False, True])
def test_a_served_site_gets_the_local_gradient_of_the_prediction(labels: bool) -> None:
    source, sites = bound(SyntheticSource(hidden=4, labels=labels))
    targets = torch.tensor([0, 4, 4])
    source.begin(BatchContext(Step(0, 0), replaced=frozenset(sites), targets=targets))
    inputs = [torch.randn(3, 2, 8, 8), torch.randn(3, 108)]
    outputs = [torch.randn(3, 3, 6, 6), torch.randn(3, 5)]
    for site, entry, output in zip(sites, inputs, outputs, strict=True):
        assert source.watch(site, (entry,), output) is None
    produced = source.produce(sites)
    for site, entry, output, found in zip(sites, inputs, outputs, produced, strict=True):
        network = source.networks[site.index]
        assert isinstance(network, SyntheticNetwork)
        hidden = network.first(output / 2)
        if labels:
            assert network.labels is not None
            for sample, label in enumerate(targets.tolist()):
                for channel in range(4):
                    hidden = hidden.clone()
                    hidden[sample, channel] += network.labels.weight[channel, label]
        slope = network.last(torch.relu(hidden)).detach() * 0.5
        torch.testing.assert_close(found, weight_gradient(site, entry, slope))
    source.forget()
    assert source.produce(sites) == [None, None]


@pytest.mark.medium
def test_it_learns_the_gradient_at_the_output() -> None:
    """The error at a linear classifier's output is a function of output and labels: with labels it can be learned."""
    torch.manual_seed(0)
    errors = {}
    for labels in (False, True):
        model = nn.Sequential(nn.Linear(6, 4))
        source = SyntheticSource(LearningOptions(learning_rate=1e-2), labels=labels)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        trainer = adagp.attach(
            model,
            optimizer,
            length=adagp.Epochs(9, 150),
            schedule=WarmUp(Ladder((Rung(1, 0),), "own"), epochs=1),
            sources={"own": source},
        )
        generator = torch.Generator().manual_seed(3)
        for _ in range(150):
            targets = torch.randint(0, 4, (32,), generator=generator)
            trainer.step(torch.randn(32, 6, generator=generator), targets, F.cross_entropy)
        inputs = torch.randn(32, 6, generator=generator)
        targets = torch.randint(0, 4, (32,), generator=generator)
        with trainer.batch(targets) as batch:
            model(inputs)
            batch.backward()
            found = trainer.survey.sites[0].weight.grad
            assert found is not None
            found = found.clone()
            batch.step()
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        truth = model[0].weight.grad
        assert isinstance(truth, Tensor)
        errors[labels] = ((found - truth).norm() / truth.norm()).item()
    assert errors[True] < 0.35 < errors[False]


def test_one_step_of_learning_by_hand() -> None:
    source, sites = bound(SyntheticSource(LearningOptions(learning_rate=0.1), hidden=2))
    source.begin(BatchContext(Step(0, 0), scale=4.0))
    network = source.networks[1]
    assert isinstance(network, SyntheticNetwork)
    output = torch.randn(3, 5, requires_grad=True)
    changed = source.watch(sites[1], (torch.randn(3, 108),), output)
    assert changed is not None
    slope = torch.randn(3, 5)
    (4.0 * slope * changed).sum().backward()
    scale = slope.square().mean().sqrt()  # the first gradient sets the scale
    aim = slope / scale
    loss = F.mse_loss(network(output.detach(), None, output.detach().square().mean().sqrt()), aim)
    bias = network.last.bias
    assert isinstance(bias, Tensor)
    (expected,) = torch.autograd.grad(loss, [bias])
    before = bias.detach().clone()
    source.observe(sites, [site.weight for site in sites])
    torch.testing.assert_close(network.scale, scale)
    torch.testing.assert_close(network.input_scale, output.detach().square().mean().sqrt())
    # The first step of Adam goes against the sign, by the learning rate.
    torch.testing.assert_close(bias.detach() - before, -0.1 * expected.sign(), rtol=1e-3, atol=1e-4)
    assert all(parameter.grad is None for parameter in source.networks[0].parameters()), "that site was not called"


def test_an_untrained_network_predicts_zero_and_leaves_the_random_state_unchanged() -> None:
    before = torch.get_rng_state()
    sites = survey(MODEL).sites
    source = SyntheticSource()
    source.bind(sites, RunningNorms(sites))
    assert torch.equal(torch.get_rng_state(), before)
    source.begin(BatchContext(Step(0, 0), replaced=frozenset(sites)))
    source.watch(sites[1], (torch.randn(3, 108),), torch.randn(3, 5))
    (found,) = source.produce(sites[1:])
    assert found is not None
    assert not found.any()


def test_a_checkpoint_without_the_scale_of_the_inputs_loads() -> None:
    source, sites = bound(SyntheticSource(hidden=4))
    state = source.state_dict()
    state["network"] = {name: value for name, value in state["network"].items() if "input_scale" not in name}
    other = SyntheticSource(hidden=4)
    other.bind(sites, RunningNorms(sites))
    other.load_state_dict(state)
    network = other.networks[1]
    assert isinstance(network, SyntheticNetwork)
    network.count.fill_(50)
    input_scale, scale = network.rescaled([torch.full((2, 5), 3.0)], [torch.ones(2, 5)])
    assert float(input_scale) == pytest.approx(3.0), "the first batch decides alone"
    assert float(scale) == pytest.approx(0.5 + 0.05 * 0.5)


def test_wrong_options() -> None:
    with pytest.raises(OptionError) as caught:
        SyntheticSource(hidden=0)
    assert str(caught.value) == "the synthetic-gradient networks have 0 hidden channels; it must be 1 or more."


def test_decoupled_layers_learn_from_the_prediction_above(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: the last layer has the loss's gradient, the others their predictions, which are passed on as targets."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    inputs, targets = torch.randn(8, 4), torch.randint(3, (8,))
    source = DecoupledSource(hidden=4)
    trainer = adagp.attach(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        schedule="sites=all; first=allowed; source=dni_decoupled",
        steps=2,
        sources={"dni_decoupled": source},
    )
    for network in source.networks:
        assert isinstance(network, SyntheticNetwork)
        nn.init.normal_(network.last.weight)  # type: ignore[arg-type]  # a linear layer
        network.scale.fill_(0.5)
        network.count.fill_(1e6)
    arrived: list[Tensor] = []
    rescaled = SyntheticNetwork.rescaled

    def noted(network: SyntheticNetwork, outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> Any:
        arrived.extend(gradients)
        return rescaled(network, outputs, gradients)

    monkeypatch.setattr(SyntheticNetwork, "rescaled", noted)
    weights = dict(model.named_parameters())
    with torch.no_grad():
        outputs = [model[:count](inputs) for count in (1, 3, 5)]
        error = (outputs[2].softmax(1) - F.one_hot(targets, 3)) / len(inputs)
        predicted = [
            source._predict(source_site, output, None)
            for source_site, output in zip(survey(model).sites, outputs, strict=True)
        ]
        at_second = (error @ weights["4.weight"]) * (1 - outputs[1].tanh() ** 2)
        at_first = (predicted[1] @ weights["2.weight"]) * (1 - outputs[0].tanh() ** 2)
        expected = {
            "4.weight": error.T @ outputs[1].tanh(),
            "2.weight": predicted[1].T @ outputs[0].tanh(),
            "0.weight": predicted[0].T @ inputs,
            "2.bias": predicted[1].sum(0),
        }
    with trainer.batch() as batch:
        batch.backward(F.cross_entropy(model(inputs), targets))
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        for name, gradient in expected.items():
            torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-6)
        batch.step()
    for found, wanted in zip(arrived, (at_first, at_second, error), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_the_last_decoupled_layer_has_the_true_gradient_in_every_micro_batch() -> None:
    torch.manual_seed(0)
    head = nn.Linear(5, 3)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), head)
    inputs, targets = torch.randn(8, 4), torch.randint(3, (8,))
    trainer = adagp.attach(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        schedule="sites=all; first=allowed; source=dni_decoupled",
        steps=1,
        sources={"dni_decoupled": DecoupledSource(hidden=4)},
    )
    with trainer.batch() as batch:
        for part, more in ((slice(0, 3), True), (slice(3, 8), False)):
            batch.backward(F.cross_entropy(model(inputs[part]), targets[part], reduction="sum") / 8, more=more)
        found = head.weight.grad
        batch.step()
    trainer.detach()
    (expected,) = torch.autograd.grad(F.cross_entropy(model(inputs), targets), [head.weight])
    assert found is not None
    torch.testing.assert_close(found, expected)
