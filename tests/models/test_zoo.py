"""Models of timm, torchvision and transformers by name, with random weights."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from adagp.errors import AdagpError, ModelError
from adagp.layers.sites import survey
from adagp.models import LANGUAGE, build_model, huggingface
from adagp.models.zoo import find_in_zoo
from adagp.tracing.tracer import trace_model

TINY = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
GPT2 = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "bos_token_id": 50256, "eos_token_id": 50256}


@pytest.fixture
def written(tmp_path: Path) -> Any:
    """Return a function that writes a configuration and returns the model's name."""

    def write(kind: str, **values: Any) -> str:
        path = tmp_path / f"{kind}.json"
        path.write_text(json.dumps({"model_type": kind, **values}))
        return f"hf:{path}"

    return write


def refusal(name: str, **options: Any) -> str:
    given: dict[str, Any] = {"classes": 10, "image": (3, 32, 32)} | options
    with pytest.raises(AdagpError) as caught:
        build_model(name, **given)
    return str(caught.value)


def test_which_names_mean_a_library() -> None:
    found = {name: find_in_zoo(name) for name in ("timm:resnet18", "torchvision.models:resnet18", "hf:a/b.json")}
    assert [one and (one.library, one.name) for one in found.values()] == [
        ("timm", "resnet18"),
        ("torchvision", "resnet18"),
        ("hf", "a/b.json"),
    ]
    assert [find_in_zoo(name) for name in ("resnet18", "timm", "hf.net:make", "mine.timm:make")] == [None] * 4


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("timm:resnet10t", (1, 32, 32)),
        ("timm:vit_tiny_patch16_224", (3, 32, 48)),
        ("torchvision:resnet18", (1, 32, 32)),
        ("torchvision.models:resnet18", (3, 32, 32)),
        ("torchvision:googlenet", (3, 64, 64)),
        ("torchvision:maxvit_t", (3, 224, 224)),
        ("torchvision:vit_b_16", (2, 32, 32)),
    ],
)
def test_classes_size_and_channels_are_the_datas(name: str, image: tuple[int, int, int]) -> None:
    with torch.device("meta"):
        model = build_model(name, classes=7, image=image)
        assert model(torch.zeros(2, *image)).shape == (2, 7)
    assert survey(model).sites
    assert trace_model(name, classes=7, image=image).layers


def test_same_seed_same_weights() -> None:
    def weights() -> torch.Tensor:
        torch.manual_seed(4)
        model = build_model("torchvision:squeezenet1_1", classes=3, image=(1, 32, 32))
        return torch.cat([parameter.flatten() for parameter in model.parameters()])

    assert torch.equal(weights(), weights())


@pytest.mark.medium
def test_what_the_vision_libraries_cannot_build() -> None:
    unknown = refusal("timm:convnext_tiney")
    assert unknown.startswith("timm has no model 'convnext_tiney' among its ")
    assert unknown.endswith(" The nearest names: convnext_tiny, convnextv2_tiny, convnext_tiny_hnf.")
    assert refusal("torchvision:zzz") == f"torchvision has no classifier 'zzz' among its {len(vision_names())}."
    assert refusal("torchvision:resnet18", width=0.5) == (
        "'torchvision:resnet18' has the widths of its library; it cannot be built with width 0.5."
    )
    assert refusal("timm:resnet18", task=LANGUAGE) == (
        "'timm:resnet18' tells images apart (images); it cannot do the task language."
    )
    assert refusal("torchvision:vit_b_16", image=(3, 40, 40)) == (
        "'torchvision:vit_b_16' cannot be built for images of 3x40x40: Input shape indivisible by patch size!."
    )
    assert refusal("torchvision:alexnet", image=(3, 16, 16)).startswith(
        "'torchvision:alexnet' cannot take images of 3x16x16: RuntimeError: "
    )


def vision_names() -> list[str]:
    from adagp.models.vision import load_torchvision

    models: Any = load_torchvision("torchvision.models")
    return list(models.list_models(module=models))


@pytest.mark.medium
def test_transformers_read_bytes_and_see_nothing_ahead(written: Any) -> None:
    """BERT, made to see both ways, is built as a decoder."""
    for name in (written("gpt2", **GPT2), written("bert", **TINY), written("llama", dtype="bfloat16", **TINY)):
        model = build_model(name, classes=256, task=LANGUAGE, length=12)
        assert model(torch.zeros(2, 12, dtype=torch.long)).shape == (2, 12, 256)
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        assert not any(key.startswith("model.model") for key in model.state_dict())
        assert survey(model).sites
        workload = trace_model(name, classes=10, length=12)
        assert workload.layers


@pytest.mark.medium
def test_transformers_tell_images_apart(written: Any) -> None:
    name = written("vit", image_size=224, patch_size=4, **TINY)
    model = build_model(name, classes=5, image=(1, 8, 8))
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 5)
    assert trace_model(name, classes=5, image=(1, 8, 8)).layers


@pytest.mark.medium
def test_what_transformers_cannot_build(written: Any, tmp_path: Path) -> None:
    text = {"classes": 256, "task": LANGUAGE}
    path = tmp_path / "gpt2.json"
    assert refusal(written("gpt2", **GPT2), **text) == (
        f"'hf:{path}' takes at most 64 positions; the sequences have 128 bytes."
    )
    assert refusal(written("gpt2", **GPT2)).startswith(
        f"'hf:{path}' cannot be built for the task images: Unrecognized configuration class "
    )
    assert refusal(written("gpt2", **GPT2), task="translation") == (
        f"'hf:{path}' cannot do the task translation; transformers' models do: images, language."
    )
    assert refusal(written("bertt"), **text).endswith(" The nearest names: bert, ibert, hubert.")
    path.write_text("{")
    assert refusal(f"hf:{path}", **text).startswith(f"cannot read the configuration of a model in '{path}': Expecting ")
    path.write_text("[]")
    assert refusal(f"hf:{path}", **text) == (
        f"'{path}' is no configuration of a model of transformers: it has no model_type."
    )
    assert refusal("hf:nowhere.json", **text) == (
        "cannot read the configuration of a model 'nowhere.json': No such file or directory."
    )


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    expected = "^transformers is needed here and is not installed: pip install 'adagp\\[hf\\]'.$"
    with pytest.raises(ModelError, match=expected):
        huggingface.load_transformers()
