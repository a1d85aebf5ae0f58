"""The one place that imports transformers: models from a configuration file, with random weights. Nothing is fetched."""

import importlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from adagp.core.files import read_text
from adagp.errors import ModelError
from adagp.models.build import ZooModel, unknown_in
from adagp.models.registry import IMAGES, LANGUAGE
from adagp.models.vision import load_torchvision

CLASSES = {IMAGES: "AutoModelForImageClassification", LANGUAGE: "AutoModelForCausalLM"}
"""Which of transformers' classes does a task."""


def load_transformers() -> ModuleType:
    """Import transformers, which imports torchvision where that is installed."""
    if importlib.util.find_spec("transformers") is None:
        raise ModelError("transformers is needed here and is not installed: pip install 'adagp[hf]'.")
    if importlib.util.find_spec("torchvision") is not None:
        load_torchvision()
    return importlib.import_module("transformers")


def transformers_model(
    zoo: ZooModel, *, classes: int, image: tuple[int, int, int], task: str, length: int
) -> nn.Module:
    """Return the model of a configuration file for the task, adapted to its classes, images or sequences.

    It answers with its logits alone, by a forward hook: its parameters keep transformers' names.
    """
    transformers: Any = load_transformers()
    if task not in CLASSES:
        raise ModelError(f"'{zoo.reference}' cannot do the task {task}; transformers' models do: {', '.join(CLASSES)}.")
    config = read_config(Path(zoo.name))
    if task == IMAGES:
        _fit_images(config, classes, image)
    else:
        _fit_text(config, classes, length, zoo.reference)
    try:
        model: nn.Module = getattr(transformers, CLASSES[task]).from_config(config, dtype=torch.float32)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".:")
        raise ModelError(f"'{zoo.reference}' cannot be built for the task {task}: {reason}.") from error
    model.register_forward_hook(_logits)
    if task == LANGUAGE:
        model.register_forward_pre_hook(_mask_without_values, with_kwargs=True)
    return model


def configured_task(path: str) -> str:
    """Return the task that a configuration's kind of model is made for: images, or else language."""
    load_transformers()
    auto: Any = importlib.import_module("transformers.models.auto.modeling_auto")
    kind = read_config(Path(path)).model_type
    return IMAGES if kind in auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES else LANGUAGE


def read_config(path: Path) -> Any:
    """Return the configuration in a JSON file. Code that a file refers to is never run."""
    try:
        values = json.loads(read_text(path, "the configuration of a model", ModelError))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"cannot read the configuration of a model in '{path}': {error}.") from None
    kind = values.get("model_type") if isinstance(values, dict) else None
    if not isinstance(kind, str):
        raise ModelError(f"'{path}' is no configuration of a model of transformers: it has no model_type.")
    known: Any = load_transformers().CONFIG_MAPPING
    if kind not in known:
        raise unknown_in("transformers", "model_type", kind, list(known))
    try:
        return known[kind].from_dict(values)
    except Exception as error:  # a value of a wrong kind fails in any way
        reason = " ".join(str(error).split())
        raise ModelError(f"the configuration in '{path}' is refused: {type(error).__name__}: {reason}") from error


def _fit_images(config: Any, classes: int, image: tuple[int, int, int]) -> None:
    config.num_labels = classes
    for name, value in (("num_channels", image[0]), ("image_size", image[1])):
        if hasattr(config, name):
            setattr(config, name, value)


def _fit_text(config: Any, vocabulary: int, length: int, reference: str) -> None:
    """Set the vocabulary, forget special tokens that it does not have, and let no position see a later one."""
    config.vocab_size = vocabulary
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id"):
        if isinstance(one := getattr(config, name, None), int) and one >= vocabulary:
            setattr(config, name, None)
    config.use_cache = False
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    most = getattr(config, "max_position_embeddings", None)
    if isinstance(most, int) and most < length:
        raise ModelError(f"'{reference}' takes at most {most} positions; the sequences have {length} bytes.")


def _logits(model: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
    """A forward hook: of a model's answers, keep the scores."""
    return getattr(output, "logits", output)


def _mask_without_values(model: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """A hook before the forward pass: on the meta device, give a mask, or transformers would look at values to make one."""
    tokens = inputs[0] if inputs else None
    if not isinstance(tokens, Tensor) or not tokens.is_meta:
        return None
    length = tokens.shape[1]
    return inputs, {"attention_mask": torch.zeros(1, 1, length, length, device="meta"), **options}
