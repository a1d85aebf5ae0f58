"""Training is right or refused, never wrong without a word: cases in which it once was not."""

import copy
import io
import pickle
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import adagp
from adagp.errors import AdagpWarning, ModelError, UsageError
from adagp.models.vision import load_timm
from adagp.schedules import Ladder, Rung, WarmUp
from adagp.sites import Site

METHODS = [name for name in adagp.METHODS if name not in ("bp", "skip")]
WHOLE = [name for name in METHODS if name not in ("topk", "zero", "random")]
LABELS = torch.arange(6) % 3


def draw(count: int = 6, width: int = 5) -> Tensor:
    return torch.randn(count, width)


class Net(nn.Module):
    """Two layers, and a head that is called but has no part in what is returned."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(5, 4)
        self.ignored = nn.Linear(4, 2)
        self.last = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).tanh()
        self.ignored(hidden)
        return self.last(hidden)  # type: ignore[no-any-return]


def gp_after(warmup: int, source: str) -> WarmUp:
    return WarmUp(Ladder((Rung(1, 0),), source), batches=warmup, batches_per_epoch=1000)


def attached(model: nn.Module, method: str = "adagp", warmup: int = 3, **options: Any) -> adagp.Trainer:
    """Return a trainer with `warmup` BP batches, and GP batches after them."""
    optimizer = options.pop("optimizer", None) or torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    schedule = gp_after(warmup, adagp.METHODS[method].source)
    return adagp.attach(model, optimizer, epochs=1, batches_per_epoch=1000, method=method, schedule=schedule, **options)


def moved_by(model: nn.Module, train: Callable[[], object]) -> set[str]:
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    train()
    return {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}


def one_batch(trainer: adagp.Trainer, loss_of: Callable[[], Tensor]) -> None:
    with trainer.batch(LABELS) as batch:
        batch.backward(loss_of())
        batch.step()


@pytest.mark.parametrize("method", WHOLE)
def test_a_weight_that_is_frozen_during_training_stays(method: str) -> None:
    model = Net()
    trainer = attached(model, method)
    for _ in range(3):
        trainer.step(draw(), LABELS, F.cross_entropy)
    model.first.weight.requires_grad_(False)
    assert moved_by(model, lambda: trainer.step(draw(), LABELS, F.cross_entropy)) == {"last.weight"}
    assert not model.first.weight.requires_grad
    model.first.weight.requires_grad_(True)
    assert moved_by(model, lambda: trainer.step(draw(), LABELS, F.cross_entropy)) == {"first.weight", "last.weight"}


def test_a_partial_plan_does_not_thaw_what_is_frozen() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = adagp.attach(
        model, optimizer, epochs=1, batches_per_epoch=9, schedule="sites=last; source=zero; rest=hold"
    )
    model.last.weight.requires_grad_(False)
    model.last.bias.requires_grad_(False)
    assert moved_by(model, lambda: trainer.step(draw(), LABELS, F.cross_entropy)) == {"first.weight"}
    assert not model.last.weight.requires_grad
    assert not model.last.bias.requires_grad


@pytest.mark.parametrize("method", WHOLE)
def test_what_backprop_does_not_reach_is_not_moved_by_a_source(method: str) -> None:
    """With weight decay: a head that the loss ignores has no gradient in BP, so it must have none in GP."""
    model = Net()
    trainer = attached(model, method)
    for _ in range(3):
        trainer.step(draw(), LABELS, F.cross_entropy)
    assert moved_by(model, lambda: trainer.step(draw(), LABELS, F.cross_entropy)) == {"first.weight", "last.weight"}
    again = attached(copy.deepcopy(model), method)
    again.load_state_dict(trainer.state_dict())
    assert moved_by(again.model, lambda: again.step(draw(), LABELS, F.cross_entropy)) == {"first.weight", "last.weight"}


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


def test_feedback_refuses_a_loss_inside_the_model_at_once() -> None:
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


def test_an_output_that_is_not_there_is_refused() -> None:
    model = Returning(Answer)
    trainer = attached(model, "feedback", output="scores")
    with pytest.raises(ModelError, match=r"^output='scores' finds no floating-point tensor in what the model returns"):
        one_batch(trainer, lambda: F.cross_entropy(model(draw()).logits, LABELS))


def test_feedback_refuses_a_call_of_forward_at_once() -> None:
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
        "site 'first' has an output of the sizes (6, 6, 4), and there are 6 targets: it cannot be told which axis counts the "
        "samples. Say it by an attribute of the model or of a layer around the site (model.batch_first = True, or False for "
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
def test_reentrant_checkpointing_is_refused_at_once(method: str) -> None:
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
        "Give checkpoint(..., use_reentrant=False), or exclude the site."
    )


def test_the_guard_holds_one_site_and_lets_the_others_move() -> None:
    class Broken(adagp.Source):
        learns = True

        def produce(self, sites: Any) -> list[Tensor | None]:
            return [torch.full_like(site.weight, torch.nan if site.name == "first" else 1e-3) for site in sites]

    model = Net()
    trainer = adagp.attach(
        model,
        torch.optim.AdamW(model.parameters()),
        epochs=1,
        batches_per_epoch=1000,
        schedule=gp_after(2, "broken"),
        sources={"broken": Broken()},
    )
    for _ in range(2):
        trainer.step(draw(), LABELS, F.cross_entropy)
    moved = moved_by(model, lambda: trainer.step(draw(), LABELS, F.cross_entropy))
    assert moved == {"last.weight"}
    with trainer.batch() as batch:
        model(draw())
        batch.backward()
        batch.step()
    assert batch.refused == ("first",)
    assert not batch.guarded
    assert trainer.refusals.total == (2, 4)
    again = copy.deepcopy(trainer.refusals)
    again.load_state_dict(trainer.refusals.state_dict())
    assert trainer.refusals.read() == {"first": 1.0, "last": 0.0}
    assert trainer.refusals.read() == {}
    assert again.read() == {"first": 1.0, "last": 0.0}


def test_refusals_that_go_on_are_told_once() -> None:
    class Broken(adagp.Source):
        def produce(self, sites: Any) -> list[Tensor | None]:
            return [torch.full_like(site.weight, torch.nan) for site in sites]

    model = Net()
    trainer = adagp.attach(
        model,
        torch.optim.SGD(model.parameters()),
        steps=1000,
        schedule=Ladder((Rung(1, 1),), "broken"),
        sources={"broken": Broken()},
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(60):
            trainer.step(draw(), LABELS, F.cross_entropy)
    assert [one.category for one in caught] == [AdagpWarning]
    assert str(caught[0].message).startswith(
        "the guard refused half or more of the produced gradients in 10 batches in a row (2 of 2 in this one, among them "
        "that of 'first'): their weights are held there."
    )


def test_a_compiled_model_that_was_called_before_is_refused() -> None:
    model = Net()
    compiled: Any = torch.compile(model, backend="eager")
    compiled(draw())
    trainer = attached(compiled)
    with pytest.raises(UsageError, match=r"^the weights have gradients, but none of their layers was seen"):
        one_batch(trainer, lambda: F.cross_entropy(compiled(draw()), LABELS))
    torch._dynamo.reset()


def test_a_copy_of_a_compiled_model_is_a_model_of_its_own() -> None:
    model = Net()
    trainer = attached(model, compile="eager")
    inputs = draw()
    expected = model(inputs)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    torch.testing.assert_close(twin(inputs), expected)
    trainer.detach()
    assert "forward" not in vars(model)
    torch._dynamo.reset()


@pytest.mark.parametrize("compile_with", [False, "eager"])
def test_copies_and_files_of_an_attached_model_are_free_of_it(compile_with: bool | str) -> None:
    model = Net()
    trainer = attached(model, compile=compile_with)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    seen: list[str] = []

    def watch(site: Site, inputs: Any, output: Tensor) -> None:
        seen.append(site.name)

    trainer.sources["predicted"].watch = watch  # type: ignore[method-assign]
    twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)]
    with trainer.batch() as batch:
        for twin in twins:
            twin(draw())
        assert seen == []
        batch.abandon()
    torch._dynamo.reset()


def test_a_penalty_and_a_loss_with_weights_of_its_own_move_nothing_else() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(logits * self.scale, targets)

    model, loss = Net(), Weighted()
    optimizer = torch.optim.AdamW([*model.parameters(), *loss.parameters()], lr=1e-2)
    trainer = attached(model, "feedback", optimizer=optimizer)

    def loss_of() -> Tensor:
        return loss(model(draw()), LABELS) + 0.1 * sum(one.square().sum() for one in model.parameters())  # type: ignore[no-any-return]

    for _ in range(3):
        one_batch(trainer, loss_of)
    scale = loss.scale.detach().clone()
    # The penalty reaches the ignored head in BP batches, so it is a weight like any other.
    allowed = {"first.weight", "last.weight", "ignored.weight"}
    assert moved_by(model, lambda: one_batch(trainer, loss_of)) <= allowed
    assert torch.equal(scale, loss.scale)


@pytest.mark.parametrize("method", ["adagp", "feedback"])
def test_the_users_own_choice_about_autograd_holds(method: str) -> None:
    """A teacher's forward without gradients is none of training, in either phase."""
    model, plain = Net(), Net()
    trainers = [attached(model, method), attached(plain, method)]
    for number in range(5):
        inputs = draw()
        with trainers[0].batch() as batch:
            with torch.no_grad():
                assert not model(inputs * 7).requires_grad
                assert not torch.is_grad_enabled()
            assert torch.is_grad_enabled()
            batch.backward(F.cross_entropy(model(inputs), LABELS))
            batch.step()
        one_batch(trainers[1], lambda inputs=inputs: F.cross_entropy(plain(inputs), LABELS))  # type: ignore[misc]
        assert all(map(torch.equal, model.parameters(), plain.parameters())), number


@pytest.mark.parametrize("method", ["adagp", "feedback", "dni"])
def test_other_gradients_can_be_taken_in_any_batch(method: str) -> None:
    """Adversarial inputs, a gradient penalty and another model's backward pass, in BP and GP batches alike."""
    model, other = Net(), nn.Linear(5, 1)
    trainer = attached(model, method)
    for _ in range(5):
        with trainer.batch() as batch:
            inputs = draw().requires_grad_()
            with trainer.paused():
                (slope,) = torch.autograd.grad(F.cross_entropy(model(inputs), LABELS), inputs)
            other(inputs.detach()).sum().backward()
            assert other.weight.grad is not None
            logits = model((inputs + 0.1 * slope.sign()).detach().requires_grad_())
            batch.backward(F.cross_entropy(logits, LABELS))
            batch.step()


def test_a_model_without_a_call_of_its_layers_is_told_of() -> None:
    class Functional(Net):
        def forward(self, inputs: Tensor) -> Tensor:
            hidden = F.linear(inputs, self.first.weight, self.first.bias)
            return self.last(hidden)  # type: ignore[no-any-return]

    model = Functional()
    trainer = attached(model)
    with pytest.warns(
        AdagpWarning, match=r"^layer 'first': the weight has a gradient, but the layer itself was not called"
    ):
        trainer.step(draw(), LABELS, F.cross_entropy)
    for _ in range(2):
        trainer.step(draw(), LABELS, F.cross_entropy)
    assert moved_by(model, lambda: trainer.step(draw(), LABELS, F.cross_entropy)) == {"last.weight"}


@pytest.mark.parametrize("method", METHODS)
def test_default_numbers_of_double_precision(method: str) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        model = Net()
        trainer = attached(model, method)
        for _ in range(5):
            trainer.step(draw(), LABELS, F.cross_entropy)
        assert model.first.weight.isfinite().all()
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
@torch.backends.mkldnn.flags(enabled=False)  # as in test_trainer.py
@pytest.mark.parametrize("method", METHODS)
def test_autocast_named_arguments_micro_batches_and_an_empty_batch(method: str) -> None:
    class Named(Net):
        def forward(self, inputs: Tensor) -> Tensor:
            return self.last(input=self.first(input=inputs).tanh())  # type: ignore[no-any-return]

    model = Named()
    trainer = attached(model, method)
    for _ in range(5):
        with trainer.batch(LABELS) as batch:
            for part in (slice(0, 2), slice(2, 6)):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(draw()[part]), LABELS[part])
                    batch.backward(loss, more=part.start == 0)
            batch.step()
    with trainer.batch(LABELS[:0]) as batch:
        batch.backward(model(draw(0)).sum())
        batch.step()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_topk_for_all_sites_with_a_scaler() -> None:
    model = Net()
    trainer = attached(model, "topk", scaler=torch.amp.GradScaler("cpu", init_scale=64.0))
    for _ in range(5):
        trainer.step(draw(), LABELS, F.cross_entropy)
    assert model.first.weight.isfinite().all()


def test_an_attach_that_refuses_leaves_no_hooks() -> None:
    class Own(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return super().forward(input) * 2

    model = nn.Sequential(Own(5, 3))
    with pytest.raises(ModelError, match="a Own with a forward of its own"):
        attached(model, "feedback")
    assert not model[0]._forward_hooks
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_detached_trainer_and_another_sources_state_are_refused() -> None:
    model = Net()
    trainer = attached(model)
    with pytest.raises(UsageError) as caught:
        attached(Net(), "feedback").load_state_dict(trainer.state_dict())
    assert str(caught.value) == ("the state is that of a trainer with the sources: predicted; this one has: feedback.")
    trainer.detach()
    with pytest.raises(UsageError) as caught:
        trainer.step(draw(), LABELS, F.cross_entropy)
    assert str(caught.value) == "the trainer was detached from its model; call adagp.attach again to train."


def test_layers_of_timm_and_transformers_are_known() -> None:
    model = nn.Sequential(load_timm().layers.linear.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    trainer = attached(model, "feedback")
    for _ in range(5):
        trainer.step(draw(), LABELS, F.cross_entropy)
    assert [site.name for site in trainer.survey.sites] == ["0", "2"]
