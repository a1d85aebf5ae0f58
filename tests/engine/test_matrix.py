"""Models of many kinds by all methods: BP bit-equal to plain PyTorch; in GP only the promised weights move; or a refusal.

With ADAGP_WRITE_DOCS=1 the test of the table writes docs/models.md; without, each model's row of the file is checked.
"""

import copy
import os
import warnings
from collections.abc import Callable
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
from adagp.models.vision import load_timm, load_torchvision
from adagp.schedules import Ladder, Rung, WarmUp

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the libraries have much to say

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
METHODS = [name for name in adagp.METHODS if name not in ("bp", "skip")]
WARMUP = 2
Case = tuple[nn.Module, Any, Callable[[Any], Tensor], str | None]


def images(size: int) -> Tensor:
    return torch.randn(4, 3, size, size)


def vision(name: str, size: int, **options: Any) -> Case:
    model = load_timm().create_model(name, num_classes=3, **options)
    return model, images(size), lambda output: F.cross_entropy(output, torch.tensor([0, 1, 2, 0])), None


def torchvision(name: str, size: int, **options: Any) -> Case:
    model = getattr(load_torchvision("torchvision.models"), name)(num_classes=3, **options)
    return model, images(size), lambda output: F.cross_entropy(output, torch.tensor([0, 1, 2, 0])), None


def transformer(kind: str, head: str, output: str, **options: Any) -> Case:
    load_torchvision()
    import transformers

    common: dict[str, Any] = {"vocab_size": 20, **options}
    config = getattr(transformers, f"{kind}Config")(**common)
    model = getattr(transformers, f"{kind}{head}")(config)
    words = torch.randint(3, 20, (4, 6))
    labels = torch.tensor([0, 1, 0, 1]) if "Sequence" in head else words
    return model, {"input_ids": words, "labels": labels}, lambda answer: answer.loss, output


SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.last = nn.Embedding(9, 4), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.last(self.lstm(self.words(words))[0][:, -1])  # type: ignore[no-any-return]


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
    return model, inputs, lambda output: F.cross_entropy(output.float(), torch.tensor([0, 1, 2, 0])), None


MODELS: dict[str, Callable[[], Case]] = {
    "timm convnext": lambda: vision("convnext_atto", 32, depths=(1, 1, 1, 1), dims=(4, 4, 8, 8)),
    "timm vit": lambda: vision(
        "vit_tiny_patch16_224", 32, img_size=32, patch_size=16, embed_dim=12, depth=1, num_heads=2
    ),
    "timm efficientnet": lambda: vision("test_efficientnet", 32),
    "timm swin": lambda: vision(
        "swin_tiny_patch4_window7_224", 32, img_size=32, window_size=4, embed_dim=8, depths=(1, 1), num_heads=(1, 2)
    ),
    "torchvision resnet": lambda: torchvision(
        "ResNet", 32, block=load_torchvision("torchvision.models.resnet").BasicBlock, layers=[1, 1, 1, 1]
    ),
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
    "transformer encoder": lambda: plain(
        nn.Sequential(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), nn.Flatten(), nn.Linear(48, 3)
        ),
        torch.randn(4, 6, 8),
    ),
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


def run(model: nn.Module, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


@cache
def tried(name: str) -> dict[str, str]:
    """Return for each method what came of it, having asserted what must hold."""
    torch.manual_seed(0)
    model, inputs, loss_of, output = MODELS[name]()
    return {method: outcome(copy.deepcopy(model), inputs, loss_of, output, method) for method in METHODS}


def outcome(model: nn.Module, inputs: Any, loss_of: Callable[[Any], Tensor], output: str | None, method: str) -> str:
    twin = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(one.parameters(), lr=1e-2, momentum=0.9) for one in (model, twin)]
    targets = torch.tensor([0, 1, 0, 1])
    schedule = WarmUp(Ladder((Rung(1, 0),), adagp.METHODS[method].source), batches=WARMUP, batches_per_epoch=99)
    options: dict[str, Any] = {} if output is None else {"output": output}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdagpWarning)
        try:
            trainer = adagp.attach(
                model, optimizers[0], epochs=1, batches_per_epoch=99, method=method, schedule=schedule, **options
            )
            for batch_number in range(WARMUP + 1):
                torch.manual_seed(batch_number)
                before = {key: value.detach().clone() for key, value in model.named_parameters()}
                with trainer.batch(targets) as batch:
                    batch.backward(loss_of(run(model, inputs)))
                    batch.step()
                if batch_number < WARMUP:
                    torch.manual_seed(batch_number)
                    optimizers[1].zero_grad()
                    loss_of(run(twin, inputs)).backward()
                    optimizers[1].step()
                    assert all(map(torch.equal, model.parameters(), twin.parameters())), "BP is not plain PyTorch"
        except AdagpError as error:
            return "refused" if str(error).endswith(".") else "an error that is no sentence"
    moved = {key for key, value in model.named_parameters() if not torch.equal(value, before[key])}
    sites = {f"{site.name}.weight": site for site in trainer.survey.sites}
    assert moved <= sites.keys(), f"moved beside the sites: {moved - sites.keys()}"
    assert not any(sites[one].name in batch.refused for one in moved)
    return f"{len(sites)} sites"


def row(name: str) -> str:
    return f"| {name} | " + " | ".join(tried(name).values()) + " |"


HEADING = [
    "# Models and methods",
    "",
    "Tiny models of many kinds, each trained by each method for two BP batches and one GP batch. Where a number of sites",
    "stands, the BP batches were bit-equal to plain PyTorch, and in the GP batch no parameter moved but weights of sites;",
    "where it says refused, there is an error with the reason. Made and checked by `tests/engine/test_matrix.py`.",
    "",
    "| model | " + " | ".join(METHODS) + " |",
    "|---" * (len(METHODS) + 1) + "|",
]


@pytest.mark.parametrize("name", MODELS)
def test_it_trains_as_promised_or_refuses(name: str) -> None:
    assert set(tried(name).values()) <= {tried(name)["adagp"], "refused"}
    assert tried(name)["adagp"].endswith(" sites")
    if not os.environ.get("ADAGP_WRITE_DOCS"):
        assert row(name) in DOCUMENT.read_text().splitlines()


def test_the_table_of_the_documentation() -> None:
    if os.environ.get("ADAGP_WRITE_DOCS"):
        DOCUMENT.write_text("\n".join([*HEADING, *map(row, MODELS)]) + "\n")
    lines = DOCUMENT.read_text().splitlines()
    assert lines[: len(HEADING)] == HEADING
    assert [line.split(" | ")[0] for line in lines[len(HEADING) :]] == [f"| {name}" for name in MODELS]
