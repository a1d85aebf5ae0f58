"""Training is right or rejected, never wrong without a word: cases in which it once was not."""

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.engine.small_nets import LABELS, METHODS, WHOLE, Net, attached, draw, gp_after, moved_by, one_batch
from torch import Tensor, nn

import adagp
from adagp.errors import AdagpWarning, ModelError, UsageError
from adagp.layers.sites import Site
from adagp.models.vision import load_timm
from adagp.schedules import Ladder, Rung


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
    trainer = adagp.attach(model, optimizer, length=adagp.Epochs(1, 9), schedule="sites=last; source=zero; rest=hold")
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


def test_the_guard_holds_one_site_and_lets_the_others_move() -> None:
    class Broken(adagp.Source):
        learns = True

        def produce(self, sites: Any) -> list[Tensor | None]:
            return [torch.full_like(site.weight, torch.nan if site.name == "first" else 1e-3) for site in sites]

    model = Net()
    trainer = adagp.attach(
        model,
        torch.optim.AdamW(model.parameters()),
        length=adagp.Epochs(1, 1000),
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
    assert batch.rejected == ("first",)
    assert not batch.guarded
    assert trainer.rejections.total == (2, 4)
    assert repr(trainer.rejections) == "2 of 4 gradients rejected"
    again = copy.deepcopy(trainer.rejections)
    again.load_state_dict(trainer.rejections.state_dict())
    assert trainer.rejections.read() == {"first": 1.0, "last": 0.0}
    assert trainer.rejections.read() == {}
    assert again.read() == {"first": 1.0, "last": 0.0}


def test_rejections_that_go_on_are_told_once() -> None:
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
        "the guard rejected half or more of the produced gradients in 10 batches in a row (2 of 2 in this one, "
        "among them that of 'first'): their weights are frozen in those batches."
    )


@pytest.mark.medium
def test_a_compiled_model_that_was_called_before_is_rejected() -> None:
    model = Net()
    compiled: Any = torch.compile(model, backend="eager")
    compiled(draw())
    trainer = attached(compiled)
    with pytest.raises(UsageError, match=r"^the weights have gradients, but none of their layers was seen"):
        one_batch(trainer, lambda: F.cross_entropy(compiled(draw()), LABELS))
    torch._dynamo.reset()


@pytest.mark.medium
def test_a_copy_of_a_compiled_model_is_a_model_of_its_own() -> None:
    model = Net()
    trainer = attached(model, engine=adagp.EngineOptions(compile="eager"))
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
    untouched = {name: sorted(vars(part)) for name, part in model.named_modules()}
    trainer = attached(model, engine=adagp.EngineOptions(compile=compile_with))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    seen: list[str] = []

    def watch(site: Site, inputs: Any, output: Tensor) -> None:
        seen.append(site.name)

    trainer.sources["predicted"].watch = watch  # type: ignore[method-assign]
    twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)]
    for twin in twins:
        assert {name: sorted(vars(part)) for name, part in twin.named_modules()} == untouched
        for part in twin.modules():
            assert not any((part._forward_hooks, part._forward_pre_hooks, part._forward_hooks_with_kwargs))
    with trainer.batch() as batch:
        for twin in twins:
            twin(draw())
        assert seen == []
        batch.abandon()
    trainer.detach()
    assert {name: sorted(vars(part)) for name, part in model.named_modules()} == untouched
    torch._dynamo.reset()


def test_hooks_of_the_user_stay_on_copies() -> None:
    model = Net()
    model.first.register_forward_hook(double)
    trainer = attached(model)
    model.last.register_forward_hook(double, with_kwargs=False)
    twin = copy.deepcopy(model)
    assert list(twin.first._forward_hooks.values()) == list(twin.last._forward_hooks.values()) == [double]
    inputs = draw()
    torch.testing.assert_close(twin(inputs), model(inputs))
    trainer.detach()
    assert list(model.first._forward_hooks.values()) == [double]


def double(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """Return the output times two, as a user's hook may."""
    return 2 * output


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

    with (
        pytest.warns(
            adagp.errors.AdagpWarning, match=r"^the loss uses the weight of layer 'first' \(and those of 1 more\) other"
        ),
        pytest.warns(adagp.errors.AdagpWarning, match=r"^site 'ignored' has a weight gradient, but none at its output"),
    ):
        one_batch(trainer, loss_of)
    for _ in range(2):
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
@pytest.mark.medium
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
    trainer = attached(model, "topk", engine=adagp.EngineOptions(scaler=torch.amp.GradScaler("cpu", init_scale=64.0)))
    for _ in range(5):
        trainer.step(draw(), LABELS, F.cross_entropy)
    assert model.first.weight.isfinite().all()


def test_an_attach_that_rejects_leaves_no_hooks() -> None:
    class Own(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return super().forward(input) * 2

    model = nn.Sequential(Own(5, 3))
    with pytest.raises(ModelError, match="a Own with a forward of its own"):
        attached(model, "feedback")
    assert not model[0]._forward_hooks
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_detached_trainer_and_another_sources_state_are_rejected() -> None:
    model = Net()
    trainer = attached(model)
    with pytest.raises(UsageError) as caught:
        attached(Net(), "feedback").load_state_dict(trainer.state_dict())
    assert str(caught.value) == (
        "the state was saved by a trainer with the sources: predicted; this one has: feedback."
    )
    trainer.detach()
    with pytest.raises(UsageError) as caught:
        trainer.step(draw(), LABELS, F.cross_entropy)
    assert str(caught.value) == "the trainer was detached from its model; call adagp.attach again to train."


@pytest.mark.medium
def test_layers_of_timm_and_transformers_are_known() -> None:
    model = nn.Sequential(load_timm().layers.linear.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    trainer = attached(model, "feedback")
    for _ in range(5):
        trainer.step(draw(), LABELS, F.cross_entropy)
    assert [site.name for site in trainer.survey.sites] == ["0", "2"]


def test_the_former_names_of_rejections_warn() -> None:
    trainer = attached(Net(), "feedback")
    with pytest.warns(DeprecationWarning, match="^Trainer.refusals is deprecated: use Trainer.rejections.$"):
        assert trainer.refusals is trainer.rejections
    batch = trainer.begin()
    with pytest.warns(DeprecationWarning, match="^Batch.refused is deprecated: use Batch.rejected.$"):
        assert batch.refused == ()
    batch.abandon()
