"""Which configurations of transformers are built: known model types, known fields, plain values within limits.

A configuration may come from anywhere. In transformers some fields name code to import, files of weights to unpickle, hosts to
ask or kernels to fetch. So transformers gets only fields that the model type declares, with values that can do none of that.
"""

import dataclasses
import inspect
import json
import math
import re
from pathlib import Path
from typing import Any

from adagp.core.files import read_text
from adagp.errors import ModelError
from adagp.models.build import unknown_in
from adagp.models.registry import IMAGES, LANGUAGE

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
"""The model types that are built, by task: those whose code reads neither files nor hosts, and imports no further kernels."""
IGNORED = frozenset(
    "_name_or_path architectures dtype finetuning_task gradient_checkpointing id2label label2id n_ctx num_labels "
    "output_attentions output_hidden_states output_past pretraining_tp problem_type return_dict task_specific_params "
    "torch_dtype torchscript transformers_version".split()
)
"""Fields that many files have and that decide nothing here: transformers does not get them."""
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
"""Layers, blocks, heads or items of a list at most: each is built one by one."""
DEEPEST = 3
"""Nesting of lists and tables in one field at most."""
_COUNTS_PARTS = re.compile(r"layer|depth|block|head|stage|expert|group|branch|repeat")


def read_values(path: Path, transformers: Any) -> dict[str, Any]:
    """Return the fields in the JSON file `path` that transformers may get; raise on any other."""
    try:
        values = json.loads(read_text(path, "the configuration of a model", ModelError))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"cannot read the configuration of a model in '{path}': {error}.") from None
    model_type = values.get("model_type") if isinstance(values, dict) else None
    if not isinstance(model_type, str):
        raise ModelError(f"'{path}' is no configuration of a model of transformers: it has no model_type.")
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
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return None if WORD.fullmatch(value) else f"'{name}' is {_shortened(value)}; it must be one word."
    if isinstance(value, int | float):
        most = MOST_PARTS if isinstance(value, int) and _COUNTS_PARTS.search(name) else LARGEST
        in_range = math.isfinite(value) and abs(value) <= most
        return None if in_range else f"'{name}' is {_shortened(value)}; it must be from -{most:,} to {most:,}."
    if depth == DEEPEST:
        return f"'{name}' is nested more than {DEEPEST} levels deep."
    if len(value) > MOST_PARTS:
        return f"'{name}' has {len(value):,} items; at most {MOST_PARTS:,} are allowed."
    pairs = value.items() if isinstance(value, dict) else ((name, item) for item in value)
    return next(filter(None, (_fault(inner, item, depth + 1) for inner, item in pairs)), None)


def _shortened(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
