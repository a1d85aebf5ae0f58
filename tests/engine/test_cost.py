"""What a batch under adagp costs beyond a plain one: counted in operators and in memory, never in seconds."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from adagp import EngineOptions, Epochs, attach
from adagp.schedules import Ladder, Rung, Schedule, WarmUp

LEARNING, PREDICTING = WarmUp(Ladder(), epochs=10**6), Ladder((Rung(1, 0),))


class Counter(TorchDispatchMode):
    """Counts operators, and the bytes of the results that are not views."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.operators = 0
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operators += 1
        if isinstance(result, Tensor) and not func.is_view and "out" not in (kwargs or {}):
            in_place = func._schema.name.endswith("_")
            self.bytes += 0 if in_place else result.numel() * result.element_size()
        return result


def build(sites: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    channels = 8
    layers: list[nn.Module] = []
    for place in range(sites - 1):
        layers += [nn.Conv2d(2 if place == 0 else channels, channels, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * 36, 3))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def data(samples: int) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, 2, 6, 6), torch.zeros(samples, dtype=torch.long)


def counted(run: Callable[[], object]) -> Counter:
    for _ in range(2):  # what is made once is made
        run()
    counter = Counter()
    with counter:
        run()
    return counter


def plain(sites: int, *, backward: bool, samples: int = 4) -> Counter:
    model, optimizer = build(sites)
    inputs, targets = data(samples)
    weights = {id(one.weight) for one in model if isinstance(one, nn.Conv2d | nn.Linear)}  # type: ignore[attr-defined]

    def run() -> None:
        if backward:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
        else:
            with torch.no_grad():
                F.cross_entropy(model(inputs), targets)
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter) if id(parameter) in weights else None
        optimizer.step()

    return counted(run)


def under(schedule: Schedule, sites: int, samples: int = 4) -> Counter:
    model, optimizer = build(sites)
    trainer = attach(
        model, optimizer, length=Epochs(1, 10**6), schedule=schedule, engine=EngineOptions(metrics_every=0)
    )
    inputs, targets = data(samples)
    return counted(lambda: trainer.step(inputs, targets, F.cross_entropy))


@pytest.mark.parametrize(
    ("schedule", "backward", "fixed", "per_site"),
    [(PREDICTING, False, 50, 14), (LEARNING, True, 180, 19)],
    ids=["gp", "bp"],
)
def test_operators_beyond_the_plain_batch(schedule: Schedule, backward: bool, fixed: int, per_site: int) -> None:
    """A number for the batch and one for each site, views among them."""
    more = {sites: under(schedule, sites).operators - plain(sites, backward=backward).operators for sites in (3, 9)}
    assert (more[9] - more[3]) / 6 <= per_site
    assert more[3] <= fixed + 3 * per_site


@pytest.mark.parametrize(
    ("schedule", "kept", "weights"),
    [(PREDICTING, False, 0.5), (PREDICTING, True, 1.5), (LEARNING, False, 1.5)],
    ids=["gp", "gp in kept memory", "bp"],
)
def test_no_more_memory_of_the_size_of_the_model_is_made_than_needed(
    schedule: Schedule, kept: bool, weights: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predictions are written where the last ones were, but for a process that keeps freed memory: there, where the last
    layers were. Learning makes nothing but the true gradient, as any BP batch does, and reads that where it lies."""
    monkeypatch.setattr("adagp.core.memory._is_kept", kept)
    model = nn.Linear(256, 4096, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = attach(
        model, optimizer, length=Epochs(1, 10**6), schedule=schedule, engine=EngineOptions(metrics_every=0)
    )
    inputs, targets = torch.randn(4, 256), torch.zeros(4, dtype=torch.long)
    made = counted(lambda: trainer.step(inputs, targets, F.cross_entropy)).bytes
    assert made < weights * 4 * model.weight.numel()


def test_a_bp_batch_makes_no_memory_that_grows_with_the_batch() -> None:
    more = {
        samples: under(LEARNING, 4, samples=samples).bytes - plain(4, backward=True, samples=samples).bytes
        for samples in (4, 64)
    }
    assert more[64] == more[4]
