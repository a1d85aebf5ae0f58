"""Calling a model with a batch of inputs."""

from collections.abc import Mapping
from typing import Any

from torch import nn


def call(model: nn.Module, inputs: Any) -> Any:
    """Return what `model` makes of `inputs`: a tuple is passed as separate arguments, a mapping by name."""
    if isinstance(inputs, tuple):
        return model(*inputs)
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
