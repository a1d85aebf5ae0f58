"""The loop with accelerate against a loop of one's own."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import adagp
from adagp.errors import UsageError
from adagp.integrations.accelerate import AcceleratedBatches, Accelerator

pytestmark = pytest.mark.slow
LENGTH: dict[str, Any] = {"epochs": 1, "batches_per_epoch": 10, "schedule": "1:1", "warmup_batches": 3}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


@pytest.mark.parametrize("method", ["adagp", "feedback"])
def test_it_is_the_loop_of_ones_own(method: str) -> None:
    ours, other = net(), net()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer = accelerator.prepare(ours, adam(ours))
    batches = AcceleratedBatches(accelerator, model, optimizer, method=method, **LENGTH)
    trainer = adagp.attach(other, adam(other), method=method, **LENGTH)
    labels = torch.arange(6) % 3
    for _ in range(10):
        parts = [torch.randn(6, 5) for _ in range(2)]
        for inputs in parts:
            with batches.accumulate():
                batches.backward(F.cross_entropy(model(inputs), labels))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        with trainer.batch() as batch:
            for place, inputs in enumerate(parts):
                batch.backward(F.cross_entropy(other(inputs), labels) / 2, more=place == 0)
            nn.utils.clip_grad_norm_(other.parameters(), 0.5)
            batch.step()
    assert all(map(torch.equal, ours.parameters(), other.parameters()))
    assert batches.trainer.done == 10
    with pytest.raises(UsageError, match=r"^backward\(\) was called outside accumulate\(\)\.$"):
        batches.backward(torch.zeros(()))
