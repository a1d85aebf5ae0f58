"""The error at the model's output, however a model returns it: right, or rejected at once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from tests.engine.small_nets import LABELS, Net, attached, draw, one_batch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import adagp
from adagp.errors import ModelError, UsageError


class Inner(nn.Module):
    """Computes its loss itself, as the models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.first(inputs).tanh())
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def gradients_of(trainer: adagp.Trainer, loss_of: Callable[[], Tensor]) -> dict[str, Tensor]:
    with trainer.batch() as batch:
        batch.backward(loss_of())
        found = {site.name: site.weight.grad.clone() for site in trainer.survey.sites if site.weight.grad is not None}
        batch.step()
    return found


def exact(**options: Any) -> dict[str, Any]:
    """Return options with which the fit of a last layer is exact, so that its gradient must be the true one."""
    return {"sources": {"feedback": adagp.FeedbackSource(ridge=1e-8, correction=0)}, **options}


def check_last_layer(model: nn.Module, last: nn.Linear, loss_of: Callable[[], Tensor], **options: Any) -> None:
    """After many BP batches the last layer's gradient in a GP batch must be the true one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer = attached(model, "feedback", 25, **exact(optimizer=optimizer, **options))
    for _ in range(25):
        one_batch(trainer, loss_of)
    state = torch.get_rng_state()
    name = next(site.name for site in trainer.survey.sites if site.module is last)
    found = gradients_of(trainer, loss_of)[name]
    torch.set_rng_state(state)
    optimizer.zero_grad()
    loss_of().backward()
    assert last.weight.grad is not None
    torch.testing.assert_close(found, last.weight.grad, rtol=2e-3, atol=1e-5)


def test_feedback_with_the_loss_inside_the_model() -> None:
    model = Inner()
    check_last_layer(model, model.head, lambda: model(draw(), LABELS)["loss"], output="head")


def test_feedback_rejects_a_loss_inside_the_model_at_once() -> None:
    model = Inner()
    trainer = attached(model, "feedback")
    with pytest.raises(
        UsageError, match=r"If the model computes the loss itself, name the layer .*attach\(output='head'\)"
    ):
        one_batch(trainer, lambda: model(draw(), LABELS)["loss"])


@dataclass
class Answer:
    logits: Tensor
    hidden: Tensor


class Pair(NamedTuple):
    logits: Tensor
    hidden: Tensor


class Returning(nn.Module):
    """Returns its logits in a container of any kind."""

    def __init__(self, wrap: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 3)
        self.wrap = wrap

    def forward(self, inputs: Tensor) -> Any:
        hidden = self.first(inputs).tanh()
        return self.wrap(self.last(hidden), hidden)


def logits_of(output: Any) -> Tensor:
    if isinstance(output, Mapping):
        output = [output["logits"]]
    found: Tensor = output.logits if hasattr(output, "logits") else output[0]
    return found


@pytest.mark.parametrize(
    "wrap",
    [
        Answer,
        Pair,
        lambda logits, hidden: (logits, hidden),
        lambda logits, hidden: [logits, [hidden]],
        lambda logits, hidden: {"hidden": hidden, "logits": logits},
    ],
    ids=["dataclass", "named tuple", "tuple", "list", "dict"],
)
@pytest.mark.parametrize("output", [None, logits_of], ids=["found", "function"])
def test_feedback_with_outputs_of_all_kinds(wrap: Any, output: Any) -> None:
    model = Returning(wrap)
    check_last_layer(
        model, model.last, lambda: F.cross_entropy(logits_of(model(draw())).mul_(2), LABELS), output=output
    )


def test_an_output_that_is_not_there_is_rejected() -> None:
    model = Returning(Answer)
    trainer = attached(model, "feedback", output="scores")
    with pytest.raises(ModelError, match=r"^output='scores' finds no floating-point tensor in what the model returns"):
        one_batch(trainer, lambda: F.cross_entropy(model(draw()).logits, LABELS))


def test_feedback_rejects_a_call_of_forward_at_once() -> None:
    model = Net()
    trainer = attached(model, "feedback")
    with pytest.raises(UsageError, match="call the model itself"):
        one_batch(trainer, lambda: F.cross_entropy(model.forward(draw()), LABELS))


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.one, self.two = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.first(inputs).tanh()
        return self.one(hidden), self.two(hidden)


@pytest.mark.parametrize("last", ["one", "two"])
def test_every_head_has_its_own_error(last: str) -> None:
    model = TwoHeads()

    def loss_of() -> Tensor:
        one, two = model(draw())
        loss: Tensor = F.cross_entropy(one, LABELS) + two.square().mean()
        return loss

    check_last_layer(model, getattr(model, last), loss_of)


def test_every_call_has_its_own_error() -> None:
    """Two calls in one loss, as of pairs."""
    model = Net()

    def loss_of() -> Tensor:
        first, second = model(draw()), model(draw())
        loss: Tensor = F.cross_entropy(first, LABELS) + 3 * second.square().mean()
        return loss

    check_last_layer(model, model.last, loss_of)


@pytest.mark.parametrize("positions", [6, 4])
def test_sequences_first_with_and_without_as_many_positions_as_samples(positions: int) -> None:
    """The last layer's rows are (positions, samples), which nothing says; the model's output has samples alone."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.last(self.first(inputs).tanh()).mean(0)  # type: ignore[no-any-return]

    model = Pooled()
    check_last_layer(model, model.last, lambda: F.cross_entropy(model(torch.randn(positions, 6, 5)), LABELS))


class Sequences(nn.Module):
    """Two linear layers over sequences, first of which are positions or samples."""

    def __init__(self, batch_first: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 3)
        if batch_first is not None:
            self.batch_first = batch_first

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.first(inputs).tanh())  # type: ignore[no-any-return]


def test_labels_of_sequences_first() -> None:
    """With as many positions as samples nothing tells which is which; an attribute does. Else the sizes do."""
    trainer = attached(Sequences(), "dni_labels")
    with pytest.raises(ModelError) as caught:
        trainer.step(torch.randn(6, 6, 5), LABELS, lambda output, targets: output.square().mean())
    assert str(caught.value) == (
        "site 'first' has an output of the sizes (6, 6, 4), and there are 6 targets: adagp cannot tell which "
        "axis counts the samples. Set the attribute batch_first of the model or of a layer around the site "
        "(model.batch_first = True, or False for "
        "sequences first), or exclude the site."
    )
    weights = []
    for batch_first, positions in ((False, 6), (False, 4), (None, 8)):
        model = Sequences(batch_first)
        trainer = attached(model, "dni_labels", optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        other = Sequences(batch_first=True)
        twin = attached(other, "dni_labels", optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
        for seed in range(5):
            inputs = torch.randn(positions, 6, 5, generator=torch.Generator().manual_seed(seed))
            scores = torch.randn(positions, 6, 3, generator=torch.Generator().manual_seed(seed))
            trainer.step(inputs, LABELS, lambda output, _, scores=scores: (output * scores).sum())  # type: ignore[misc]
            twin.step(
                inputs.transpose(0, 1),
                LABELS,
                lambda output, _, scores=scores: (output * scores.transpose(0, 1)).sum(),  # type: ignore[misc]
            )
        weights.append((model.first.weight, other.first.weight))
    for one, another in weights:
        torch.testing.assert_close(one, another, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["feedback", "dni"])
def test_reentrant_checkpointing_is_rejected_at_once(method: str) -> None:
    class Recomputing(Net):
        def forward(self, inputs: Tensor) -> Tensor:
            hidden = checkpoint(self.first, inputs, use_reentrant=True)
            return self.last(hidden)  # type: ignore[no-any-return]

    model = Recomputing()
    trainer = attached(model, method)
    with pytest.raises(ModelError) as caught:
        one_batch(trainer, lambda: F.cross_entropy(model(draw().requires_grad_()), LABELS))
    assert str(caught.value) == (
        "site 'first' has a gradient, but none was seen at its output: it is computed again in the backward pass. "
        "With activation checkpointing, give checkpoint(..., use_reentrant=False); a reversible chain always does so: train it "
        "by backprop (method bp), or exclude the site."
    )
