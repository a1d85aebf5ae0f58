"""The one place that imports transformers: models from a configuration file, with random weights. Nothing is fetched."""

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from adagp.core.memory import check_memory
from adagp.errors import ModelError
from adagp.models.build import ZooModel
from adagp.models.huggingface_config import MODEL_TYPES, read_values
from adagp.models.registry import IMAGES, LANGUAGE
from adagp.models.vision import load_torchvision

CLASSES = {IMAGES: "AutoModelForImageClassification", LANGUAGE: "AutoModelForCausalLM"}
"""Which of transformers' classes does a task."""


def load_transformers() -> ModuleType:
    """Import transformers, which imports torchvision where that is installed."""
    if importlib.util.find_spec("transformers") is None:
        raise ModelError("transformers is needed here and is not installed: pip install '.[hf]'.")
    if importlib.util.find_spec("torchvision") is not None:
        load_torchvision()
    return importlib.import_module("transformers")


def transformers_model(
    zoo: ZooModel, *, classes: int, image: tuple[int, int, int], task: str, length: int
) -> nn.Module:
    """Return the model of a configuration file for the task, adapted to its classes, images or sequences.

    It answers with its logits alone, by a forward hook: its parameters keep transformers' names.
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
    """Turn whatever a value of a wrong kind leads to into one sentence that begins with `text`."""
    try:
        yield
    except Exception as fault:
        reason = " ".join(str(fault).split()).rstrip(".:") or "no reason given"
        raise ModelError(f"{text}: {type(fault).__name__}: {reason}.") from fault


def configured_task(path: str) -> str:
    """Return the task that a configuration's kind of model is made for."""
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
    """Set the vocabulary, forget special tokens that it does not have, and let no position see a later one."""
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
    """A forward hook: of a model's answers, keep the scores."""
    return getattr(output, "logits", output)


def _mask_without_values(model: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """A hook before the forward pass: on the meta device, give a mask, or transformers would look at values to make one."""
    tokens = inputs[0] if inputs else None
    if not isinstance(tokens, Tensor) or not tokens.is_meta:
        return None
    length = tokens.shape[1]
    return inputs, {"attention_mask": torch.zeros(1, 1, length, length, device="meta"), **options}
