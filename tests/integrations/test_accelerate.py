"""The loop with accelerate against a loop of one's own."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import adagp
from adagp.errors import UsageError
from adagp.integrations.accelerate import AcceleratedBatches, Accelerator

from accelerate.state import AcceleratorState  # isort: skip

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def fresh_state() -> None:
    AcceleratorState._reset_state(True)


LENGTH: dict[str, Any] = {"length": adagp.Epochs(1, 10), "schedule": "1:1", "warmup": "3 batches"}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


@pytest.mark.parametrize("method", ["adagp", "feedback", "dni_labels", "predicted_labels"])
def test_it_is_the_loop_of_ones_own(method: str) -> None:
    ours, other = net(), net()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer = accelerator.prepare(ours, adam(ours))
    batches = AcceleratedBatches(accelerator, model, optimizer, method=adagp.NamedMethod(method), **LENGTH)
    trainer = adagp.attach(other, adam(other), method=adagp.NamedMethod(method), **LENGTH)
    labels = torch.arange(6) % 3
    for _ in range(10):
        parts = [torch.randn(6, 5) for _ in range(2)]
        for inputs in parts:
            with batches.accumulate(labels):
                batches.backward(F.cross_entropy(model(inputs), labels))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        with trainer.batch(labels.repeat(2)) as batch:
            for place, inputs in enumerate(parts):
                batch.backward(F.cross_entropy(other(inputs), labels) / 2, more=place == 0)
            nn.utils.clip_grad_norm_(other.parameters(), 0.5)
            batch.step()
    assert all(map(torch.equal, ours.parameters(), other.parameters()))
    assert batches.trainer.done == 10
    with pytest.raises(UsageError, match=r"^backward\(\) was called outside accumulate\(\)\.$"):
        batches.backward(torch.zeros(()))


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("method", ["adagp", "feedback"])
def test_a_resumed_run_is_the_run_that_was_not_stopped(method: str, precision: str, tmp_path: Path) -> None:
    """Checkpoints are the accelerator's own, the trainer registered with the rest; in bf16 too."""
    samples = [torch.randn(6, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(10)]
    labels = torch.arange(6) % 3

    def run(first: int, last: int, load: bool = False, save: bool = False) -> nn.Module:
        model = net()
        accelerator = Accelerator(cpu=True, mixed_precision=precision)
        model, optimizer = accelerator.prepare(model, adam(model))
        batches = AcceleratedBatches(accelerator, model, optimizer, method=adagp.NamedMethod(method), **LENGTH)
        accelerator.register_for_checkpointing(batches.trainer)
        if load:
            accelerator.load_state(str(tmp_path / "half"))
        for inputs in samples[first:last]:
            with batches.accumulate():
                output = model(inputs)
                batches.backward(F.cross_entropy(output.float(), labels))
                optimizer.step()
                optimizer.zero_grad()
        assert batches.trainer.done == last
        if save:
            accelerator.save_state(str(tmp_path / "half"))
        AcceleratorState._reset_state(True)
        return model  # type: ignore[no-any-return]

    whole = run(0, 10)
    run(0, 6, save=True)
    resumed = run(6, 10, load=True)
    assert all(map(torch.equal, whole.parameters(), resumed.parameters()))
    assert all(one.isfinite().all() for one in whole.parameters())


def test_methods_that_look_at_labels_ask_for_them() -> None:
    model = net()
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, adam(model))
    batches = AcceleratedBatches(accelerator, model, optimizer, method="dni_labels", **LENGTH)
    with (
        pytest.raises(UsageError, match=r"^the method needs the targets: call accumulate\(targets\)\.$"),
        batches.accumulate(),
    ):
        pass


def test_an_optimizer_that_accelerate_has_prepared() -> None:
    """Its `zero_grad` does nothing while it accumulates: the gradients of the last batch must go all the same."""
    ours, other = net(), net()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer = accelerator.prepare(ours, adam(ours))
    trainer, plain = adagp.attach(model, optimizer, "bp", steps=5), adam(other)
    labels = torch.arange(6) % 3
    for _ in range(5):
        parts = [torch.randn(6, 5) for _ in range(2)]
        for place, inputs in enumerate(parts):
            with accelerator.accumulate(model):
                if place == 0:
                    batch = trainer.begin()
                batch.backward(F.cross_entropy(model(inputs), labels) / 2, more=place == 0)
                optimizer.step()
        batch.finish()
        plain.zero_grad()
        for inputs in parts:
            (F.cross_entropy(other(inputs), labels) / 2).backward()
        plain.step()
    assert all(map(torch.equal, ours.parameters(), other.parameters()))
