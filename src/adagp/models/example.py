"""Builds any model by its name with an example input, for measuring and tracing on the meta device; and measures its size."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adagp.errors import OptionError
from adagp.layers.eval_mode import evaluation_mode
from adagp.models.build import LENGTH, build_model, find_in_zoo, import_function
from adagp.models.registry import IMAGES, LANGUAGE, MODELS, TRANSLATION, ModelInfo

ANY = "any"
"""The task of a model that is only inspected: its output is not checked."""
VOCABULARY = 8_000
"""Word pieces of an example vocabulary."""
SENTENCE = 20
"""Word pieces in an example sentence; Multi30k's have about 15 words."""


@dataclass(frozen=True)
class Example:
    """A model and example inputs for it."""

    model: nn.Module
    inputs: tuple[Tensor, ...]


def build_example(
    name: str,
    *,
    classes: int,
    image: tuple[int, ...] | None = None,
    width: float = 1.0,
    batch: int = 1,
    task: str | None = None,
    length: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Example:
    """Return the model `name`, of any task, with a batch of inputs. `image` None means the model's usual input.

    A function of the user's own may be for inputs of any shape, and its model may have any output. `task` is the task of such a
    function; None means images. For language `classes` are the tokens of the vocabulary, and `length` is the length of a
    sequence. `options` are the model's own.
    """
    info = MODELS[name] if ":" not in name else None
    task = task_of(name, task)
    if info is not None and task == TRANSLATION:
        tokens, own = torch.ones(batch, SENTENCE, dtype=torch.long), info.keywords(options or {})
        return Example(import_function(info.builder)(vocabulary=VOCABULARY, width=width, **own), (tokens, tokens))
    if task == LANGUAGE:
        length = length or LENGTH
        model = build_model(name, classes=classes, width=width, task=task, length=length, options=options)
        return Example(model, (torch.ones(batch, length, dtype=torch.long),))
    shape = _input_shape(info, image)
    users = info is None and find_in_zoo(name) is None
    model = build_model(name, classes=classes, image=shape, width=width, task=ANY if users else task, options=options)
    return Example(model, (torch.zeros(batch, *shape),))


def _input_shape(info: ModelInfo | None, image: tuple[int, ...] | None) -> tuple[int, ...]:
    if info is None:
        return image or (3, 32, 32)
    shape = image or info.image or (3, 32, 32)
    if len(shape) != 3:
        raise OptionError(f"image {shape} is not allowed; it must be channels, height and width.")
    return shape


def task_of(name: str, task: str | None = None) -> str:
    """Return the task of the model `name`. For a function of the user's own it is `task`, or images if `task` is None."""
    zoo = find_in_zoo(name)
    if zoo is not None and zoo.library == "hf":
        from adagp.models.huggingface import configured_task

        return configured_task(zoo.name)
    if ":" in name:
        return IMAGES if task is None or zoo is not None else task
    return MODELS[name].task


@dataclass(frozen=True)
class ModelSize:
    """The number of parameters, and the multiply-accumulates of convolutions and linear layers for one sample."""

    parameters: int
    macs: int


def measure(model: nn.Module, *inputs: Tensor) -> ModelSize:
    """Return the size of `model` for `inputs` of one sample. Products of two activations do not count.

    A forward pass is run in evaluation mode; on the meta device nothing is computed.
    """
    macs = 0

    def count(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        nonlocal macs
        weight = layer.weight
        assert isinstance(weight, Tensor)
        macs += output.numel() * weight[0].numel()  # weight[0]: the weights of one output number

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear)]
    handles = [layer.register_forward_hook(count) for layer in layers]
    try:
        with evaluation_mode(model), torch.no_grad():
            model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return ModelSize(sum(parameter.numel() for parameter in model.parameters()), macs)
