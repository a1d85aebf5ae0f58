"""The engine against plain PyTorch, and against doing it by hand."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.engine.small_convnet import (
    assert_equal_states,
    gp_only,
    sgd,
    small_batches,
    small_model,
    snapshot,
    trainer_for,
)
from torch import Tensor, nn

from adagp.core.plan import Phase, Step
from adagp.engine.model_checks import PreviousGradients
from adagp.errors import UsageError
from adagp.papers.adagp.source import PredictedSource
from adagp.schedules import BackpropOnly, Ladder, Rung, Schedule, WarmUp


@pytest.mark.parametrize("schedule", [BackpropOnly(), WarmUp(Ladder(), epochs=9)])
@pytest.mark.parametrize("make_optimizer", [sgd, lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2)])
def test_phase_bp_is_bit_equal_to_a_plain_loop(
    schedule: Schedule, make_optimizer: Callable[[nn.Module], torch.optim.Optimizer]
) -> None:
    ours, plain = small_model(), small_model()
    trainer = trainer_for(ours, schedule, optimizer=make_optimizer(ours))
    optimizer = make_optimizer(plain)
    torch.manual_seed(7)
    for inputs, targets in small_batches(8):
        result = trainer.step(inputs, targets, F.cross_entropy)
        assert result.phase is (Phase.BP if isinstance(schedule, BackpropOnly) else Phase.WARMUP)
    torch.manual_seed(7)  # the same dropout
    for inputs, targets in small_batches(8):
        optimizer.zero_grad()
        F.cross_entropy(plain(inputs), targets).backward()
        optimizer.step()
    assert_equal_states(ours.state_dict(), plain.state_dict())


def test_phase_gp_is_what_one_does_by_hand() -> None:
    ours = small_model(dropout=0.0)
    trainer = trainer_for(ours, gp_only(warmup=1))
    batches = small_batches(5)
    for inputs, targets in batches[:4]:
        trainer.step(inputs, targets, F.cross_entropy)
    by_hand = copy.deepcopy(ours)
    optimizer = sgd(by_hand)
    optimizer.load_state_dict(copy.deepcopy(trainer.optimizer.state_dict()))

    result = trainer.step(*batches[4], F.cross_entropy)

    source = trainer.sources["predicted"]
    assert isinstance(source, PredictedSource)
    assert result.phase is Phase.GP
    with torch.no_grad():
        hidden = batches[4][0]
        for layer in by_hand:  # type: ignore[attr-defined]  # a Sequential
            hidden = layer(hidden)
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.weight.grad = _predict(source, layer, hidden)
    for parameter in by_hand.parameters():
        if parameter.grad is None:
            assert parameter.dim() == 1
    optimizer.step()
    for (name, one), other in zip(ours.state_dict().items(), by_hand.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8, msg=name)


def _predict(source: PredictedSource, layer: nn.Conv2d | nn.Linear, output: Tensor) -> Tensor:
    network = source.network
    mean = output.mean(0)
    pictures = mean[:, None] if mean.dim() == 3 else mean[:, None, None, None].expand(-1, 1, 4, 4)
    pooled = F.adaptive_avg_pool2d(pictures, 4)
    features = F.relu(network.convolution(pooled)).flatten(1)  # type: ignore[operator]  # a Conv2d
    rows = network.readout(features)[:, : layer.weight[0].numel()]  # type: ignore[operator]  # a Linear
    return rows.reshape(layer.weight.shape).detach()  # type: ignore[no-any-return]


def test_phase_gp_changes_the_weights_of_sites_and_nothing_else() -> None:
    model = small_model()
    trainer = trainer_for(model, gp_only(warmup=1))
    batches = small_batches(5)
    for inputs, targets in batches[:4]:
        trainer.step(inputs, targets, F.cross_entropy)
    before = snapshot(model)
    predictor = copy.deepcopy(trainer.sources["predicted"].state_dict())

    result = trainer.step(*batches[4], F.cross_entropy)

    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed - {"1.running_mean", "1.running_var", "1.num_batches_tracked"} == {
        "0.weight",
        "4.weight",
        "7.weight",
    }
    assert result.output.grad_fn is None
    assert result.loss.grad_fn is None
    after = trainer.sources["predicted"].state_dict()
    assert all(torch.equal(value, after["network"][name]) for name, value in predictor["network"].items())
    assert all(parameter.requires_grad for parameter in model.parameters())
    moved = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert moved == {"0.weight", "4.weight", "7.weight"}, "gradients stay until the next batch"


def test_what_is_kept_of_an_activation_is_small() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1))
    trainer = trainer_for(model, gp_only())
    source = trainer.sources["predicted"]
    assert isinstance(source, PredictedSource)
    with trainer.batch() as batch:
        model(torch.randn(64, 1, 32, 32))
        ((mean, samples),) = source._waiting.values()
        assert samples == 64
        assert mean.untyped_storage().nbytes() == 4 * 32 * 32 * 4, "one sample for the batch, until it is pooled"
        (kept,) = source.shared(trainer.survey.sites)
        assert kept.untyped_storage().nbytes() == 4 * 16 * 4
        assert not source._waiting
        batch.backward()
        batch.step()
    assert source.shared(trainer.survey.sites) == []


@pytest.mark.parametrize("schedule", [gp_only(), WarmUp(Ladder(), epochs=1)], ids=["gp", "bp"])
def test_a_large_output_of_a_small_input_is_summarised_without_reading_it(
    schedule: Ladder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layer's answer to the mean input stands in for its outputs; a layer that is called so is not watched again."""
    monkeypatch.setattr("adagp.layers.summaries._LARGE", 2**20)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(inplace=True))
    trainer = trainer_for(model, schedule)
    source = trainer.sources["predicted"]
    assert isinstance(source, PredictedSource)
    inputs = torch.randn(40, 3, 32, 32)
    with trainer.batch() as batch:
        loss = model(inputs).mean()
        ((site, (mean, samples)),) = source._waiting.items()
        assert samples == 40
        assert source._means[site]._matrix == (32 * 32 * 32, 1), "one answer instead of forty"
        expected = model[0].forward(inputs).detach().mean(0)
        torch.testing.assert_close(mean, expected, rtol=1e-4, atol=1e-5)
        batch.backward(loss)
        batch.step()


def test_calls_in_the_wrong_order_are_rejected() -> None:
    model = small_model()
    trainer = trainer_for(model, BackpropOnly())
    inputs, targets = small_batches(1)[0]

    with pytest.raises(UsageError, match=r"^step\(\) was called before backward\(\)\.$"), trainer.batch() as batch:
        batch.step()
    with (
        pytest.raises(UsageError, match=r"^a BP batch needs the loss: call backward\(loss\)\.$"),
        trainer.batch() as batch,
    ):
        batch.backward()
    with (
        pytest.raises(UsageError, match=r"^the batch ended without step\(\)\. One batch\(\) is one step"),
        trainer.batch() as batch,
    ):
        batch.backward(F.cross_entropy(model(inputs), targets))
    with (
        pytest.raises(UsageError, match=r"^backward\(\) was called again after the last micro-batch; pass more=True"),
        trainer.batch() as batch,
    ):
        batch.backward(F.cross_entropy(model(inputs), targets))
        batch.backward(F.cross_entropy(model(inputs), targets))
    with pytest.raises(UsageError, match=r"^step\(\) was called twice in one batch\.$"), trainer.batch() as batch:
        batch.backward(F.cross_entropy(model(inputs), targets))
        batch.step()
        batch.step()
    assert trainer.at == Step(0, 0), "a batch that failed does not count"


def test_gradients_from_before_a_batch_are_rejected() -> None:
    model = small_model()
    trainer = trainer_for(model, BackpropOnly())
    inputs, targets = small_batches(1)[0]
    F.cross_entropy(model(inputs), targets).backward()
    with pytest.raises(UsageError, match="adagp cannot accumulate gradients across batches, as a GP batch has none"):
        trainer.step(inputs, targets, F.cross_entropy)


def test_non_finite_true_gradients_teach_nothing() -> None:
    model = small_model(dropout=0.0)
    trainer = trainer_for(model, WarmUp(Ladder(), epochs=1))
    inputs, targets = small_batches(1)[0]
    predictor = copy.deepcopy(trainer.sources["predicted"].state_dict()["network"])
    trainer.step(inputs, targets, lambda output, aims: F.cross_entropy(output, aims) * float("inf"))
    after = trainer.sources["predicted"].state_dict()["network"]
    assert all(torch.equal(value, after[name]) for name, value in predictor.items())
    assert trainer.norms.counts.sum() == 0


def test_attaching_and_training_leave_no_trace_in_the_model() -> None:
    model = small_model()
    keys, names = list(model.state_dict()), [name for name, _ in model.named_modules()]
    trainer = trainer_for(model, WarmUp(Ladder((Rung(1, 1),)), epochs=1))
    for inputs, targets in small_batches(8):
        trainer.step(inputs, targets, F.cross_entropy)
    assert list(model.state_dict()) == keys
    assert [name for name, _ in model.named_modules()] == names
    trainer.detach()
    assert all(not module._forward_hooks for module in model.modules())


def test_attaching_does_not_touch_the_global_random_state() -> None:
    model = small_model()
    before = torch.get_rng_state()
    trainer_for(model, Ladder())
    assert torch.equal(torch.get_rng_state(), before)


def weights_and_gradients() -> tuple[list[nn.Parameter], PreviousGradients]:
    weights = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    return weights, PreviousGradients([torch.optim.SGD(weights, lr=0.1)])


def test_gradients_that_were_kept_or_dropped_are_no_others() -> None:
    weights, left = weights_and_gradients()
    left.check_unchanged()
    weights[0].grad = torch.zeros(2)
    left.record()
    left.check_unchanged()
    weights[0].grad = None
    left.check_unchanged()


@pytest.mark.parametrize("sparse", [False, True])
def test_a_gradient_that_came_later_is_rejected(sparse: bool) -> None:
    weights, left = weights_and_gradients()
    weights[0].grad = torch.zeros(2)
    left.record()
    weights[1].grad = torch.zeros(3).to_sparse() if sparse else torch.zeros(3)
    with pytest.raises(UsageError, match="parameters still have gradients from before this batch"):
        left.check_unchanged()


def test_a_gradient_that_was_added_to_is_rejected() -> None:
    weights, left = weights_and_gradients()
    weights[0].grad = torch.zeros(2)
    left.record()
    weights[0].grad += 1
    with pytest.raises(UsageError, match="parameters still have gradients from before this batch"):
        left.check_unchanged()
