"""Validates a model by its name, on the meta device: how a method will train it, and what that needs."""

from collections.abc import Mapping
from typing import Any

import torch

from adagp.core.method_options import NamedMethod
from adagp.engine.validate import Validation, validate
from adagp.models.example import build_example
from adagp.program.model_table import CLASSES, image_shape, model_info


def validate_model(
    name: str,
    method: str,
    options: Mapping[str, Any],
    *,
    batch: int,
    image: tuple[int, ...] | None = None,
    image_size: int | None = None,
    classes: int | None = None,
    width: float = 1.0,
) -> Validation:
    """Return what `adagp.validate` finds in a batch of `batch` samples, for `method` with its `options`.

    None means the model's usual input and classes, as in the table of models. Nothing is allocated, nothing is computed.
    """
    info = model_info(name)
    shape, count = image_shape(info, image, image_size), classes or info.classes or CLASSES.get(info.task, 20)
    with torch.device("meta"):
        example = build_example(name, classes=count, image=shape, width=width, batch=batch)
    optimizer = torch.optim.SGD(example.model.parameters(), lr=0.1)
    return validate(example.model, optimizer, method=NamedMethod(method, **options), sample=example.inputs)
