"""The one place that imports transformers: models from a configuration file, with random weights. Nothing is fetched.

A configuration may come from anywhere. In transformers some fields name code to import, files of weights to unpickle, hosts to
contact or kernels to fetch. So transformers gets only fields that the model type declares, with values that can do none of
that.
"""

import dataclasses
import importlib
import importlib.util
import inspect
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from adagp.core.files import read_text
from adagp.core.memory import check_memory
from adagp.errors import ModelError
from adagp.models.build import ZooModel, unknown_in
from adagp.models.registry import IMAGES, LANGUAGE
from adagp.models.vision import load_torchvision

CLASSES = {IMAGES: "AutoModelForImageClassification", LANGUAGE: "AutoModelForCausalLM"}
"""The class of transformers that builds the models of each task."""


def load_transformers() -> ModuleType:
    """Import transformers, which imports torchvision if that is installed."""
    if importlib.util.find_spec("transformers") is None:
        raise ModelError("transformers is needed here and is not installed: pip install '.[hf]'.")
    if importlib.util.find_spec("torchvision") is not None:
        load_torchvision()
    return importlib.import_module("transformers")


def transformers_model(
    zoo: ZooModel, *, classes: int, image: tuple[int, int, int], task: str, length: int
) -> nn.Module:
    """Return the model of a configuration file for the task, adapted to its classes, images or sequences.

    A forward hook makes it return only its logits, so that its parameters keep the names that transformers gives them.
    """
    if task not in CLASSES:
        raise ModelError(f"'{zoo.reference}' cannot do the task {task}; transformers' models do: {', '.join(CLASSES)}.")
    config = read_config(Path(zoo.name))
    if config.model_type not in MODEL_TYPES[task]:
        raise ModelError(f"'{zoo.reference}' is a {config.model_type}, which cannot do the task {task}.")
    if task == IMAGES:
        _fit_images(config, classes, image)
    else:
        _fit_text(config, classes, length, zoo.reference)
    model = _build_within_memory(config, zoo.reference, task)
    model.register_forward_hook(_logits)
    if task == LANGUAGE:
        model.register_forward_pre_hook(_mask_without_values, with_kwargs=True)
    return model


def _build_within_memory(config: Any, reference: str, task: str) -> nn.Module:
    """Return the model with random weights; raise before they are allocated if they do not fit into memory."""
    auto_class = getattr(load_transformers(), CLASSES[task])

    def build() -> nn.Module:
        with offline(), _faults_named(f"'{reference}' cannot be built for the task {task}"):
            model: nn.Module = auto_class.from_config(config, dtype=torch.float32, trust_remote_code=False)
        return model

    if torch.get_default_device().type != "meta":
        with torch.device("meta"):
            size = sum(parameter.numel() * parameter.element_size() for parameter in build().parameters())
        check_memory(size, f"model '{reference}'", ModelError)
    return build()


@contextmanager
def offline() -> Iterator[None]:
    """Switch the network access of transformers and its libraries off for a while, by their own switches."""
    constants = importlib.import_module("huggingface_hub.constants")
    hub = importlib.import_module("transformers.utils.hub")
    switches = [(constants, "HF_HUB_OFFLINE")]
    if hasattr(hub, "_is_offline_mode"):  # transformers 4 copies it when it is imported
        switches.append((hub, "_is_offline_mode"))
    previous = [getattr(module, name) for module, name in switches]
    try:
        for module, name in switches:
            setattr(module, name, True)
        yield
    finally:
        for (module, name), value in zip(switches, previous, strict=True):
            setattr(module, name, value)


@contextmanager
def _faults_named(text: str) -> Iterator[None]:
    """Turn any exception, as a value of a wrong kind causes it, into a `ModelError` of one sentence that begins with `text`."""
    try:
        yield
    except Exception as fault:
        reason = " ".join(str(fault).split()).rstrip(".:") or "no reason given"
        raise ModelError(f"{text}: {type(fault).__name__}: {reason}.") from fault


def configured_task(path: str) -> str:
    """Return the task of a configuration's model type."""
    model_type = read_config(Path(path)).model_type
    return next(task for task, names in MODEL_TYPES.items() if model_type in names)


def configured_vocabulary(path: str) -> int:
    """Return the number of tokens of a configuration's vocabulary."""
    return int(read_config(Path(path)).vocab_size)


def read_config(path: Path) -> Any:
    """Return the configuration in a JSON file, which is checked before transformers gets it."""
    transformers: Any = load_transformers()
    values = read_values(path, transformers)
    with offline(), _faults_named(f"the configuration in '{path}' is not allowed"):
        return transformers.CONFIG_MAPPING[values["model_type"]].from_dict(values)


def _fit_images(config: Any, classes: int, image: tuple[int, int, int]) -> None:
    config.num_labels = classes
    for name, value in (("num_channels", image[0]), ("image_size", image[1])):
        if hasattr(config, name):
            setattr(config, name, value)


def _fit_text(config: Any, vocabulary: int, length: int, reference: str) -> None:
    """Set the vocabulary, remove special tokens that it does not have, and make the model causal."""
    config.vocab_size = vocabulary
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id"):
        if isinstance(token := getattr(config, name, None), int) and token >= vocabulary:
            setattr(config, name, None)
    config.use_cache = False
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    most = getattr(config, "max_position_embeddings", None)
    if isinstance(most, int) and most < length:
        raise ModelError(f"'{reference}' takes at most {most} positions; the sequences have {length} bytes.")


def _logits(model: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
    """A forward hook that replaces a model's output by its logits."""
    return getattr(output, "logits", output)


def _mask_without_values(model: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """A forward pre-hook that passes a mask on the meta device, where transformers could not compute one from values."""
    tokens = inputs[0] if inputs else None
    if not isinstance(tokens, Tensor) or not tokens.is_meta:
        return None
    length = tokens.shape[1]
    return inputs, {"attention_mask": torch.zeros(1, 1, length, length, device="meta"), **options}


MODEL_TYPES = {
    IMAGES: (
        "beit bit convnext convnextv2 cvt data2vec-vision dinov2 dinov2_with_registers efficientnet focalnet hgnet_v2 hiera "
        "ijepa mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 poolformer pvt pvt_v2 regnet resnet segformer swiftformer swin "
        "swinv2 vit vit_msn"
    ).split(),
    LANGUAGE: (
        "bert bert-generation biogpt bloom camembert codegen cohere ctrl data2vec-text electra ernie falcon gemma gemma2 glm "
        "gpt2 gpt_bigcode gpt_neo gpt_neox gptj granite helium llama megatron-bert mistral olmo olmo2 openai-gpt opt persimmon "
        "phi phi3 qwen2 qwen3 rembert roberta roberta-prelayernorm roformer smollm3 stablelm starcoder2 xglm xlm-roberta"
    ).split(),
}
"""The allowed model types by task: those whose code reads no files, contacts no hosts and imports no further kernels."""
IGNORED = frozenset(
    "_name_or_path architectures dtype finetuning_task gradient_checkpointing id2label label2id n_ctx num_labels "
    "output_attentions output_hidden_states output_past pretraining_tp problem_type return_dict task_specific_params "
    "torch_dtype torchscript transformers_version".split()
)
"""Fields that many files have and that do not affect the model here: they are not passed to transformers."""
COMMON = frozenset(
    "add_cross_attention bos_token_id chunk_size_feed_forward cls_token_id eos_token_id is_decoder model_type pad_token_id "
    "partial_rotary_factor rope_parameters rope_scaling rope_theta sep_token_id tie_word_embeddings use_cache".split()
)
"""Fields of any model type, whether or not its class declares them."""

WORD = re.compile(r"[A-Za-z0-9_-]{0,64}")
"""Text in a configuration, such as the name of an activation: never a path, an address or the name of a repository."""
LARGEST = 2**24
"""The largest number: no size, number of positions or frequency of a model is larger."""
MOST_PARTS = 1024
"""The most layers, blocks, heads or items of a list, since each is built one by one."""
DEEPEST = 3
"""The deepest nesting of lists and tables in one field."""
_COUNTS_PARTS = re.compile(r"layer|depth|block|head|stage|expert|group|branch|repeat")


def read_values(path: Path, transformers: Any) -> dict[str, Any]:
    """Return the fields in the JSON file `path` that transformers may get; raise on any other."""
    text = read_text(path, "the configuration of a model", ModelError)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"cannot read the configuration of a model in '{path}': {error}.") from None
    model_type = values.get("model_type") if isinstance(values, dict) else None
    if not isinstance(model_type, str):
        raise ModelError(f"'{path}' is not a configuration of a model of transformers: it has no model_type.")
    check_model_type(model_type)
    if model_type not in transformers.CONFIG_MAPPING:
        raise ModelError(f"the installed transformers {transformers.__version__} has no model_type '{model_type}'.")
    declared = declared_fields(transformers.CONFIG_MAPPING[model_type], transformers.PretrainedConfig)
    fields = {name: value for name, value in values.items() if name not in IGNORED}
    for name, value in fields.items():
        if name not in declared:
            fault = unknown_in(model_type, "field that a file may set", name, declared)
            raise ModelError(f"the configuration in '{path}' is not allowed: {fault}")
        if wrong := _fault(name, value):
            raise ModelError(f"the configuration in '{path}' is not allowed: {wrong}")
    return fields


def check_model_type(model_type: str) -> None:
    """Raise on a model type that is not built from a file."""
    if model_type.startswith("timm"):
        raise ModelError(f"model_type '{model_type}' is not built from a file; name a model of timm as timm:NAME.")
    known = [name for names in MODEL_TYPES.values() for name in names]
    if model_type not in known:
        raise unknown_in("adagp", "model_type", model_type, known)


def declared_fields(config_class: Any, base: Any) -> set[str]:
    """Return the names that a configuration class declares itself, with their aliases, and those of any model type."""
    names = _parameters(config_class) - _parameters(base) | set(getattr(config_class, "attribute_map", {}))
    return {name for name in names if not name.startswith("_")} | COMMON


def _parameters(config_class: Any) -> set[str]:
    if dataclasses.is_dataclass(config_class):  # transformers 5
        return {field.name for field in dataclasses.fields(config_class)}
    return set(inspect.signature(config_class.__init__).parameters) - {"self", "kwargs"}


def _fault(name: str, value: Any, depth: int = 0) -> str | None:
    """Return what is wrong with the value of the field `name`; None if it may be used."""
    if not isinstance(value, list | dict):
        return _scalar_fault(name, value)
    if depth == DEEPEST:
        return f"'{name}' is nested more than {DEEPEST} levels deep."
    if len(value) > MOST_PARTS:
        return f"'{name}' has {len(value):,} items; at most {MOST_PARTS:,} are allowed."
    pairs = value.items() if isinstance(value, dict) else ((name, item) for item in value)
    return next(filter(None, (_fault(inner, item, depth + 1) for inner, item in pairs)), None)


def _scalar_fault(name: str, value: str | float | None) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return None if WORD.fullmatch(value) else f"'{name}' is {_shortened(value)}; it must be one word."
    most = MOST_PARTS if isinstance(value, int) and _COUNTS_PARTS.search(name) else LARGEST
    in_range = math.isfinite(value) and abs(value) <= most
    return None if in_range else f"'{name}' is {_shortened(value)}; it must be from -{most:,} to {most:,}."


def _shortened(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
