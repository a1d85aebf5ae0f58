"""What loops and frameworks need of the trainer, besides `step`."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import adagp
from adagp.core.plan import Phase, Step
from adagp.errors import OptionError, UsageError
from adagp.papers.feedback.source import FeedbackSource
from adagp.schedules import Ladder, Rung, WarmUp

LABELS = torch.arange(6) % 3


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def alternating(source: str = "predicted", warmup: int = 2) -> WarmUp:
    return WarmUp(Ladder((Rung(1, 1),), source), batches=warmup, batches_per_epoch=100)


def attached(model: nn.Module, **options: Any) -> adagp.Trainer:
    return adagp.attach(
        model,
        options.pop("optimizer", None) or adam(model),
        length=adagp.Epochs(1, 100),
        schedule=options.pop("schedule", alternating()),
        **options,
    )


def draws(count: int) -> list[Tensor]:
    return [torch.randn(6, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(count)]


def train(trainer: adagp.Trainer, inputs: Tensor) -> adagp.Phase:
    return trainer.step(inputs, LABELS, F.cross_entropy).phase


def test_begin_and_finish_are_the_same_as_the_context() -> None:
    ours, other = net(), net()
    optimizer = adam(ours)
    trainer, twin = attached(ours, optimizer=optimizer), attached(other)
    for inputs in draws(6):
        batch = trainer.begin()
        batch.backward(F.cross_entropy(ours(inputs), LABELS))
        optimizer.step()  # by somebody else
        batch.finish()
        train(twin, inputs)
    assert all(map(torch.equal, ours.parameters(), other.parameters()))
    assert trainer.at == Step(0, 6)


def test_an_abandoned_batch_changes_nothing_but_the_place_in_the_run() -> None:
    model = net()
    trainer = attached(model)
    before = copy.deepcopy(model.state_dict())
    state = copy.deepcopy(trainer.sources["predicted"].state_dict())
    for inputs in draws(4):
        with trainer.batch() as batch:
            loss = F.cross_entropy(model(inputs) * torch.nan, LABELS)
            if not loss.isfinite():
                batch.abandon()
                continue
    assert trainer.at == Step(0, 4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    after = trainer.sources["predicted"].state_dict()
    assert all(torch.equal(value, after["network"][name]) for name, value in state["network"].items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_batches_that_overlap_or_end_too_early_are_rejected() -> None:
    trainer = attached(net())
    batch = trainer.begin()
    with pytest.raises(UsageError, match=r"^the last batch is not over: call its finish\(\), or abandon\(\)"):
        trainer.begin()
    with pytest.raises(UsageError, match=r"^finish\(\) was called before backward\(\)\.$"):
        batch.finish()
    batch.abandon()
    with pytest.raises(UsageError, match=r"^the batch is over already\.$"):
        batch.abandon()


def two_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    weights = [one for one in model.parameters() if one.dim() > 1]
    biases = [one for one in model.parameters() if one.dim() == 1]
    return [torch.optim.SGD(weights, lr=0.1), torch.optim.Adam(biases)]


def test_several_optimizers() -> None:
    ours, other = net(), net()
    trainer, optimizers = attached(ours, optimizer=two_optimizers(ours)), two_optimizers(other)
    for inputs in draws(2):
        assert train(trainer, inputs) is Phase.WARMUP
        F.cross_entropy(other(inputs), LABELS).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert all(map(torch.equal, ours.parameters(), other.parameters()))
    assert train(trainer, draws(1)[0]) is Phase.GP


def test_inputs_by_name() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, *, left: Tensor, right: Tensor) -> Tensor:
            return self.layer(left - right)  # type: ignore[no-any-return]

    model = Named()
    inputs = {"left": torch.randn(6, 5), "right": torch.randn(6, 5)}
    trainer = attached(model, sample=inputs)
    for _ in range(4):
        trainer.step(inputs, LABELS, F.cross_entropy)
    assert trainer.at == Step(0, 4)


def test_a_method_and_its_options_by_name() -> None:
    model = net()
    trainer = adagp.attach(
        model, adam(model), length=adagp.Epochs(9, 10), method=adagp.Feedback(features=2), warmup="4 batches"
    )
    source = trainer.sources["feedback"]
    assert isinstance(source, FeedbackSource)
    assert source._errors.most == 2
    phases = [train(trainer, inputs) for inputs in draws(12)]
    assert phases[:4] == [Phase.WARMUP] * 4
    assert Phase.GP in phases


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"features": 2, "schedule": Ladder()},
            "attach has no argument 'features'; options of a method go with it, as in method=adagp.Feedback(features=32).",
        ),
        ({"method": adagp.NamedMethod("adagp", features=2)}, "unknown option of method 'adagp' 'features'."),
        ({"method": adagp.NamedMethod("skip", features=2)}, "method 'skip' has no options; got 'features'."),
        (
            {"warmup": "1 epoch"},
            "cannot read the warm-up '1 epoch': give a number of epochs, or for example '300 batches'.",
        ),
        ({"warmup": "90 batches"}, "a warm-up of 90 batches does not fit a run of 90: nothing would be predicted."),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    model = net()
    with pytest.raises(OptionError) as caught:
        adagp.attach(model, adam(model), **{"length": adagp.Epochs(9, 10), **options})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("steps", [1, 30, 500, 9001])
def test_a_run_without_epochs(steps: int) -> None:
    model = net()
    if steps == 1:
        with pytest.raises(OptionError, match="nothing would be predicted"):
            adagp.attach(model, adam(model), steps=steps)
        return
    trainer = adagp.attach(model, adam(model), steps=steps)
    phases = []
    for _ in range(steps):
        phases.append(trainer.phase)
        trainer.advance()
    assert trainer.done == steps
    warm = phases.index(Phase.GP)
    assert warm == pytest.approx(steps / 9, abs=0.06 * steps + 2)
    share = phases.count(Phase.GP) / steps
    assert 0.3 < share < 0.75


def test_gradients_stay_until_the_next_batch_and_foreign_ones_are_rejected() -> None:
    model = net()
    trainer = attached(model)
    for inputs in draws(4):
        train(trainer, inputs)
        assert model[0].weight.grad is not None
    F.cross_entropy(model(inputs), LABELS).backward()
    with pytest.raises(UsageError, match="parameters still have gradients from before this batch"):
        train(trainer, inputs)


def test_hooks_of_parameters_run_in_every_batch() -> None:
    model = net()
    weight = model[0].weight
    assert isinstance(weight, nn.Parameter)
    seen: list[float] = []
    weight.register_hook(lambda gradient: gradient * 0 + 2)
    weight.register_post_accumulate_grad_hook(lambda one: seen.append(float(one.grad.mean())))
    trainer = attached(model)
    phases = [train(trainer, inputs) for inputs in draws(6)]
    assert Phase.GP in phases
    assert seen == [2.0] * 6
