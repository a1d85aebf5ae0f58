"""Small networks of linear layers, attached to a method, and what a batch does to them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import adagp
from adagp.schedules import Ladder, Rung, WarmUp

METHODS = [name for name in adagp.METHODS if name not in ("bp", "skip", "control")]
"""Those whose GP batches run, without a backward pass or with one for some sites: `control` trains a part by backprop."""
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
    named = None if "sources" in options else adagp.NamedMethod(method)
    return adagp.attach(model, optimizer, named, length=adagp.Epochs(1, 1000), schedule=schedule, **options)


def moved_by(model: nn.Module, train: Callable[[], object]) -> set[str]:
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    train()
    return {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}


def one_batch(trainer: adagp.Trainer, loss_of: Callable[[], Tensor]) -> None:
    with trainer.batch(LABELS) as batch:
        batch.backward(loss_of())
        batch.step()
