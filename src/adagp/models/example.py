"""Any model by its name with an input of its kind, for measuring and tracing; best on the meta device."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adagp.errors import OptionError
from adagp.models.build import LENGTH, build_model
from adagp.models.references import import_function
from adagp.models.registry import IMAGES, LANGUAGE, MODELS, TRANSLATION
from adagp.models.tokens import BYTES
from adagp.models.zoo import find_in_zoo

ANY = "any"
"""The task of a model that is only looked at: whether it tells classes apart is not asked."""
VOCABULARY = 8_000
"""Word pieces of an example vocabulary."""
SENTENCE = 20
"""Word pieces in an example sentence; Multi30k's have about 15 words."""


@dataclass(frozen=True)
class Example:
    """A model and what it can be called with."""

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
    """Return the model `name` of whatever task with a batch of inputs. `image` None means the model's usual input.

    A function of your own may be for inputs of any shape, and its model may have any output. `task` is what it is for:
    images, if it is None. `length` is that of a sequence of bytes; `options` are the model's own.
    """
    info = MODELS[name] if ":" not in name else None
    task = task_of(name, task)
    if info is not None and task == TRANSLATION:
        tokens, own = torch.ones(batch, SENTENCE, dtype=torch.long), info.keywords(options or {})
        return Example(import_function(info.builder)(vocabulary=VOCABULARY, width=width, **own), (tokens, tokens))
    if task == LANGUAGE:
        model = build_model(name, classes=BYTES, width=width, task=task, length=length or LENGTH, options=options)
        return Example(model, (torch.ones(batch, length or LENGTH, dtype=torch.long),))
    shape = image or (info.image if info is not None else None) or (3, 32, 32)
    if info is not None and len(shape) != 3:
        raise OptionError(f"image {shape} is not allowed; it must be channels, height and width.")
    users = info is None and find_in_zoo(name) is None
    model = build_model(name, classes=classes, image=shape, width=width, task=ANY if users else task, options=options)
    return Example(model, (torch.zeros(batch, *shape),))


def task_of(name: str, task: str | None = None) -> str:
    """Return the task of the model `name`; `task` is that of functions, which do not tell, and None means images."""
    zoo = find_in_zoo(name)
    if zoo is not None and zoo.library == "hf":
        from adagp.models.huggingface import configured_task

        return configured_task(zoo.name)
    if ":" in name:
        return IMAGES if task is None or zoo is not None else task
    return MODELS[name].task
