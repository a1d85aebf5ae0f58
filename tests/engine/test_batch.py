"""What a batch computes under its plan. Saved work is shown by counting operations, not by seconds."""

import copy
import gc
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import adagp
from adagp.core.plan import Phase
from adagp.engine.metrics import cosine
from adagp.engine.trainer import Trainer
from adagp.errors import OptionError, UsageError
from adagp.papers.approximation.source import topk_gradient
from adagp.schedules import Adaptive, Ladder, Rung, WarmUp

INPUTS = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
TARGETS = torch.tensor([0, 1, 2, 0, 1, 2])


class Operations(TorchDispatchMode):
    """Counts every operation inside its context; of backward convolutions, which gradients were asked for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.count: Counter[str] = Counter()
        self.input_gradients = 0
        self.weight_gradients = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[func.overloadpacket.__name__] += 1
        if func is torch.ops.aten.convolution_backward.default:
            self.input_gradients += args[-1][0]
            self.weight_gradients += args[-1][1]
        return func(*args, **(kwargs or {}))


def model_of_convolutions() -> nn.Sequential:
    """Return four convolutions, each with a batch norm and a ReLU in place, and a linear layer."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs in (1, 3, 3, 3):
        layers += [nn.Conv2d(inputs, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(3 * 64, 3))


def attached(model: nn.Module, schedule: Any, batches: int = 8, **options: Any) -> Trainer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)
    return adagp.attach(model, optimizer, length=adagp.Epochs(9, batches), schedule=schedule, **options)


def counted(trainer: Trainer) -> Operations:
    operations = Operations()
    with operations:
        trainer.step(INPUTS, TARGETS, F.cross_entropy)
    return operations


def weight_of(model: nn.Sequential, place: int) -> Tensor:
    weight = model[place].weight
    assert isinstance(weight, Tensor)
    return weight


def gradient_of(model: nn.Sequential, place: int) -> Tensor:
    gradient = weight_of(model, place).grad
    assert gradient is not None
    return gradient


def test_backprop_computes_all_weight_gradients() -> None:
    operations = counted(attached(model_of_convolutions(), "bp"))
    assert (operations.weight_gradients, operations.input_gradients) == (4, 3)


@pytest.mark.parametrize("source", ["zero", "random", "topk"])
def test_approximated_sites_have_no_weight_gradient_convolution(source: str) -> None:
    """The gradient to the layers below stays exact; two of four weight gradients are not computed."""
    model, plain = model_of_convolutions(), model_of_convolutions()
    trainer = attached(model, f"sites=every 2nd conv; source={source}")
    operations = counted(trainer)
    assert (operations.weight_gradients, operations.input_gradients) == (2, 3)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)
    F.cross_entropy(plain(INPUTS), TARGETS).backward()
    optimizer.step()
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other) == (name not in ("3.weight", "9.weight")), name


def test_topk_in_the_engine_is_topk_by_hand() -> None:
    model = model_of_convolutions()
    plain = copy.deepcopy(model)
    trainer = attached(model, "sites=2nd conv; source=topk")
    with trainer.batch() as batch:
        batch.backward(F.cross_entropy(model(INPUTS), TARGETS))
        found = gradient_of(model, 3)
        batch.step()
    hidden = plain[:3](INPUTS).detach()
    output = plain[3](hidden).detach().requires_grad_()
    F.cross_entropy(plain[4:](output.clone()), TARGETS).backward()
    assert output.grad is not None
    torch.testing.assert_close(found, topk_gradient(trainer.survey.sites[1], hidden, output.grad, 1))


def test_a_skipped_batch_runs_nothing_and_moves_nothing() -> None:
    model = model_of_convolutions()
    trainer = attached(model, Ladder((Rung(1, 1),), "skip"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with Operations() as operations:
        result = trainer.step(INPUTS, TARGETS, F.cross_entropy)
    assert result.skipped
    assert result.output is None
    assert result.loss.isnan()
    assert result.phase is Phase.GP
    marks = {"_record_function_enter_new", "_record_function_exit"}  # zero_grad leaves them for profilers
    assert set(operations.count) <= {"full", *marks}, "nothing is computed but the NaN itself"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not trainer.step(INPUTS, TARGETS, F.cross_entropy).skipped


def test_skipping_in_a_loop_of_ones_own() -> None:
    trainer = attached(model_of_convolutions(), Ladder((Rung(1, 0),), "skip"))
    with trainer.batch() as batch:
        assert batch.skipped
    with trainer.batch() as batch:  # a loop that does not ask gets the same
        batch.backward(F.cross_entropy(trainer.model(INPUTS), TARGETS))
        batch.step()
    assert trainer.at.batch == 2
    assert not trainer.optimizer.state


def test_momentum_moves_on_where_skip_stands_still() -> None:
    model = model_of_convolutions()
    trainer = attached(model, WarmUp(Ladder((Rung(1, 0),), "momentum"), epochs=1), batches=2)
    for _ in range(2):
        trainer.step(INPUTS, TARGETS, F.cross_entropy)
    weight = weight_of(model, 3)
    before, speed = weight.detach().clone(), trainer.optimizer.state[weight]["momentum_buffer"].clone()
    scale = weight_of(model, 1).detach().clone()
    trainer.step(INPUTS, TARGETS, F.cross_entropy)
    torch.testing.assert_close(weight.detach(), before - 0.05 * (0.9 * speed + 1e-2 * before))
    assert torch.equal(weight_of(model, 1), scale), "what is not a site is held"


def test_replay_gives_the_last_true_gradient_once_more() -> None:
    model = model_of_convolutions()
    trainer = attached(model, WarmUp(Ladder((Rung(1, 0),), "replay"), epochs=1), batches=2)
    for _ in range(2):
        with trainer.batch() as batch:
            batch.backward(F.cross_entropy(model(INPUTS), TARGETS))
            truth = gradient_of(model, 3).clone()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            batch.step()
    with trainer.batch() as batch:
        model(INPUTS)
        batch.backward()
        assert torch.equal(gradient_of(model, 3), truth)
        batch.step()


class Labels(adagp.Source):
    """Remembers the targets."""

    learns = needs_targets = True

    def begin(self, moment: Any) -> None:
        self.targets = moment.targets

    def produce(self, sites: Any) -> list[Tensor | None]:
        return [None for _ in sites]


def test_targets_reach_the_sources_that_need_them() -> None:
    source = Labels()
    trainer = attached(
        model_of_convolutions(), WarmUp(Ladder((Rung(1, 1),), "labels"), epochs=1), sources={"labels": source}
    )
    trainer.step(INPUTS, TARGETS, F.cross_entropy)
    assert source.targets is TARGETS
    with pytest.raises(UsageError) as caught, trainer.batch():
        pass
    assert str(caught.value) == "source 'labels' needs the targets: call trainer.batch(targets=...)."


def test_sources_that_cannot_do_what_the_schedule_asks() -> None:
    with pytest.raises(OptionError) as caught:
        attached(model_of_convolutions(), "sites=2nd conv; source=skip")
    assert str(caught.value) == ("source 'skip' skips whole batches: it cannot be used for only some sites of a batch.")
    with pytest.raises(OptionError) as caught:
        attached(model_of_convolutions(), "sites=cut at 3; source=topk", sample=INPUTS)
    assert str(caught.value) == (
        "source 'topk' needs the gradient at the output of its sites: it cannot be used for sites below the "
        "point where the backward pass stops."
    )


@pytest.mark.parametrize("source", ["zero", "replay"])
def test_a_backward_pass_that_stops(source: str) -> None:
    """Below the cut there is no graph; of the sites above, the lowest has a weight gradient and no input gradient."""
    model = model_of_convolutions()
    trainer = attached(model, f"sites=cut at 6; source={source}", sample=INPUTS)
    needing: list[bool] = []
    for place in (2, 5, 6):
        model[place].register_forward_hook(lambda module, inputs, output: needing.append(output.requires_grad))
    before = {name: value.clone() for name, value in model.named_parameters()}
    operations = counted(trainer)
    assert needing == [False, False, True]
    assert (operations.weight_gradients, operations.input_gradients) == (2, 1)
    assert operations.count["native_batch_norm_backward"] == 2
    changed = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert changed >= {"6.weight", "7.weight", "7.bias", "9.weight", "13.weight", "13.bias"}
    assert not changed & {"1.weight", "1.bias", "4.weight", "4.bias"}


def test_a_cut_by_its_saving_saves_as_much() -> None:
    """The cost model's promise against the convolutions that were counted."""
    model = model_of_convolutions()
    trainer = attached(model, "sites=cut 40%; source=zero", sample=INPUTS)
    full, cut = counted(attached(model_of_convolutions(), "bp")), counted(trainer)
    shares = {"forward": 4, "backward": full.weight_gradients + full.input_gradients}
    saved = shares["backward"] - cut.weight_gradients - cut.input_gradients
    assert saved / (shares["forward"] + shares["backward"]) >= 0.4


def test_feedback_takes_weight_gradients_alone_and_no_chain() -> None:
    """Of a GP batch's convolutions backwards, none is for an input; nothing runs back through the normalisation."""
    trainer = attached(model_of_convolutions(), WarmUp(Ladder((Rung(1, 0),), "feedback"), epochs=1), batches=2)
    for _ in range(2):
        trainer.step(INPUTS, TARGETS, F.cross_entropy)
    operations = counted(trainer)
    assert (operations.weight_gradients, operations.input_gradients) == (4, 0)
    assert operations.count["native_batch_norm_backward"] == 0


def test_feedback_below_a_cut_and_backprop_above_it() -> None:
    model = model_of_convolutions()
    trainer = attached(model, "sites=cut at 6; batches=every 2nd; source=feedback", sample=INPUTS)
    trainer.step(INPUTS, TARGETS, F.cross_entropy)
    plain = copy.deepcopy(model)
    F.cross_entropy(plain(INPUTS), TARGETS).backward()
    with trainer.batch() as batch:
        batch.backward(F.cross_entropy(model(INPUTS), TARGETS))
        for place in (0, 3):  # it has seen this very batch, so it is not far from the truth
            assert cosine(gradient_of(model, place), gradient_of(plain, place)) > 0.3
        assert torch.equal(gradient_of(model, 6), gradient_of(plain, 6))
        assert weight_of(model, 4).grad is None
        batch.step()


HOOKING = [
    "sites=every 2nd conv; source=topk",
    WarmUp(Ladder((Rung(1, 1),), "feedback"), epochs=1),
    WarmUp(Ladder((Rung(1, 1),), "dni"), epochs=1),
]
"""Schedules of sources that hook the gradient at a layer's output."""


@pytest.mark.medium
@pytest.mark.parametrize("schedule", HOOKING)
def test_no_activation_outlives_its_batch(schedule: Any) -> None:
    model = model_of_convolutions()
    trainer = attached(model, schedule, batches=2)
    alive: list[weakref.ref[Tensor]] = []
    for layer in model:
        layer.register_forward_hook(lambda module, inputs, output: alive.append(weakref.ref(output)))
    for _ in range(3):
        trainer.step(INPUTS, TARGETS, F.cross_entropy)
    gc.collect()
    assert len(alive) == 3 * len(model)
    assert not [one for one in alive if one() is not None]


@pytest.mark.parametrize("schedule", HOOKING)
def test_gradients_of_a_scaled_loss_are_unscaled(schedule: Any) -> None:
    one, other = model_of_convolutions(), model_of_convolutions()
    scaled = attached(
        one, schedule, batches=2, engine=adagp.EngineOptions(scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    )
    plain = attached(other, schedule, batches=2)
    for _ in range(4):
        for trainer in (scaled, plain):
            trainer.step(INPUTS, TARGETS, F.cross_entropy)
    assert all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))


def test_an_adaptive_schedule_sees_cosine_norm_ratio_and_loss() -> None:
    """Replay of one and the same batch, with weights that do not move, agrees with the truth to the last bit."""
    model = model_of_convolutions()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer = adagp.attach(
        model,
        optimizer,
        length=adagp.Epochs(9, 3),
        schedule=WarmUp(Adaptive(source="replay"), epochs=1),
        engine=adagp.EngineOptions(metrics_every=0),
    )
    phases = []
    for _ in range(12):
        result = trainer.step(INPUTS, TARGETS, F.cross_entropy)
        phases.append(result.phase[0])
    assert "".join(phases) == "www" + "gbggbgggb"
    memory = trainer.schedule.schedule.memory  # type: ignore[attr-defined]  # it is adaptive, after a warm-up
    assert memory.cosine == pytest.approx(1 - 0.8**5, rel=1e-5)  # a running mean; the first was 0
    assert memory.recent_loss == pytest.approx(result.loss.item(), rel=1e-5)


def test_an_adaptive_schedule_needs_a_source_that_predicts() -> None:
    with pytest.raises(OptionError) as caught:
        attached(model_of_convolutions(), WarmUp(Adaptive(source="zero"), epochs=1))
    assert str(caught.value) == ("an adaptive schedule needs a source that learns to predict; source 'zero' does not.")
