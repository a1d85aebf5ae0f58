"""The models as rows of a table."""

from collections.abc import Iterable
from dataclasses import dataclass

from adagp.models.build import build_model
from adagp.models.registry import IMAGES, MODELS, ModelInfo


@dataclass(frozen=True)
class ModelRow:
    """A model with its size; `parameters` and `macs` (of one image) are None for tasks other than images."""

    name: str
    task: str
    description: str
    source: str
    image: tuple[int, int, int] | None
    classes: int | None
    parameters: int | None
    macs: int | None


def describe_models(
    names: Iterable[str] | None = None,
    *,
    image: tuple[int, int, int] | None = None,
    classes: int = 1000,
    width: float = 1.0,
) -> list[ModelRow]:
    """Return a row for each of `names`, or for all models; `image` None means each model's usual input.

    The models are built on the meta device: nothing is allocated, nothing is computed.
    """
    return [_row(MODELS[name], image, classes, width) for name in (MODELS if names is None else names)]


def _row(info: ModelInfo, image: tuple[int, int, int] | None, classes: int, width: float) -> ModelRow:
    shape = image or info.image
    if info.task != IMAGES or shape is None:
        return ModelRow(info.name, info.task, info.description, info.source, None, None, None, None)
    import torch

    from adagp.models.measure import measure

    with torch.device("meta"):
        size = measure(build_model(info.name, classes=classes, image=shape, width=width), shape)
    return ModelRow(info.name, info.task, info.description, info.source, shape, classes, size.parameters, size.macs)
