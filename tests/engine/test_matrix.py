"""Models of many kinds by all methods, after two BP batches and one GP batch: right, or rejected in a sentence.

Right is: in BP batches every parameter is bit-equal to plain PyTorch's; in the GP batch exactly the promised weights get a
gradient and move, all of them and nothing else. What is promised is found by this file, without the library: the weights of
convolutions and linear layers that are called as layers and have a gradient of their own by backprop.

With ADAGP_WRITE_DOCS=1 the test of the table writes docs/models.md; without, each model's lines of the file are checked.
"""

import copy
import math
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import adagp
from adagp.errors import AdagpError, AdagpWarning
from adagp.layers.sites import survey
from adagp.models.vision import load_timm, load_torchvision
from adagp.schedules import Ladder, Rung, WarmUp

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore")]  # the libraries have much to say

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
METHODS = [
    name for name in adagp.METHODS if name != "control"
]  # which trains parts of a batch, in another loop than below
PARTIAL = ("zero", "random", "topk")
WARMUP = 2
CLASSES = torch.tensor([0, 1, 2, 0])


@dataclass(frozen=True)
class Case:
    """A model, a batch for it, and what `attach` has to be told: the layer at whose output the error is, if any."""

    model: nn.Module
    inputs: Any
    targets: Tensor
    loss_of: Callable[[Any], Tensor]
    output: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def loss(self, model: nn.Module) -> Tensor:
        answer = model(**self.inputs) if isinstance(self.inputs, dict) else model(self.inputs)
        return self.loss_of(answer)


def images(size: int) -> Tensor:
    return torch.randn(4, 3, size, size)


def vision(name: str, size: int, **options: Any) -> Case:
    model = load_timm().create_model(name, num_classes=3, **options)
    return plain(model, images(size))


def torchvision(name: str, size: int, **options: Any) -> Case:
    model = getattr(load_torchvision("torchvision.models"), name)(num_classes=3, **options)
    return plain(model, images(size))


def narrow_resnet() -> nn.Module:
    """Return torchvision's ResNet, an eighth as wide behind its first layer."""
    library = load_torchvision("torchvision.models.resnet")

    class Narrow(library.ResNet):  # type: ignore[misc, name-defined]
        def _make_layer(self, block: Any, planes: int, *more: Any, **named: Any) -> nn.Module:
            return super()._make_layer(block, planes // 8, *more, **named)  # type: ignore[no-any-return]

    model: nn.Module = Narrow(library.BasicBlock, [1, 1, 1, 1])
    model.fc = nn.Linear(64, 3)
    return model


def transformer(kind: str, head: str, output: str, **options: Any) -> Case:
    load_torchvision()
    import transformers

    common: dict[str, Any] = {"vocab_size": 20, **options}
    config = getattr(transformers, f"{kind}Config")(**common)
    model = getattr(transformers, f"{kind}{head}")(config)
    words = torch.randint(3, 20, (4, 6))
    labels = torch.tensor([0, 1, 0, 1]) if "Sequence" in head else words
    inputs = {"input_ids": words, "labels": labels}
    return Case(model, inputs, labels, lambda answer: answer.loss, output, {"label_classes": 20})


SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.last = nn.Embedding(9, 4), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.last(self.lstm(self.words(words))[0][:, -1])  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention = nn.Linear(8, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        return self.last(self.attention(hidden, hidden, hidden)[0].mean(1))  # type: ignore[no-any-return]


class PositionsFirst(nn.Module):
    """As many positions as samples, and no attribute that tells which is which."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.first(inputs.transpose(0, 1)).tanh().mean(0))  # type: ignore[no-any-return]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.middle, self.last = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
        self.last.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.last(self.middle(self.words(words)).mean(1))  # type: ignore[no-any-return]


class LowRank(nn.Module):
    """A frozen layer with a trained difference of rank 2."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(5, 3), nn.Linear(5, 2, bias=False), nn.Linear(2, 3, bias=False)
        self.base.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.base(inputs) + self.up(self.down(inputs))  # type: ignore[no-any-return]


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4, dtype=torch.complex64), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.first(inputs.to(torch.complex64)).abs())  # type: ignore[no-any-return]


def plain(model: nn.Module, inputs: Tensor) -> Case:
    return Case(model, inputs, CLASSES, lambda output: F.cross_entropy(output.float(), CLASSES))


MODELS: dict[str, Callable[[], Case]] = {
    "timm convnext": lambda: vision("convnext_atto", 32, depths=(1, 1, 1, 1), dims=(4, 4, 8, 8)),
    "timm vit": lambda: vision(
        "vit_tiny_patch16_224", 32, img_size=32, patch_size=16, embed_dim=12, depth=1, num_heads=2
    ),
    "timm efficientnet": lambda: vision("test_efficientnet", 32),
    "timm swin": lambda: vision(
        "swin_tiny_patch4_window7_224", 32, img_size=32, window_size=4, embed_dim=8, depths=(1, 1), num_heads=(1, 2)
    ),
    "torchvision resnet": lambda: plain(narrow_resnet(), images(32)),
    "torchvision maxvit": lambda: torchvision(
        "MaxVit",
        32,
        input_size=(32, 32),
        stem_channels=8,
        partition_size=2,
        block_channels=[8, 16],
        block_layers=[1, 1],
        head_dim=4,
        stochastic_depth_prob=0.0,
    ),
    "hf bert": lambda: transformer("Bert", "ForSequenceClassification", "classifier", **SMALL, num_labels=2),
    "hf gpt2": lambda: transformer(
        "GPT2", "LMHeadModel", "lm_head", n_embd=8, n_layer=1, n_head=2, n_positions=8, bos_token_id=1, eos_token_id=2
    ),
    "hf llama": lambda: transformer("Llama", "ForCausalLM", "lm_head", **SMALL, num_key_value_heads=1),
    "hf t5": lambda: transformer(
        "T5",
        "ForConditionalGeneration",
        "lm_head",
        d_model=8,
        d_ff=16,
        d_kv=4,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    ),
    "hf mixtral": lambda: transformer(
        "Mixtral", "ForCausalLM", "lm_head", **SMALL, num_key_value_heads=1, num_local_experts=2
    ),
    "lstm": lambda: plain(Recurrent(), torch.randint(0, 9, (4, 6))),
    "multi-head attention": lambda: plain(Attention(), torch.randn(4, 6, 8)),
    "transformer encoder": lambda: plain(
        nn.Sequential(
            nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
            nn.Flatten(),
            nn.Linear(48, 3),
        ),
        torch.randn(4, 6, 8),
    ),
    "sequences first": lambda: plain(PositionsFirst(), torch.randn(4, 4, 8)),
    "weight norm": lambda: plain(
        nn.Sequential(weight_norm(nn.Linear(5, 4)), nn.Tanh(), nn.Linear(4, 3)), torch.randn(4, 5)
    ),
    "tied weights": lambda: plain(Tied(), torch.randint(0, 9, (4, 6))),
    "lora": lambda: plain(LowRank(), torch.randn(4, 5)),
    "complex": lambda: plain(Complex(), torch.randn(4, 5)),
    "bf16": lambda: plain(
        nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).bfloat16(), torch.randn(4, 5).bfloat16()
    ),
}


def promised(case: Case) -> tuple[set[str], dict[str, Tensor]]:
    """Return the names of the weights that a GP batch may move, and all gradients by plain PyTorch."""
    model = copy.deepcopy(case.model)
    called: set[nn.Module] = set()
    for module in model.modules():
        module.register_forward_hook(lambda module, *_: called.add(module))
    torch.manual_seed(0)
    case.loss(model).backward()
    kinds = re.compile(r"Conv(Transpose)?[123]d|Linear|Conv1D")
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    names = set()
    for path, module in model.named_modules():
        weight = dict(module.named_parameters(recurse=False)).get("weight")
        layer = any(kinds.fullmatch(kind.__name__) for kind in type(module).__mro__)
        if not layer or weight is None or module not in called or owners[id(weight)] > 1:
            continue
        if weight.grad is not None and weight.is_floating_point():
            names.add(f"{path}.weight")
    return names, {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


def attached(case: Case, model: nn.Module, method: str, schedule: Any) -> adagp.Trainer:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=1e-2)
    options = {name: value for name, value in case.options.items() if name in adagp.METHODS[method].defaults}
    return adagp.attach(
        model,
        optimizer,
        length=adagp.Epochs(1, 99),
        method=adagp.NamedMethod(method, **options),
        schedule=schedule,
        output=case.output,
        engine=adagp.EngineOptions(guard=adagp.Guard(math.inf)),  # whatever is promised moves, however large
    )


def batch_of(trainer: adagp.Trainer, case: Case, seed: int) -> set[str]:
    """Train one batch; return the names of the parameters that have a gradient."""
    torch.manual_seed(seed)
    with trainer.batch(case.targets) as batch:
        if not batch.skipped:
            batch.backward(case.loss(trainer.model))
        found = {name for name, one in trainer.model.named_parameters() if one.grad is not None}
        if not batch.skipped:
            batch.step()
    return found


@cache
def tried(name: str) -> dict[str, str]:
    """Return for each method what came of it, having asserted what must hold."""
    torch.manual_seed(0)
    case = MODELS[name]()
    aims, truths = promised(case)
    plainly = copy.deepcopy(case.model)
    optimizer = torch.optim.SGD(plainly.parameters(), lr=1e-2, momentum=0.9, weight_decay=1e-2)
    states = []
    for seed in range(WARMUP + 1):
        torch.manual_seed(seed)
        optimizer.zero_grad()
        case.loss(plainly).backward()
        optimizer.step()
        states.append([one.detach().clone() for one in plainly.parameters()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdagpWarning)
        found = {method: outcome(case, method, states, aims) for method in METHODS}
        for method in PARTIAL:
            check_partial(case, method, truths)
    return found


def outcome(case: Case, method: str, states: list[list[Tensor]], aims: set[str]) -> str:
    """Return how many weights a GP batch moves, "all" for plain backprop, or the rejection."""
    model, source = copy.deepcopy(case.model), adagp.METHODS[method].source
    schedule = WarmUp(Ladder((Rung(1, 0),), source), batches=WARMUP, batches_per_epoch=99) if source else "bp"
    try:
        trainer = attached(case, model, method, schedule)
        for seed in range(WARMUP):
            batch_of(trainer, case, seed)
            assert all(map(torch.equal, model.parameters(), states[seed])), f"{method}: BP is not plain PyTorch"
        before = {name: one.detach().clone() for name, one in model.named_parameters()}
        given = batch_of(trainer, case, WARMUP)
    except AdagpError as error:
        text = str(error)
        assert re.fullmatch(r"[^\n]+\.", text), f"{method}: an error that is not a sentence: {text}"
        return text
    moved = {name for name, one in model.named_parameters() if not torch.equal(one, before[name])}
    if method == "bp":
        assert all(map(torch.equal, model.parameters(), states[WARMUP])), "BP is not plain PyTorch"
        return "all"
    aims = set() if method == "skip" else aims
    assert moved == aims, f"{method}: wrongly {moved - aims}, lacking {aims - moved}"
    assert given == aims, f"{method}: a gradient wrongly {given - aims}, lacking {aims - given}"
    return str(len(moved))


def check_partial(case: Case, method: str, truths: dict[str, Tensor]) -> None:
    """Some layers from a source, the others by backprop: these have plain PyTorch's gradients."""
    model = copy.deepcopy(case.model)
    first = "" if len(survey(model).sites) > 1 else "1st layer; first=allowed"
    trainer = attached(case, model, method, f"sites={first or 'every 2nd layer'}; source={method}")
    taken = trainer.plan.sources([site.name for site in trainer.survey.sites])[method]
    assert batch_of(trainer, case, 0) == truths.keys(), f"{method}: all that backprop reaches has a gradient"
    for name, one in model.named_parameters():
        if name in truths and name.removesuffix(".weight") not in taken:
            assert one.grad is not None
            torch.testing.assert_close(one.grad, truths[name], rtol=0, atol=0, msg=f"{method}: {name}")
        elif name in truths and method == "zero":
            assert not one.grad.any(), name  # type: ignore[union-attr]


def row(name: str) -> str:
    cells = [one if len(one) < 5 else "rejected" for one in tried(name).values()]
    return f"| {name} | " + " | ".join(cells) + " |"


def rejections(name: str) -> list[str]:
    return [f"- {name}, `{method}`: {text}" for method, text in tried(name).items() if len(text) >= 5]


HEADING = [
    "# Models and methods",
    "",
    "Almost every method trains every model here. The few combinations that are rejected are listed below the table.",
    "",
    "Each method trained tiny models of many kinds, for two BP batches and one GP batch. `control` is left out, because it",
    "trains parts of a batch. `tests/engine/test_matrix.py` writes and checks this page. The table shows:",
    "",
    "- a **number**: how many weights (tensors) got a gradient and moved in the GP batch. These are the weights of all layers",
    "  of a known kind that are called and that backprop reaches, no others. The BP batches were bit-equal to plain PyTorch;",
    "- **all**: every batch of `bp` was bit-equal to plain PyTorch;",
    "- **rejected**: there is an error, which states the reason.",
    "",
    "| model | " + " | ".join(METHODS) + " |",
    "|---" * (len(METHODS) + 1) + "|",
]


@pytest.mark.parametrize("name", MODELS)
def test_it_trains_as_promised_or_rejects(name: str) -> None:
    assert tried(name)["adagp"].isdigit()
    if not os.environ.get("ADAGP_WRITE_DOCS"):
        lines = DOCUMENT.read_text().splitlines()
        assert row(name) in lines
        assert set(rejections(name)) <= set(lines)


def test_the_table_of_the_documentation() -> None:
    if os.environ.get("ADAGP_WRITE_DOCS"):
        told = [line for name in MODELS for line in rejections(name)]
        DOCUMENT.write_text(
            "\n".join([*HEADING, *map(row, MODELS), "", "What is rejected, and why:", "", *told]) + "\n"
        )
    lines = DOCUMENT.read_text().splitlines()
    assert lines[: len(HEADING)] == HEADING
    rows = [line for line in lines[len(HEADING) :] if line.startswith("|")]
    assert [line.split(" | ")[0] for line in rows] == [f"| {name}" for name in MODELS]
