"""Both methods against the published formulas, written out for small networks, and against backprop."""

import copy
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import adagp
from adagp.errors import ModelError
from adagp.layers.sites import Site
from adagp.papers.feedback_alignment import EVERY_BATCH
from adagp.papers.feedback_alignment.source import (
    DirectFeedbackSource,
    FeedbackAlignmentSource,
    RandomFeedbackSource,
)


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 5, generator=generator), torch.randint(3, (8,), generator=generator)


def gradients(model: nn.Module, source: RandomFeedbackSource, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return the gradients of one batch in which all weights come from the source."""
    name = "dfa" if isinstance(source, DirectFeedbackSource) else "fa"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer = adagp.attach(model, optimizer, steps=2, schedule=f"{EVERY_BATCH}; source={name}", sources={name: source})
    with trainer.batch() as step:
        step.backward(F.cross_entropy(model(inputs), targets))
        found = {
            key: parameter.grad.clone() for key, parameter in model.named_parameters() if parameter.grad is not None
        }
        step.step()
    return found


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3))


@pytest.mark.parametrize("name", ["fa", "dfa"])
def test_the_published_formulas_for_a_perceptron(name: str) -> None:
    """delta = (B delta above) * f' for fa, (B e) * f' for dfa; the weight gradient is delta times the layer's input."""
    model, (inputs, targets) = perceptron(), batch()
    source = FeedbackAlignmentSource() if name == "fa" else DirectFeedbackSource()
    found = gradients(model, source, inputs, targets)
    with torch.no_grad():
        first = torch.tanh(model[0](inputs))
        second = torch.tanh(model[2](first))
        error = (model[4](second).softmax(1) - F.one_hot(targets, 3)) / len(inputs)
        matrices = list(source.matrices.values())  # of the last layer, then of the middle one: none for the first
        assert len(matrices) == 2
        upper = (error @ matrices[0]) * (1 - second**2)
        lower = ((upper if name == "fa" else error) @ matrices[1]) * (1 - first**2)
        expected = {
            "4.weight": error.T @ second,
            "4.bias": error.sum(0),
            "2.weight": upper.T @ first,
            "2.bias": upper.sum(0),
            "0.weight": lower.T @ inputs,
            "0.bias": lower.sum(0),
        }
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-4, atol=1e-6)


class _Mirrored(FeedbackAlignmentSource):
    """Feedback alignment whose random tensors are the weights themselves."""

    def draw(self, site: Site, shape: object, deviation: float) -> Tensor:
        return site.weight.detach().clone()


def test_with_the_weights_as_matrices_it_is_backprop() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 8, 3, stride=2, groups=2, padding=1),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(8 * 3 * 3, 3),
    )
    oracle = copy.deepcopy(model)
    inputs, targets = torch.randn(4, 3, 6, 6), torch.tensor([0, 1, 2, 0])
    found = gradients(model, _Mirrored(), inputs, targets)
    F.cross_entropy(oracle(inputs), targets).backward()
    for key, parameter in oracle.named_parameters():
        torch.testing.assert_close(found[key], parameter.grad, rtol=1e-4, atol=1e-6)


def first_bias(model: nn.Sequential) -> Tensor:
    return dict(model.named_parameters())["0.bias"]


@pytest.mark.parametrize("name", ["fa", "dfa"])
def test_in_gp_batches_only(name: str) -> None:
    """With the ladder, BP batches are exact, and in GP batches biases are frozen."""
    model, (inputs, targets) = perceptron(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = adagp.attach(model, optimizer, method=adagp.NamedMethod(name), steps=2, schedule="1:1", warmup=0)
    bias = first_bias(model).detach().clone()
    phases = []
    for _ in range(2):
        with trainer.batch() as step:
            phases.append(str(step.phase))
            step.backward(F.cross_entropy(model(inputs), targets))
            step.step()
        phases.append("moved" if not torch.equal(first_bias(model), bias) else "frozen")
    assert phases == ["gp", "frozen", "bp", "moved"]


@pytest.mark.parametrize("name", ["fa", "dfa"])
def test_it_learns_a_small_task(name: str) -> None:
    model, (inputs, targets) = perceptron(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    trainer = adagp.attach(model, optimizer, method=adagp.NamedMethod(name), steps=150)
    losses = []
    for _ in range(150):
        with trainer.batch() as step:
            loss = F.cross_entropy(model(inputs), targets)
            losses.append(float(loss.detach()))
            step.backward(loss)
            step.step()
    assert losses[-1] < 0.3 * losses[0]


def test_the_matrices_are_a_function_of_the_seed() -> None:
    (inputs, targets), sources = batch(), [FeedbackAlignmentSource(seed) for seed in (3, 3, 4)]
    found = [gradients(perceptron(), source, inputs, targets)["0.weight"] for source in sources]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_dfa_rejects_samples_that_do_not_fit() -> None:
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle, self.last = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            return cast(Tensor, self.last(self.middle(self.first(inputs)).view(2, -1, 4)).mean(1))

    with pytest.raises(ModelError) as caught:
        gradients(Folded(), DirectFeedbackSource(), torch.randn(8, 5), torch.tensor([0, 1]))
    assert str(caught.value).startswith("source 'dfa' needs one error of at most 4096 values for each sample; ")
