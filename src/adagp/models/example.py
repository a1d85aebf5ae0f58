"""Any model by its name with an input of its kind, for measuring and tracing; best on the meta device."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adagp.errors import OptionError
from adagp.models.build import build_model
from adagp.models.references import import_function
from adagp.models.registry import MODELS, TRANSLATION

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
    name: str, *, classes: int, image: tuple[int, ...] | None = None, width: float = 1.0, batch: int = 1
) -> Example:
    """Return the model `name` of whatever task with a batch of inputs. `image` None means the model's usual input.

    A function of your own may be for inputs of any shape, and its model may have any output.
    """
    info = MODELS[name] if ":" not in name else None
    if info is not None and info.task == TRANSLATION:
        tokens = torch.ones(batch, SENTENCE, dtype=torch.long)
        return Example(import_function(info.builder)(vocabulary=VOCABULARY, width=width), (tokens, tokens))
    shape = image or (info.image if info is not None else None) or (3, 32, 32)
    if info is not None and len(shape) != 3:
        raise OptionError(f"image {shape} is not allowed; it must be channels, height and width.")
    task = ANY if info is None else info.task
    model = build_model(name, classes=classes, image=shape, width=width, task=task)
    return Example(model, (torch.zeros(batch, *shape),))
