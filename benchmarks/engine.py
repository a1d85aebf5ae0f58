"""The engine's own cost: batches under adagp against the least that PyTorch needs for them."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import adagp
from adagp.models import build_model
from adagp.schedules import BackpropOnly, Ladder, Rung
from benchmarks.measure import Ratio, seconds

Run = Callable[[], object]


def measure(model_name: str, batch_size: int, image: tuple[int, int, int] = (3, 32, 32)) -> list[Ratio]:
    """Return the ratios for one model: GP against a no-grad forward and a step, BP and its metrics against plain BP."""
    inputs = torch.randn(batch_size, *image)
    targets = torch.randint(0, 10, (batch_size,))
    contenders: dict[str, Run] = {
        "plain bp": _plain(model_name, image, inputs, targets, backward=True),
        "forward and step": _plain(model_name, image, inputs, targets, backward=False),
        "engine bp": _engine(model_name, image, inputs, targets, BackpropOnly(), 0),
        "bp with predictor": _engine(model_name, image, inputs, targets, Ladder(warmup=10**9), 0),
        "bp with predictor and metrics": _engine(model_name, image, inputs, targets, Ladder(warmup=10**9), 1),
        "gp": _engine(model_name, image, inputs, targets, Ladder(0, (Rung(1, 0),)), 0),
    }
    times = seconds(contenders)
    place = f"{model_name} b{batch_size}: "
    sampled = times["bp with predictor and metrics"] - times["bp with predictor"]
    return [
        Ratio(place + "bp under adagp / plain bp", times["engine bp"] / times["plain bp"]),
        Ratio(place + "bp with predictor / plain bp", times["bp with predictor"] / times["plain bp"]),
        Ratio(place + "bp with metrics every 10 / without", 1 + sampled / 10 / times["bp with predictor"]),
        Ratio(place + "gp / forward and step", times["gp"] / times["forward and step"]),
        Ratio(place + "gp / plain bp", times["gp"] / times["plain bp"]),
    ]


def _build(name: str, image: tuple[int, int, int]) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = build_model(name, classes=10, image=image)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def _plain(name: str, image: tuple[int, int, int], inputs: Tensor, targets: Tensor, *, backward: bool) -> Run:
    model, optimizer = _build(name, image)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)  # the least a GP step moves: all gradients, ready made

    def run() -> None:
        if backward:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
        else:
            with torch.no_grad():
                F.cross_entropy(model(inputs), targets)
        optimizer.step()

    return run


def _engine(
    name: str,
    image: tuple[int, int, int],
    inputs: Tensor,
    targets: Tensor,
    schedule: adagp.Schedule,
    metrics_every: int,
) -> Run:
    model, optimizer = _build(name, image)
    trainer = adagp.attach(
        model, optimizer, epochs=1, batches_per_epoch=10**9, schedule=schedule, metrics_every=metrics_every
    )
    return lambda: trainer.step(inputs, targets, F.cross_entropy)
