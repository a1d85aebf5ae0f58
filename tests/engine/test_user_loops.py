"""Loops of users' own: clipping, micro-batches, autocast, scalers, recomputation, several inputs."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.engine.small_convnet import (
    assert_equal_states,
    gp_only,
    sgd,
    small_batches,
    small_model,
    trainer_for,
)
from tests.engine.small_nets import LABELS, Net, attached, one_batch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from adagp import EngineOptions
from adagp.core.plan import Phase, Step
from adagp.layers.sites import Site
from adagp.papers.adagp.source import PredictedSource
from adagp.schedules import BackpropOnly, Ladder, Rung, WarmUp


def test_users_own_loop_with_clipping_scheduler_and_micro_batches() -> None:
    """The own-loop form, two micro-batches per batch, equals a plain loop with the joined batch; no dropout or batch norm."""
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    plain = copy.deepcopy(ours)
    trainer = trainer_for(ours, BackpropOnly())
    optimizer = sgd(plain)
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 2, 0.5) for one in (trainer.optimizer, optimizer)]
    for inputs, targets in small_batches(6):
        with trainer.batch() as batch:
            for part in (slice(0, 4), slice(4, 8)):
                loss = F.cross_entropy(ours(inputs[part]), targets[part]) / 2
                batch.backward(loss, more=part.start == 0)
            nn.utils.clip_grad_norm_(ours.parameters(), 0.5)
            batch.step()
        optimizer.zero_grad()
        F.cross_entropy(plain(inputs), targets).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_micro_batches_of_a_gp_batch_equal_the_joined_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    twin = copy.deepcopy(model)
    trainers = [trainer_for(one, gp_only(warmup=1)) for one in (model, twin)]
    batches = small_batches(5)
    for inputs, targets in batches[:4]:
        for trainer in trainers:
            trainer.step(inputs, targets, F.cross_entropy)
    inputs, targets = batches[4]
    with trainers[0].batch() as batch:
        assert batch.phase is Phase.GP
        for part in (slice(0, 2), slice(2, 8)):  # unequal parts are weighted
            model(inputs[part])
            batch.backward(more=part.start == 0)
        batch.step()
    trainers[1].step(inputs, targets, F.cross_entropy)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")  # setting any flag of mkldnn says so
@torch.backends.mkldnn.flags(
    enabled=False
)  # its bfloat16 kernels crash on virtual machines that announce AMX without it
def test_autocast_works_in_both_phases() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 5))
    trainer = trainer_for(model, WarmUp(Ladder((Rung(1, 1),)), epochs=1))
    for inputs, targets in small_batches(8):
        with trainer.batch() as batch:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = model(inputs)
                loss = F.cross_entropy(output, targets)
            assert output.dtype is torch.bfloat16
            batch.backward(loss)
            batch.step()
    assert all(parameter.dtype is torch.float32 and parameter.isfinite().all() for parameter in model.parameters())


def test_gradient_scaler_gives_the_same_weights_as_no_scaler() -> None:
    one, other = small_model(dropout=0.0), small_model(dropout=0.0)
    schedule = WarmUp(Ladder((Rung(1, 1),)), epochs=1)
    scaled = trainer_for(one, schedule, engine=EngineOptions(scaler=torch.amp.GradScaler("cpu", init_scale=1024.0)))
    plain = trainer_for(other, schedule)
    for inputs, targets in small_batches(8):
        scaled.step(inputs, targets, F.cross_entropy)
        plain.step(inputs, targets, F.cross_entropy)
    assert_equal_states(one.state_dict(), other.state_dict())  # powers of two scale exactly


def test_recomputed_forwards_are_not_watched_twice() -> None:
    class Recomputing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6)
            self.last = nn.Linear(6, 5)

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = checkpoint(self.first, inputs, use_reentrant=False)
            return self.last(hidden)  # type: ignore[no-any-return]

    model = Recomputing()
    seen: list[str] = []

    class Counting(PredictedSource):
        def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> None:
            seen.append(site.name)
            super().watch(site, inputs, output)

    trainer = trainer_for(model, WarmUp(Ladder(), epochs=1), sources={"predicted": Counting()})
    trainer.step(torch.randn(4, 6), torch.tensor([0, 1, 2, 3]), F.cross_entropy)
    assert seen == ["first", "last"]


def test_a_layer_called_twice_learns_from_the_mean_of_its_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 5)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(self.layer(inputs))  # type: ignore[no-any-return]

    model = Twice()
    trainer = trainer_for(model, gp_only())
    source = trainer.sources["predicted"]
    assert isinstance(source, PredictedSource)
    inputs = torch.randn(3, 5)
    with trainer.batch() as batch:
        once = model.layer(inputs)
        twice = model.layer(once)
        expected = (once.mean(0) + twice.mean(0)) / 2
        (summary,) = source.shared(trainer.survey.sites)
        torch.testing.assert_close(summary[:, 0, 0, 0], expected)
        batch.backward()
        batch.step()


def test_several_inputs_are_passed_as_arguments() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 5)

        def forward(self, one: Tensor, other: Tensor) -> Tensor:
            return self.layer(one + other)  # type: ignore[no-any-return]

    trainer = trainer_for(Sum(), WarmUp(Ladder((Rung(1, 1),)), epochs=1))
    for _ in range(8):
        trainer.step((torch.randn(4, 3), torch.randn(4, 3)), torch.tensor([0, 1, 2, 3]), F.cross_entropy)
    assert trainer.at == Step(2, 0)


@pytest.mark.parametrize("method", ["adagp", "feedback", "dni", "topk"])
def test_a_gradient_penalty_teaches_no_source(method: str) -> None:
    """Gradients that the user takes inside a batch are none of training, even where they are differentiated again."""

    def penalty(output: Tensor, inputs: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(output.sum(), inputs, create_graph=True)
        return 0.0 * slope.square().mean()  # without an effect on the loss: all must be as if it were not there

    models = [Net(), Net()]
    trainers = [attached(model, method) for model in models]
    for seed in range(6):
        for model, trainer, taken in zip(models, trainers, (True, False), strict=True):
            inputs = torch.randn(6, 5, generator=torch.Generator().manual_seed(seed)).requires_grad_()
            with trainer.batch() as batch:
                output = model(inputs)
                loss = F.cross_entropy(output, LABELS)
                batch.backward(loss + penalty(output, inputs) if taken else loss)
                batch.step()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["adagp", "feedback", "dni", "topk"])
def test_layers_beside_the_model_are_held_and_sparse_gradients_work(method: str) -> None:
    torch.manual_seed(0)
    model, head = nn.Sequential(nn.EmbeddingBag(9, 5, mode="sum", sparse=True), nn.Linear(5, 4)), nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    trainer = attached(model, method, optimizer=optimizer)
    for number in range(5):
        before = head.weight.detach().clone()
        one_batch(trainer, lambda: F.cross_entropy(head(model(torch.randint(0, 9, (6, 4)))), LABELS))
        assert torch.equal(head.weight, before) == (number > 2), "frozen in GP batches, as validate() says"
