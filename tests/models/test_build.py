"""Building by name: options, errors, repeatability and users' own functions."""

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from adagp.errors import AdagpError, ModelError, OptionError
from adagp.layers.sites import survey
from adagp.models import IMAGES, LANGUAGE, MODELS, ModelInfo, build_model, huggingface
from adagp.models.build import find_in_zoo
from adagp.models.huggingface import MODEL_TYPES
from adagp.tracing.tracer import trace_model

USERS = """
import torch
from torch import nn

def net(classes, image):
    channels, height, width = image
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, classes))

def wide(classes, image, width=1.0, depth=2):
    model = net(classes, image)
    model.options = (classes, image, width, depth)
    return model

def anything(**options):
    model = net(options["classes"], options["image"])
    model.options = options
    return model

def ten():
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 10))

def maps(classes):
    return nn.Conv2d(3, classes, 1)

def pair():
    class Pair(nn.Module):
        def forward(self, x):
            return x, x
    return Pair()

def demanding(classes, secret):
    return None

def text(classes):
    return "no module"

number = 3
"""


@pytest.fixture(autouse=True)
def users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "users_net.py").write_text(USERS)
    (tmp_path / "users_broken.py").write_text("import no_such_module")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("users_net", None)


def message(name: str, **options: Any) -> str:
    given: dict[str, Any] = {"classes": 5, "image": (3, 4, 4)} | options
    with pytest.raises(AdagpError) as caught:
        build_model(name, **given)
    return str(caught.value)


def test_users_function_gets_what_it_accepts() -> None:
    assert isinstance(build_model("users_net:net", classes=5, image=(3, 4, 4)), nn.Sequential)
    wide: Any = build_model("users_net:wide", classes=5, image=(3, 4, 4), width=0.3)
    assert wide.options == (5, (3, 4, 4), 0.3, 2)
    anything: Any = build_model("users_net:anything", classes=5, image=(3, 4, 4))
    assert anything.options == {"classes": 5, "image": (3, 4, 4), "width": 1.0}


def test_users_model_keeps_its_mode() -> None:
    assert build_model("users_net:net", classes=5, image=(3, 4, 4)).training


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (":net", "cannot read ':net'; a model of your own is named as package.module:function."),
        ("users_net:", "cannot read 'users_net:'; a model of your own is named as package.module:function."),
        (
            "users_none:net",
            "cannot import 'users_none' of 'users_none:net': ModuleNotFoundError: No module named 'users_none'",
        ),
        (
            "users_broken:net",
            "cannot import 'users_broken' of 'users_broken:net': ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("users_net:nett", "module 'users_net' has no function 'nett' (from 'users_net:nett')."),
        ("users_net:number", "'users_net:number' is of type int, which cannot be called."),
        ("users_net:text", "'users_net:text' returned a str; it must return a torch.nn.Module."),
        (
            "users_net:demanding",
            "'users_net:demanding' needs the argument 'secret', which has no default; available are classes, image, width.",
        ),
        ("users_net:ten", "'users_net:ten' gives scores for 10 classes; the data has 5."),
        (
            "users_net:maps",
            "'users_net:maps' returns shape (1, 5, 4, 4) for one image of 3x4x4; it must return (1, 5).",
        ),
        ("users_net:pair", "'users_net:pair' returns tuple for one image of 3x4x4; it must return (1, 5)."),
    ],
)
def test_faults_of_users_functions(name: str, expected: str) -> None:
    assert message(name) == expected


def test_users_model_that_cannot_take_the_images() -> None:
    expected = "'users_net:ten' cannot take images of 1x4x4: RuntimeError: mat1 and mat2 shapes cannot be multiplied"
    assert message("users_net:ten", image=(1, 4, 4)).startswith(expected)


def test_users_function_without_width() -> None:
    expected = "'users_net:net' takes no argument 'width', so it cannot be built with width 0.5."
    assert message("users_net:net", width=0.5) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"classes": 1}, "a model needs 2 classes or more; got 1."),
        ({"width": 0.0}, "width 0.0 is not allowed; it must be above 0 (1 is the model as published)."),
        ({"width": -1.0}, "width -1.0 is not allowed; it must be above 0 (1 is the model as published)."),
        (
            {"width": float("nan")},
            "width nan is not allowed; it must be above 0 (1 is the model as published).",
        ),
        (
            {"image": (3, 0, 8)},
            "image (3, 0, 8) is not allowed; it must be channels, height and width, each 1 or more.",
        ),
        ({"image": (3, 40, 31)}, "model 'vgg13' needs images of at least 32x32 pixels; got 40x31."),
        (
            {"image": (3, 32, 32), "width": 0.3},
            "width 0.3 leaves fractions of channels in vgg13; choose a multiple of 1/64, such as 0.296875 or 0.3125.",
        ),
        (
            {"image": (3, 32, 32), "width": 0.001},
            "width 0.001 leaves fractions of channels in vgg13; choose a multiple of 1/64, "
            "such as 0.015625 or 0.03125.",
        ),
    ],
)
def test_wrong_options(options: dict[str, Any], expected: str) -> None:
    assert message("vgg13", **options) == expected


@pytest.mark.medium
@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].task == IMAGES])
def test_the_smallest_image_works_and_a_smaller_one_is_rejected(name: str) -> None:
    info = MODELS[name]
    smallest = info.smallest
    model = build_model(name, classes=3, image=(3, smallest, smallest), width=0.125)
    assert model(torch.randn(2, 3, smallest, smallest)).shape == (2, 3)
    if smallest > 1:
        with pytest.raises(ModelError):
            build_model(name, classes=3, image=(3, smallest - 1, smallest))


def test_a_model_of_a_library_is_suggested() -> None:
    with pytest.raises(OptionError, match=r"^unknown model 'resnet18'. Did you mean 'torchvision:resnet18'\? "):
        MODELS["resnet18"]


def test_unknown_model() -> None:
    expected = "unknown model 'resnet5O'. Did you mean 'resnet50'? Choose from: "
    assert message("resnet5O").startswith(expected)


def test_model_of_another_task(monkeypatch: pytest.MonkeyPatch) -> None:
    info = ModelInfo("translator", "translation", "", "", "")
    monkeypatch.setitem(MODELS._things, info.name, info)
    expected = "model 'translator' is for the task translation, not images; choose from: digits_cnn, two_layer_cnn, "
    assert message("translator").startswith(expected)


def test_same_seed_same_weights() -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return list(build_model("resnet14", classes=4, image=(3, 16, 16)).state_dict().values())

    assert all(torch.equal(one, other) for one, other in zip(weights(1), weights(1), strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(weights(1), weights(2), strict=True))


def test_initial_weights_are_hes() -> None:
    torch.manual_seed(0)
    model: Any = build_model("vgg11_bn", classes=10, image=(3, 32, 32))
    layer = model.features[-4]
    assert layer.weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert not layer.bias.any()
    norm = model.features[-3]
    assert (norm.weight == 1).all()
    assert (norm.running_var == 1).all()
    assert not norm.running_mean.any()
    assert norm.num_batches_tracked == 0


def test_meta_device_is_respected() -> None:
    with torch.device("meta"):
        model = build_model("resnet50", classes=10, image=(3, 224, 224))
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_width_is_checked_for_the_allowed_range() -> None:
    with pytest.raises(OptionError):
        build_model("resnet50", classes=2, width=float("inf"))


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


def rejection(name: str, **options: Any) -> str:
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


def test_models_of_libraries_draw_the_same_weights_for_the_same_seed() -> None:
    def weights() -> torch.Tensor:
        torch.manual_seed(4)
        model = build_model("torchvision:squeezenet1_1", classes=3, image=(1, 32, 32))
        return torch.cat([parameter.flatten() for parameter in model.parameters()])

    assert torch.equal(weights(), weights())


@pytest.mark.medium
def test_what_the_vision_libraries_cannot_build() -> None:
    unknown = rejection("timm:convnext_tiney")
    assert unknown.startswith("timm has no model 'convnext_tiney' among its ")
    assert unknown.endswith(" The nearest names: convnext_tiny, convnextv2_tiny, convnext_tiny_hnf.")
    assert rejection("torchvision:zzz") == f"torchvision has no classifier 'zzz' among its {len(vision_names())}."
    assert rejection("torchvision:resnet18", width=0.5) == (
        "'torchvision:resnet18' has fixed widths from its library; it cannot be built with width 0.5."
    )
    assert rejection("timm:resnet18", task=LANGUAGE) == (
        "'timm:resnet18' classifies images (images); it cannot do the task language."
    )
    assert rejection("torchvision:vit_b_16", image=(3, 40, 40)) == (
        "'torchvision:vit_b_16' cannot be built for images of 3x40x40: Input shape indivisible by patch size!."
    )
    assert rejection("torchvision:alexnet", image=(3, 16, 16)).startswith(
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
    assert rejection(written("gpt2", **GPT2), **text) == (
        f"'hf:{path}' takes at most 64 positions; the sequences have 128 bytes."
    )
    assert rejection(written("gpt2", **GPT2)) == f"'hf:{path}' is a gpt2, which cannot do the task images."
    assert rejection(written("gpt2", **GPT2), task="translation") == (
        f"'hf:{path}' cannot do the task translation; transformers' models do: images, language."
    )
    assert rejection(written("bertt"), **text).endswith(" The nearest names: bert, roberta, rembert.")
    path.write_text("{")
    assert rejection(f"hf:{path}", **text).startswith(
        f"cannot read the configuration of a model in '{path}': Expecting "
    )
    path.write_text("[]")
    assert rejection(f"hf:{path}", **text) == (
        f"'{path}' is not a configuration of a model of transformers: it has no model_type."
    )
    assert rejection("hf:nowhere.json", **text) == (
        "cannot read the configuration of a model 'nowhere.json': No such file or directory."
    )


FOREIGN_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "code": ({"auto_map": {"AutoModelForCausalLM": "evil.Model"}}, "gpt2 has no field that a file may set 'auto_map'"),
    "kernels": (
        {"_attn_implementation": "kernels-community/x"},
        "gpt2 has no field that a file may set '_attn_implementation'",
    ),
    "quantisation": ({"quantization_config": {"a": 1}}, "gpt2 has no field that a file may set 'quantization_config'"),
    "an alias": ({"num_hidden_layers": 10**9}, "'num_hidden_layers' is 1000000000; it must be from -1,024 to 1,024."),
    "a path": ({"activation_function": "../a.pt"}, "'activation_function' is \"../a.pt\"; it must be one word."),
    "a list": ({"n_inner": [1] * 2000}, "'n_inner' has 2,000 items; at most 1,024 are allowed."),
    "depth": ({"n_inner": [[[[1]]]]}, "'n_inner' is nested more than 3 levels deep."),
    "a number": ({"n_embd": 10**300}, "'n_embd' is 1000000000000000000000000000000000000...; it must be from "),
    "infinity": (
        {"resid_pdrop": float("inf")},
        "'resid_pdrop' is Infinity; it must be from -16,777,216 to 16,777,216.",
    ),
}


@pytest.mark.medium
@pytest.mark.parametrize("case", FOREIGN_FIELDS)
def test_fields_of_foreign_configurations_are_not_passed_on(
    written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    transformers: Any = huggingface.load_transformers()
    monkeypatch.setattr(transformers.GPT2Config, "from_dict", lambda *values: pytest.fail("transformers got the file"))
    fields, fault = FOREIGN_FIELDS[case]
    message = rejection(written("gpt2", **GPT2 | fields), classes=256, task=LANGUAGE)
    assert message.startswith(f"the configuration in '{tmp_path / 'gpt2.json'}' is not allowed: {fault}")


@pytest.mark.medium
def test_models_of_timm_are_not_wrapped_by_a_configuration(written: Any) -> None:
    """The wrapper takes a file of weights to unpickle, or a model of the hub."""
    for fields in ({"architecture": "hf-hub:a/b"}, {"model_args": {"checkpoint_path": "evil.pt"}}):
        assert rejection(written("timm_wrapper", **fields)) == (
            "model_type 'timm_wrapper' is not built from a file; name a model of timm as timm:NAME."
        )


@pytest.mark.medium
def test_values_that_fit_no_model_end_in_a_sentence(written: Any, tmp_path: Path) -> None:
    begun = f"'hf:{tmp_path / 'gpt2.json'}' cannot be built for the task language: "
    for field in ({"n_head": 3}, {"n_head": 0}, {"activation_function": "none-such"}, {"n_embd": -16}):
        message = rejection(written("gpt2", **GPT2 | field), classes=256, task=LANGUAGE, length=12)
        assert message.startswith(begun), message
        assert "\n" not in message
    message = rejection(written("gpt2", **GPT2 | {"n_embd": 2**24}), classes=256, task=LANGUAGE, length=12)
    assert message.startswith(f"model 'hf:{tmp_path / 'gpt2.json'}' needs 13,5"), message


@pytest.mark.medium
def test_models_are_built_offline_and_without_foreign_code(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers: Any = huggingface.load_transformers()
    constants: Any = importlib.import_module("huggingface_hub.constants")
    build = transformers.AutoModelForCausalLM.from_config
    calls = []

    def recorded(config: Any, **options: Any) -> Any:
        calls.append((constants.HF_HUB_OFFLINE, options["trust_remote_code"]))
        return build(config, **options)

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_config", recorded)
    build_model(written("gpt2", **GPT2), classes=256, task=LANGUAGE, length=12)
    assert calls == [(True, False)] * 2
    assert not constants.HF_HUB_OFFLINE


@pytest.mark.medium
def test_the_list_holds_model_types_that_transformers_builds_for_the_task() -> None:
    huggingface.load_transformers()
    auto: Any = importlib.import_module("transformers.models.auto.modeling_auto")
    assert set(MODEL_TYPES[IMAGES]) <= set(auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES)
    assert set(MODEL_TYPES[LANGUAGE]) <= set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def test_a_published_configuration_is_accepted(written: Any) -> None:
    """Fields of the file that openai-community/gpt2 has on the hub."""
    name = written(
        "gpt2",
        activation_function="gelu_new",
        architectures=["GPT2LMHeadModel"],
        attn_pdrop=0.1,
        n_ctx=1024,
        summary_type="cls_index",
        summary_proj_to_labels=True,
        task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}},
        vocab_size=50257,
        **GPT2,
    )
    with torch.device("meta"):
        assert survey(build_model(name, classes=256, task=LANGUAGE, length=12)).sites


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    expected = "^transformers is needed here and is not installed: pip install '.\\[hf\\]'.$"
    with pytest.raises(ModelError, match=expected):
        huggingface.load_transformers()
