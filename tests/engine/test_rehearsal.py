"""A rehearsal of the user's own step: what it tells, and that nothing is different after it."""

import copy
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import adagp
from adagp.errors import UsageError
from adagp.schedules import Ladder, Rung, WarmUp

LABELS = torch.arange(6) % 3


def alternating(source: str = "predicted", warmup: int = 2) -> WarmUp:
    return WarmUp(Ladder((Rung(1, 1),), source), batches=warmup, batches_per_epoch=100)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 3))


def attached(model: nn.Module, **options: Any) -> adagp.Trainer:
    given = {"length": adagp.Epochs(1, 100), "schedule": alternating(), **options}
    return adagp.attach(model, given.pop("optimizer", None) or adam(model), **given)


def draws(count: int) -> list[Tensor]:
    return [torch.randn(6, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(count)]


def train(trainer: adagp.Trainer, inputs: Tensor) -> adagp.Phase:
    return trainer.step(inputs, LABELS, F.cross_entropy).phase


@pytest.mark.parametrize("method", ["adagp", "feedback", "topk"])
def test_a_rehearsal_tells_what_will_happen_and_puts_everything_back(method: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.norm, self.last = nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
            self.ignored, self.absent = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = F.dropout(self.norm(self.first(inputs)))
            self.ignored(hidden)
            return self.last(hidden)  # type: ignore[no-any-return]

    model = Net()
    optimizer = adam(model)
    trainer = attached(model, method=method, schedule=alternating(adagp.METHODS[method].source))
    trainer.optimizer.step()
    train(trainer, draws(1)[0])
    optimizer = trainer.optimizer

    def everything() -> list[Any]:
        gradients = {name: one.grad for name, one in model.named_parameters()}
        return copy.deepcopy(
            [model.state_dict(), gradients, optimizer.state_dict(), trainer.state_dict(), torch.get_rng_state()]
        )

    before = everything()
    found = trainer.rehearse(lambda: train(trainer, torch.randn(6, 5)))
    assert_same(before, everything())
    assert found.never_called == ("absent",)
    assert found.without_gradient == ("ignored", "absent")
    assert set(found.moved) == {"first.weight", "last.weight"}
    assert found.moved_wrongly == ()
    assert not found.clean
    if method != "topk":
        assert found.gp_kept < found.bp_kept / 2
    assert "never called, so frozen in GP batches: absent" in str(found)
    train(trainer, draws(1)[0])


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert one == other


def test_a_rehearsal_wants_one_batch_and_a_plan_with_a_source() -> None:
    trainer = attached(net())
    with pytest.raises(UsageError) as caught:
        trainer.rehearse(lambda: None)
    assert str(caught.value) == "rehearse() was given a step that trains 0 batches; it must train one."
    trainer = attached(net(), schedule="bp")
    with pytest.raises(UsageError, match=r"^there is nothing to rehearse: no batch of the schedule"):
        trainer.rehearse(lambda: None)


class Log:
    """What a loop has seen: hidden from a rehearsal, which would put a list back."""

    __slots__ = ("samples",)

    def __init__(self) -> None:
        self.samples: list[Tensor] = []


class Loop:
    """A loop with everything in it: a loader that shuffles, augmentation by three kinds of random numbers, a scheduler, an
    average of the weights, a teacher, a generator of its own."""

    def __init__(self, workers: int = 0) -> None:
        self.model, self.teacher = net(), nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)
        self.average: Any = AveragedModel(self.model)
        self.generators: list[Any] = [torch.Generator().manual_seed(1), np.random.default_rng(2), random.Random(3)]
        self.trainer = attached(self.model, optimizer=self.optimizer)
        self.log = Log()
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)
        samples = TensorDataset(torch.randn(60, 5), torch.randint(0, 3, (60,)))
        self.batches = iter(DataLoader(samples, batch_size=6, shuffle=True, num_workers=workers))

    def step(self) -> None:
        inputs, targets = next(self.batches)
        own, numpys, pythons = self.generators
        noise = torch.randn(inputs.shape, generator=own) * numpys.random() + pythons.random() + random.random()
        inputs += noise + np.random.rand()
        self.log.samples.append(inputs.clone())
        with self.trainer.batch() as batch:
            guide = self.teacher(inputs).detach()
            loss = F.cross_entropy(self.model(inputs) + guide, targets)
            batch.backward(loss)
            batch.step()
        self.scheduler.step()
        self.average.update_parameters(self.model)

    def everything(self) -> list[Any]:
        states = [one.state_dict() for one in (self.model, self.teacher, self.optimizer, self.scheduler, self.average)]
        return [*states, self.trainer.state_dict(), torch.get_rng_state(), random.getstate()]


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.medium)])
def test_training_after_a_rehearsal_is_training_without_one(after: int, workers: int) -> None:
    rehearsed, plain = Loop(workers), None
    kind = type(rehearsed.batches)
    for place in range(6):
        if place == after:
            before = copy.deepcopy(rehearsed.everything())
            found = rehearsed.trainer.rehearse(rehearsed.step)
            assert_same(before, rehearsed.everything())
            first, second = rehearsed.log.samples[-2:]
            assert torch.equal(first, second), "both kinds of batches get the same samples"
            assert found.moved_wrongly == ()
            del rehearsed.log.samples[-2:]
        rehearsed.step()
    assert type(rehearsed.batches) is kind
    plain = Loop(workers)
    for _ in range(6):
        plain.step()
    assert_same(rehearsed.log.samples, plain.log.samples)
    assert_same(rehearsed.everything(), plain.everything())


def stateful(trainer: adagp.Trainer, scheduler: Any, inputs: Tensor) -> None:
    train(trainer, inputs)
    scheduler.step()


@pytest.mark.parametrize("how", ["closure", "partial", "nested", "list", "object"])
def test_what_is_put_back_is_found_wherever_it_is(how: str) -> None:
    trainer = attached(net())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, 0.5)
    many, (inputs,) = [scheduler], draws(1)

    class Owner:
        def __init__(self) -> None:
            self.named = {"rate": scheduler}

        def __call__(self) -> None:
            stateful(trainer, self.named["rate"], inputs)

    steps: dict[str, Callable[[], object]] = {
        "closure": lambda: stateful(trainer, scheduler, inputs),
        "partial": partial(stateful, trainer, scheduler=scheduler, inputs=inputs),
        "nested": partial(lambda inner: inner(), lambda: stateful(trainer, scheduler, inputs)),
        "list": lambda: stateful(trainer, many[0], inputs),
        "object": Owner(),
    }
    before = copy.deepcopy(scheduler.state_dict())
    trainer.rehearse(steps[how])
    assert scheduler.state_dict() == before
    assert trainer.optimizer.param_groups[0]["lr"] == 1e-2


def test_a_generator_cannot_be_put_back() -> None:
    def endless() -> Iterator[Tensor]:
        while True:
            yield torch.randn(6, 5)

    trainer, batches = attached(net()), endless()
    with pytest.raises(UsageError) as caught:
        trainer.rehearse(lambda: train(trainer, next(batches)))
    assert str(caught.value) == (
        "rehearse() was given a step that draws from 'batches', a generator, which cannot be rewound. Draw a "
        "batch first, and let the step train on that one."
    )
    assert trainer.done == 0


def test_a_step_that_fails_puts_everything_back_too() -> None:
    loop = Loop()
    before = copy.deepcopy(loop.everything())

    def fails() -> None:
        loop.step()
        if len(loop.log.samples) == 2:
            raise RuntimeError("in the GP batch")

    with pytest.raises(RuntimeError):
        loop.trainer.rehearse(fails)
    assert_same(before, loop.everything())


@pytest.mark.parametrize("method", ["adagp", "feedback", "topk"])
def test_what_moves_and_should_not_is_told(method: str) -> None:
    """Parameters that the user's own loop moves behind the trainer's back, of the model and of a loss."""
    model, scale = net(), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([*model.parameters(), scale], lr=1e-2)
    trainer = attached(model, method=method, schedule=alternating(adagp.METHODS[method].source), optimizer=optimizer)

    def step() -> None:
        train(trainer, torch.randn(6, 5))
        with torch.no_grad():
            bias = model[0].bias
            assert isinstance(bias, Tensor)
            bias.add_(1)
            scale.add_(1)

    found = trainer.rehearse(step)
    assert found.moved_wrongly == ("0.bias", "parameter 1 outside the model")
    assert "changed by the GP batch, although they should not be: 0.bias" in str(found)
    assert scale.tolist() == [1, 1, 1]


def test_a_partial_plan_may_move_what_it_trains_by_backprop() -> None:
    model = net()
    for rest, wrongly in (("", ()), ("; rest=hold", ("0.bias",))):
        trainer = attached(model, schedule=f"sites=3; source=topk{rest}")

        def step(trainer: adagp.Trainer = trainer) -> None:
            train(trainer, torch.randn(6, 5))
            with torch.no_grad():
                model[0].bias.add_(1)  # type: ignore[operator]

        found = trainer.rehearse(step)
        assert found.moved_wrongly == wrongly
        assert {"0.weight", "3.weight"} <= set(found.moved)
        assert ("3.bias" in found.moved) == (not rest)
        trainer.detach()


COUNTED = 0


def test_lists_counters_and_parameter_groups_are_put_back() -> None:
    model = net()
    optimizer = adam(model)
    trainer = attached(model, optimizer=optimizer)
    group = optimizer.param_groups[0]
    losses: list[float] = []
    best, names = {"loss": 9.0}, {"a"}
    calls, array, in_place, total = 0, np.zeros(2), torch.zeros(2), torch.zeros(())

    class Progress:
        def __init__(self) -> None:
            self.done = 3

    progress = Progress()

    def step() -> None:
        nonlocal calls, total, array
        global COUNTED
        calls += 1
        COUNTED += 1
        progress.done += 1
        optimizer.param_groups[0]["lr"] *= 0.5
        losses.append(1.0)
        best["loss"] = 0.0
        names.add("b")
        array += 1
        in_place.add_(1)
        total = total + 1
        train(trainer, draws(1)[0])

    rate = group["lr"]
    trainer.rehearse(step)
    assert (calls, COUNTED, progress.done, losses, best, names) == (0, 0, 3, [], {"loss": 9.0}, {"a"})
    assert not any(values.any() for values in (array, in_place, total))
    assert optimizer.param_groups[0] is group
    assert group["lr"] == rate
