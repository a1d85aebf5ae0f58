"""Every method under every circumstance: the GP gradient is that of the plain loop on the whole batch, or there is a sentence.

Each cell trains a tiny model for three BP batches and one GP batch, plainly and under one circumstance (compiled, in mixed
precision, in micro-batches, ...). It is right if all weights get the same gradients in the GP batch, within the arithmetic's
rounding. With ADAGP_WRITE_DOCS=1 the test of the page writes docs/compatibility.md; without, each cell is compared with it.
"""

import os
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import adagp
from adagp.errors import AdagpError, AdagpWarning
from adagp.layers.sites import survey
from adagp.papers.approximation.source import topk_gradient
from adagp.schedules import Ladder, Rung, WarmUp

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's compiler has much to say

DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"
METHODS = [name for name in adagp.METHODS if name not in ("bp", "skip")]
BATCHES = 3
LABELS = torch.arange(6) % 3


class Staged(nn.Module):
    """A body, which may be checkpointed, and a head; returns the logits, or a tuple that they are in."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head
        self.checkpointed = self.returns_tuple = False

    def forward(self, inputs: Tensor) -> Any:
        hidden = checkpoint(self.body, inputs, use_reentrant=False) if self.checkpointed else self.body(inputs)
        logits = self.head(hidden)
        return (logits, hidden.detach()) if self.returns_tuple else logits


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.batch_first = True
        self.norm, self.project, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = self.project(self.norm(tokens)).chunk(3, dim=-1)
        return tokens + self.out(F.scaled_dot_product_attention(query, key, value))  # type: ignore[no-any-return]


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 4, stride=4)

    def forward(self, images: Tensor) -> Tensor:
        return self.embed(images).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


class Pooled(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.mean(1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(5, 6)
        self.cells = nn.LSTM(6, 8, batch_first=True)

    def forward(self, sequence: Tensor) -> Tensor:
        return self.cells(self.enter(sequence))[0][:, -1]  # type: ignore[no-any-return]


def cnn() -> Staged:
    body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Tanh(), nn.Conv2d(6, 8, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1))
    return Staged(nn.Sequential(body, nn.Flatten()), nn.Linear(8, 3))


def vit() -> Staged:
    return Staged(nn.Sequential(Patches(), Attention(), Pooled()), nn.Linear(8, 3))


def lstm() -> Staged:
    return Staged(Recurrent(), nn.Linear(8, 3))


@dataclass(frozen=True)
class Circumstance:
    """How a run differs from the plain one: what is done to the model, and how batches are computed."""

    prepare: Callable[[Staged], object] = lambda model: None
    channels_last: bool = False
    autocast: bool = False
    parts: int = 1
    compile: str = ""
    tolerance: float = 1e-3
    frozen: bool = False
    left_out: bool = False


def first_weight(model: Staged) -> nn.Parameter:
    return next(iter(model.body.parameters()))


MODELS: dict[str, tuple[Callable[[], Staged], tuple[int, ...]]] = {
    "CNN": (cnn, (6, 3, 8, 8)),
    "ViT": (vit, (6, 3, 8, 8)),
    "LSTM": (lstm, (6, 4, 5)),
}
CIRCUMSTANCES = {
    "autocast": Circumstance(autocast=True, tolerance=0.1),
    "micro-batches": Circumstance(parts=2),
    "checkpointing": Circumstance(lambda model: setattr(model, "checkpointed", True)),
    "channels-last": Circumstance(channels_last=True),
    "frozen layers": Circumstance(lambda model: first_weight(model).requires_grad_(False), frozen=True),
    "tuple outputs": Circumstance(lambda model: setattr(model, "returns_tuple", True)),
}
COMPILED = Circumstance(compile="aot_eager")
COLUMNS = [*CIRCUMSTANCES, "compile"]


ROUGHER = {("autocast", "remap"): 0.3}
"""Larger tolerances: Adam's first steps go by the sign of the gradient, which rounding turns where it is almost 0."""


def gradients(model_name: str, method: str, circumstance: Circumstance) -> dict[str, Tensor]:
    """Return the gradients of a GP batch after some BP batches; all numbers drawn are the same in every circumstance."""
    build, shape = MODELS[model_name]
    torch.manual_seed(0)
    model = build()
    circumstance.prepare(model)
    if circumstance.channels_last and len(shape) == 4:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
    schedule = WarmUp(
        Ladder((Rung(1, 0),), adagp.METHODS[method].source), batches=BATCHES, batches_per_epoch=BATCHES + 1
    )
    trainer = adagp.attach(
        model,
        torch.optim.SGD(list(model.parameters())[circumstance.left_out :], lr=0.05),
        adagp.NamedMethod(method),
        length=adagp.Epochs(1, BATCHES + 1),
        schedule=schedule,
        engine=adagp.EngineOptions(guard=adagp.Guard(torch.inf), compile=circumstance.compile or False),
    )
    for seed in range(BATCHES + 1):
        inputs = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        if circumstance.channels_last and len(shape) == 4:
            inputs = inputs.to(memory_format=torch.channels_last)
        train(trainer, model, inputs, circumstance)
    trained = {id(one) for group in trainer.optimizer.param_groups for one in group["params"]}
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None and id(one) in trained}


def train(trainer: adagp.Trainer, model: Staged, inputs: Tensor, circumstance: Circumstance) -> None:
    count = circumstance.parts
    with trainer.batch(LABELS.tensor_split(count)[0] if trainer.needs_targets else None) as batch:
        for whole, targets in batch.parts(inputs, LABELS):  # control has two parts, all others have one
            shares = list(zip(whole.tensor_split(count), targets.tensor_split(count), strict=True))
            for place, (share, labels) in enumerate(shares):
                if place and trainer.needs_targets:
                    batch.see_targets(labels)
                with torch.autocast("cpu", torch.bfloat16) if circumstance.autocast else nullcontext():
                    answer = model(share)
                logits = answer[0] if isinstance(answer, tuple) else answer
                loss = F.cross_entropy(logits.float(), labels, reduction="sum") / len(targets)
                batch.backward(loss, more=place + 1 < count)
        batch.step()


@cache
def plain(model_name: str, method: str, left_out: bool) -> dict[str, Tensor]:
    """Return the gradients of the plain loop: what each circumstance must give.

    A layer that is frozen is compared with one that the optimizer does not have.
    """
    return gradients(model_name, method, Circumstance(left_out=left_out))


def topk_by_formula(model_name: str, circumstance: Circumstance) -> dict[str, Tensor]:
    """Return the gradients of a GP batch of `topk` by its formula, from the gradients that plain PyTorch has at the outputs.

    Which position is the largest depends on rounding, so that the plain loop in single precision is not a measure in autocast.
    """
    build, shape = MODELS[model_name]
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sites = {site.module: site for site in survey(model).sites}
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def keep(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        output.register_hook(lambda gradient: seen.update({module: (inputs[0].detach(), gradient)}))

    for module in sites:
        module.register_forward_hook(keep)
    for seed in range(BATCHES + 1):
        optimizer.zero_grad()
        inputs = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        with torch.autocast("cpu", torch.bfloat16, enabled=circumstance.autocast):
            logits = model(inputs)
        (F.cross_entropy(logits.float(), LABELS, reduction="sum") / len(LABELS)).backward()
        if seed < BATCHES:
            optimizer.step()
    return {f"{site.name}.weight": topk_gradient(site, *seen[module], 1) for module, site in sites.items()}


@cache
def outcome(model_name: str, method: str, name: str) -> str:
    """Return "right", or the sentence with which the run is rejected; raise if it is wrong."""
    circumstance = COMPILED if name == "compile" else CIRCUMSTANCES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdagpWarning)
        by_formula = method == "topk" and circumstance.autocast
        expected = (
            topk_by_formula(model_name, circumstance) if by_formula else plain(model_name, method, circumstance.frozen)
        )
        torch._dynamo.reset()
        try:
            found = gradients(model_name, method, circumstance)
        except AdagpError as rejection:
            return str(rejection)
    assert found.keys() == expected.keys(), f"gradients of {found.keys() ^ expected.keys()}"
    error = distance(found, expected)
    assert error <= max(circumstance.tolerance, ROUGHER.get((name, method), 0)), f"relative error {error:.3g}"
    assert method in ("zero", "momentum") or any(one.any() for one in found.values()), "all gradients are 0"
    return "right"


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the relative error of all gradients as one vector."""
    joined = [torch.cat([one[name].float().flatten() for name in sorted(expected)]) for one in (found, expected)]
    size = joined[1].norm()
    return float((joined[0] - joined[1]).norm() / size) if size else float(joined[0].norm())


def cell(model_name: str, method: str, name: str) -> str:
    answer = outcome(model_name, method, name)
    return answer if answer == "right" else "rejected"


def row(name: str, method: str) -> str:
    cells = [cell(model_name, method, name) for model_name in MODELS]
    return (
        cells[0]
        if len(set(cells)) == 1
        else ", ".join(f"{one} ({model})" for model, one in zip(MODELS, cells, strict=True))
    )


HEADING = """# What works together

Every method works with autocast, micro-batches, channels-last memory, frozen layers, tuple outputs and `torch.compile`.
Some methods reject activation checkpointing.

Each cell was tried with a small CNN, a ViT and an LSTM: three BP batches, then a GP batch. The gradients of the GP batch
are compared with those of the same method in a plain, uncompiled loop on the whole batch.
`tests/engine/test_compatibility.py` writes and checks this page.

- **right**: the same gradients up to rounding (a thousandth; a tenth in bf16 autocast). With a frozen layer, they are the
  same as if the optimizer did not have it. There are two exceptions in autocast. `remap` is within three tenths, because
  Adam's first steps depend on signs, which rounding changes near 0. `topk` is compared with its formula on the bf16
  gradients of plain PyTorch, because rounding decides which position is the largest.
- **rejected**: there is an error, with the reason given below the table.
"""


def page() -> str:
    lines = ["| method | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    lines += [f"| {method} | " + " | ".join(row(name, method) for name in COLUMNS) + " |" for method in METHODS]
    reasons = [
        f"- `{method}`, {name}: {sentence}"
        for method in METHODS
        for name in COLUMNS
        for sentence in dict.fromkeys(outcome(model_name, method, name) for model_name in MODELS)
        if sentence.endswith(".")
    ]
    return "\n".join([HEADING, *lines, "", "What is rejected, and why:", "", *reasons]) + "\n"


def written(method: str, name: str) -> str:
    """Return a cell of the page."""
    line = next(line for line in DOCUMENT.read_text().splitlines() if line.startswith(f"| {method} |"))
    return line.split(" | ")[1 + COLUMNS.index(name)].removesuffix(" |")


@pytest.mark.medium
@pytest.mark.parametrize("name", CIRCUMSTANCES)
def test_methods_under_a_circumstance(name: str) -> None:
    rows = {method: row(name, method) for method in METHODS}
    if not os.environ.get("ADAGP_WRITE_DOCS"):
        assert rows == {method: written(method, name) for method in METHODS}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_methods_of_a_compiled_model(method: str) -> None:
    assert row("compile", method) == written(method, "compile")


@pytest.mark.skipif(not os.environ.get("ADAGP_WRITE_DOCS"), reason="the page is written on request")
def test_the_page_is_written() -> None:
    DOCUMENT.write_text(page())


def test_the_page_is_complete() -> None:
    lines = DOCUMENT.read_text()
    assert lines.startswith(HEADING)
    rows = [line.split(" | ")[0].removeprefix("| ") for line in lines.splitlines() if line.startswith("| ")]
    assert rows == ["method", *METHODS]
