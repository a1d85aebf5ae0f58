"""The models as rows of a table: their size, their sites, and the predictor they need."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from adagp.models.example import build_example, task_of
from adagp.models.measure import measure
from adagp.models.registry import DETECTION, IMAGES, LANGUAGE, MODELS, ModelInfo
from adagp.models.tokens import BYTES
from adagp.models.zoo import find_in_zoo
from adagp.predictor.network import PredictorNetwork
from adagp.sites import survey

CLASSES = {IMAGES: 1000, LANGUAGE: BYTES}
"""Classes of a described model by task, where they are not Pascal VOC's 20."""


@dataclass(frozen=True)
class ModelRow:
    """A model with its size: multiply-accumulates of one sample's forward pass, and what ADA-GP makes of it.

    `largest_site` has the most weights; `predictor_parameters` follow from the widest row of any site's gradient.
    """

    name: str
    task: str
    description: str
    source: str
    image: tuple[int, ...] | None
    classes: int
    parameters: int
    macs: int
    sites: int
    largest_site: str
    largest_site_weights: int
    predictor_parameters: int


def describe_models(
    names: Iterable[str] | None = None,
    *,
    image: tuple[int, ...] | None = None,
    classes: int | None = None,
    width: float = 1.0,
) -> list[ModelRow]:
    """Return a row for each of `names`, or for all models; `image` None means each model's usual input.

    The models are built on the meta device: nothing is allocated, nothing is computed.
    """
    return [_row(name, image, classes, width) for name in (MODELS if names is None else names)]


def _info(name: str) -> ModelInfo:
    """Return what is known of a model: of the table, of a library, or a function of the user's own."""
    if ":" not in name:
        return MODELS[name]
    task, zoo = task_of(name), find_in_zoo(name)
    image = (3, 224, 224) if task in (IMAGES, DETECTION) else None
    return ModelInfo(name, task, name, "yours" if zoo is None else zoo.library, builder=name, image=image)


def _row(name: str, image: tuple[int, ...] | None, classes: int | None, width: float) -> ModelRow:
    info = _info(name)
    shape = None if info.image is None else image or info.image
    count = classes or CLASSES.get(info.task, 20)
    with torch.device("meta"):
        example = build_example(name, classes=count, image=shape, width=width)
        size = measure(example.model, *example.inputs)
        sites = survey(example.model).sites
        predictor = PredictorNetwork(max(site.width for site in sites))
    largest = max(sites, key=lambda site: site.weight.numel())
    return ModelRow(
        name=name,
        task=info.task,
        description=info.description,
        source=info.source,
        image=shape,
        classes=count,
        parameters=size.parameters,
        macs=size.macs,
        sites=len(sites),
        largest_site=largest.name,
        largest_site_weights=largest.weight.numel(),
        predictor_parameters=sum(parameter.numel() for parameter in predictor.parameters()),
    )
