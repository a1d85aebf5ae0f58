"""A source must show that it acts, and a batch that does not count leaves no trace."""

import copy
import io
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.engine.small_nets import LABELS, WHOLE, Net, attached, draw, gp_after, one_batch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.utils.checkpoint import checkpoint

import adagp
from adagp.engine.hooks import call
from adagp.errors import AdagpWarning, ModelError, UsageError


def loss_of(model: nn.Module, inputs: Tensor | None = None) -> Tensor:
    return F.cross_entropy(model(draw() if inputs is None else inputs), LABELS)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


class StopError(Exception):
    pass


@pytest.mark.parametrize("end", ["raise", "abandon"])
@pytest.mark.parametrize("warm", [0, 2])
@pytest.mark.parametrize("method", WHOLE)
def test_a_batch_that_does_not_count_leaves_no_trace(method: str, warm: int, end: str) -> None:
    model = Net()
    trainer = attached(model, method, warmup=5, engine=adagp.EngineOptions(metrics_every=1))
    for _ in range(warm):
        one_batch(trainer, lambda: loss_of(model))
    before = copy.deepcopy(trainer.state_dict())
    with pytest.raises(StopError) if end == "raise" else nullcontext(), trainer.batch(LABELS) as batch:
        batch.backward(loss_of(model))
        if end == "raise":
            raise StopError
        batch.abandon()
    after = trainer.state_dict()
    if end == "abandon":
        assert after["batch"] == before["batch"] + 1
        after["batch"] = before["batch"]
    assert same(after, before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_discarded_gp_batch_does_not_count_rejections() -> None:
    model = Net()
    trainer = attached(model, "replay", warmup=1, engine=adagp.EngineOptions(guard=adagp.Guard(1e-9)))
    one_batch(trainer, lambda: loss_of(model))
    with trainer.batch() as batch:
        batch.backward(loss_of(model))
        assert batch.rejected
        batch.abandon()
    assert trainer.rejections.total == (0, 0)


class Unlearned(adagp.Source):
    """Learns, but predicts 0."""

    learns = True

    def produce(self, sites: Any) -> list[Tensor | None]:
        return [torch.zeros_like(site.weight) for site in sites]


class Silent(Unlearned):
    def produce(self, sites: Any) -> list[Tensor | None]:
        return [None for _ in sites]


def with_source(model: nn.Module, source: adagp.Source) -> adagp.Trainer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = gp_after(1, "own")
    return adagp.attach(model, optimizer, length=adagp.Epochs(1, 1000), schedule=schedule, sources={"own": source})


def test_predictions_of_zero_are_an_error() -> None:
    model = Net()
    trainer = with_source(model, Unlearned())
    one_batch(trainer, lambda: loss_of(model))
    with pytest.raises(ModelError) as caught:
        one_batch(trainer, lambda: loss_of(model))
    assert str(caught.value) == (
        "source 'own' has seen true gradients, but every gradient that it produces is 0: the batch would train nothing. Was "
        "a part of the model compiled and called before adagp.attach, or do its layers run in a way that hooks do not see? "
        "trainer.rehearse(step) names the layers."
    )


def test_a_gp_batch_that_serves_no_site_is_an_error() -> None:
    model = Net()
    trainer = with_source(model, Silent())
    one_batch(trainer, lambda: loss_of(model))
    with pytest.raises(ModelError) as caught:
        one_batch(trainer, lambda: loss_of(model))
    assert str(caught.value) == (
        "source 'own' produced no gradient for any of the 2 layers that it serves: the batch would train "
        "nothing. Was a part of the model compiled and called before adagp.attach, or do its layers run in a way that hooks do "
        "not see? trainer.rehearse(step) names the layers."
    )


class Functional(Net):
    """Calls its last layer for nothing, and uses its weight."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.linear(inputs, self.first.weight)
        self.first(inputs)
        self.last(hidden)
        return F.linear(hidden, self.last.weight)


@pytest.mark.parametrize("method", ["feedback", "dni"])
def test_a_learner_that_sees_no_output_gradient_raises(method: str) -> None:
    model = Functional()
    trainer = attached(model, method)
    with pytest.raises(ModelError) as caught:
        one_batch(trainer, lambda: loss_of(model))
    assert str(caught.value) == (
        f"source '{method}' saw no gradient at the output of any layer, but 'first' has a true weight gradient. Was a part of "
        "the model compiled and called before adagp.attach?"
    )


class Checkpointed(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = checkpoint(lambda given: self.first(given).tanh(), inputs, use_reentrant=True)
        return self.last(hidden)  # type: ignore[no-any-return]


def topk_trainer(model: nn.Module, warmup: int = 0) -> adagp.Trainer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = adagp.NamedMethod("topk", topk=6)
    return adagp.attach(model, optimizer, method, length=adagp.Epochs(1, 1000), schedule=gp_after(warmup, "topk"))


def test_topk_in_reentrant_checkpointing_is_rejected() -> None:
    model = Checkpointed()
    trainer = topk_trainer(model)
    with pytest.raises(ModelError, match="use_reentrant=False"):
        one_batch(trainer, lambda: loss_of(model, draw().requires_grad_()))


def gradients(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    twin = copy.deepcopy(model)
    F.cross_entropy(twin(inputs), LABELS).backward()
    return {name: one.grad for name, one in twin.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("after", [False, True], ids=["before attach", "put first after attach"])
def test_topk_takes_the_gradient_before_hooks_of_the_user(after: bool) -> None:
    model = Net()
    trainer = topk_trainer(model) if after else None
    model.first.register_forward_hook(lambda module, inputs, output: 3 * output.tanh(), prepend=True)
    inputs = draw()
    expected = gradients(model, inputs)
    trainer = trainer or topk_trainer(model)
    with trainer.batch() as batch:
        batch.backward(loss_of(model, inputs))
        for name in ("first.weight", "last.weight"):
            torch.testing.assert_close(model.get_parameter(name).grad, expected[name])
        batch.step()


class Double(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).tanh()
        return self.last(hidden) + F.linear(hidden, self.last.weight)  # type: ignore[no-any-return]


def test_a_weight_that_is_also_used_functionally_is_warned_of_once() -> None:
    model = Double()
    trainer = topk_trainer(model, warmup=2)
    with pytest.warns(AdagpWarning) as caught:
        one_batch(trainer, lambda: loss_of(model))
    assert str(caught[0].message) == (
        "the loss uses the weight of layer 'last' other than by calling the layer, for example in a penalty: that part of "
        "its gradient is missing where 'topk' produces it. Use weight_decay, or exclude the layer."
    )
    one_batch(trainer, lambda: loss_of(model))


class Positive(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.exp()


CHANGES: dict[str, Callable[[Any], object]] = {
    "parametrized": lambda model: parametrize.register_parametrization(model.last, "weight", Positive()),
    "pruned": lambda model: prune.l1_unstructured(model.last, "weight", amount=0.5),
    "new weight": lambda model: setattr(model.last, "weight", nn.Parameter(torch.zeros(3, 4))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_weight_that_changes_after_attach_is_rejected(change: str) -> None:
    model = Net()
    trainer = attached(model)
    CHANGES[change](model)
    with pytest.raises(ModelError) as caught:
        trainer.begin()
    assert str(caught.value) == (
        "the weight of layer 'last' is not the parameter that attach() saw: it was replaced, parametrized or pruned. Call "
        "trainer.detach() and adagp.attach() again after such a change."
    )


def test_a_layer_that_is_replaced_after_attach_is_rejected() -> None:
    model = Net()
    trainer = attached(model)
    model.last = nn.Linear(4, 3)
    with pytest.raises(ModelError) as caught:
        trainer.begin()
    assert str(caught.value) == (
        "layer 'last' was replaced after attach(). Call trainer.detach() and adagp.attach() again after such a change."
    )


def test_a_layer_that_is_wrapped_after_attach_still_trains() -> None:
    model = Net()
    trainer = attached(model)
    model.first = nn.Sequential(model.first)  # type: ignore[assignment]
    one_batch(trainer, lambda: loss_of(model))


def test_excluding_a_container_excludes_what_is_in_it() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(5, 4), nn.Sequential(nn.Linear(4, 4))), nn.Linear(4, 3))
    found = adagp.validate(model, torch.optim.SGD(model.parameters(), lr=0.1), exclude=["0"])
    assert [site.name for site in found.survey.sites] == ["1"]


def test_an_optimizer_in_the_backward_pass_is_rejected() -> None:
    model = Net()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}

    def hook(parameter: Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    trainer = attached(model, "replay", optimizer=list(optimizers.values()))
    with pytest.raises(UsageError) as caught:
        one_batch(trainer, lambda: loss_of(model))
    assert str(caught.value) == (
        "the gradient of layer 'first' was missing after the backward pass, and its weight has a hook "
        "(register_post_accumulate_grad_hook): an optimizer that steps in the backward pass leaves no true gradient to learn "
        "from. Remove the hook, give the optimizers to adagp.attach, and call batch.step()."
    )


@pytest.mark.parametrize("method", ["adagp", "feedback"])
def test_another_model_in_the_loss_is_warned_of_once(method: str) -> None:
    model, critic = Net(), nn.Linear(3, 3)
    trainer = attached(model, method, warmup=1)

    def loss() -> Tensor:
        return F.cross_entropy(critic(model(draw())), LABELS)

    one_batch(trainer, loss)
    with pytest.warns(AdagpWarning) as caught:
        one_batch(trainer, loss)
    assert str(caught[0].message) == (
        "the loss depends on 2 trainable parameters of another model: they get no gradient in GP "
        "batches. If they learn from this loss, skip their optimizer's step in GP batches (batch.phase), or give that "
        "optimizer to adagp.attach too."
    )
    one_batch(trainer, loss)


def gp_trainer(model: nn.Module, method: str = "replay") -> adagp.Trainer:
    trainer = attached(model, method, warmup=1)
    one_batch(trainer, lambda: loss_of(model))
    return trainer


@pytest.mark.parametrize("how", ["parameter", "module"])
def test_freezing_inside_a_gp_batch_holds(how: str) -> None:
    model = Net()
    trainer = gp_trainer(model)
    before = model.last.weight.detach().clone()
    with trainer.batch() as batch:
        (model.last.weight if how == "parameter" else model.last).requires_grad_(False)
        batch.backward(loss_of(model))
        batch.step()
    assert not model.last.weight.requires_grad
    assert model.first.weight.requires_grad
    assert torch.equal(before, model.last.weight), "nor is it moved in this batch"


def test_copies_and_files_made_in_a_gp_batch_are_not_frozen() -> None:
    model = Net()
    model.ignored.requires_grad_(False)
    trainer = gp_trainer(model)
    with trainer.batch() as batch:
        twin = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(model, file)
        assert not model.last.weight.requires_grad
        batch.backward(loss_of(model))
        batch.step()
    file.seek(0)
    for other in (twin, torch.load(file, weights_only=False)):
        assert [one.requires_grad for one in other.parameters()] == [True, True, False, False, True, True]
        assert not vars(other.last.weight)
    assert not vars(model.last.weight)


def test_detaching_in_the_middle_of_a_batch_unfreezes() -> None:
    model = Net()
    trainer = gp_trainer(model)
    trainer.begin()
    trainer.detach()
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("later", [False, True], ids=["in the optimizer", "added to it later"])
def test_what_is_unfrozen_after_attach_is_warned_of_once(later: bool) -> None:
    model = Net()
    model.first.requires_grad_(False)
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad or not later], lr=0.1)
    trainer = attached(model, optimizer=optimizer)
    one_batch(trainer, lambda: loss_of(model))  # nobody trains it yet
    model.first.requires_grad_(True)
    if later:
        optimizer.add_param_group({"params": list(model.first.parameters())})
    with pytest.warns(AdagpWarning) as caught:
        one_batch(trainer, lambda: loss_of(model))
    assert str(caught[0].message) == (
        "parameter 'first.weight' and 1 more was frozen, or in no optimizer, when attach() ran and is trained now: by "
        "backprop in BP batches, not at all in GP batches. To have it predicted, attach again."
    )
    one_batch(trainer, lambda: loss_of(model))


@pytest.mark.parametrize("method", ["adagp", "feedback"])
def test_no_grad_around_a_gp_forward_is_named(method: str) -> None:
    model = Net()
    trainer = gp_trainer(model, method)
    with pytest.raises(UsageError) as caught, trainer.batch() as batch:
        with torch.no_grad():
            loss = loss_of(model)
        batch.backward(loss)
    assert str(caught.value) == (
        "in this GP batch the model ran without autograd (torch.no_grad, inference_mode) or inside vmap, which "
        "counts as an evaluation. Remove that: a GP batch builds no graph anyway."
    )


@pytest.mark.parametrize("method", ["adagp", "feedback", "dni"])
def test_gradients_per_sample_can_be_taken_in_any_batch(method: str) -> None:
    model = Net()
    trainer = attached(model, method, warmup=1)
    parameters = {name: one.detach() for name, one in model.named_parameters()}

    def loss(weights: dict[str, Tensor], sample: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, weights, (sample[None],)), label[None])

    for _ in range(2):
        with trainer.batch() as batch:
            each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, draw(), LABELS)
            assert each["last.weight"].shape == (6, 3, 4)
            batch.backward(loss_of(model))
            batch.step()


class WithBias(nn.Linear):
    """Returns a tuple, as the linear layers of some libraries do."""

    def forward(self, inputs: Tensor) -> Any:
        return super().forward(inputs), self.bias


class Tuples(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first = WithBias(5, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.first(inputs)[0].tanh())  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", ["adagp", "replay"])
def test_layers_that_return_tuples_are_sites(method: str) -> None:
    model = Tuples()
    trainer = attached(model, method, warmup=1, sample=draw())
    for _ in range(2):
        one_batch(trainer, lambda: loss_of(model))
    assert model.first.weight.grad is not None


def test_a_named_tuple_is_one_argument() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 5), torch.randn(2, 5)])
    output, _ = call(nn.LSTM(5, 4), packed)
    assert isinstance(output, nn.utils.rnn.PackedSequence)
