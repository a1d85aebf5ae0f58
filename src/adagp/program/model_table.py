"""The models as rows of a table: their size, their sites, and the predictor they need.

Results for built-in models are cached (`adagp.core.cache`), so torch is imported only for new rows.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from adagp.core.cache import cached
from adagp.core.registry import loaded_plugins
from adagp.hw.accelerator import PredictorShape
from adagp.models.build import find_in_zoo
from adagp.models.registry import BYTES, DETECTION, IMAGES, LANGUAGE, MODELS, ModelInfo, is_ours

CLASSES = {IMAGES: 1000, LANGUAGE: BYTES}
"""Classes of a described model by task, where neither the model has a number of its own nor they are Pascal VOC's 20."""


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
    image_size: int | None = None,
    classes: int | None = None,
    width: float = 1.0,
    tell: Callable[[str], None] = lambda name: None,
) -> list[ModelRow]:
    """Return a row for each of `names`, or for all models; None means each model's usual input and classes.

    `image_size` is the side of square images with each model's usual channels.
    The models are built on the meta device: nothing is allocated, nothing is computed. `tell` is called with each name
    before its turn.
    """
    chosen = list(MODELS if names is None else names)
    # code of the user's own may add rules for layers, which decide what a site is
    may_keep = not loaded_plugins() and all(":" not in name for name in chosen)
    rows = []
    for name in chosen:
        tell(name)
        info = model_info(name)
        shape = image_shape(info, image, image_size)
        count = classes or info.classes or CLASSES.get(info.task, 20)
        find = partial(_measured, info, shape, count, width)
        if may_keep and is_ours(info):
            key = {"name": name, "image": shape, "classes": count, "width": width}
            rows.append(cached("model", key, find, write=_written, read=_read))
        else:
            rows.append(find())
    return rows


def image_shape(info: ModelInfo, image: tuple[int, ...] | None, image_size: int | None) -> tuple[int, ...] | None:
    """Return the images of a model: as given, or its usual ones, if it has images."""
    if info.image is None:
        return None
    return image or ((info.image[0], image_size, image_size) if image_size else info.image)


def model_info(name: str) -> ModelInfo:
    """Return what is known of a model: of the table, of a library, or a function of the user's own."""
    if ":" not in name:
        return MODELS[name]
    from adagp.models.example import task_of

    task, zoo = task_of(name), find_in_zoo(name)
    image = (3, 224, 224) if task in (IMAGES, DETECTION) else None
    return ModelInfo(name, task, name, "yours" if zoo is None else zoo.library, builder=name, image=image)


def _written(row: ModelRow) -> str:
    return json.dumps(asdict(row))


def _read(text: str) -> ModelRow:
    values: dict[str, Any] = json.loads(text)
    image = values.pop("image")
    return ModelRow(**values, image=None if image is None else tuple(image))


def _measured(info: ModelInfo, shape: tuple[int, ...] | None, classes: int, width: float) -> ModelRow:
    import torch

    from adagp.layers.sites import survey
    from adagp.models.example import build_example, measure

    with torch.device("meta"):
        example = build_example(info.name, classes=classes, image=shape, width=width)
        size = measure(example.model, *example.inputs)
        sites = survey(example.model).sites
    largest = max(sites, key=lambda site: site.weight.numel())
    return ModelRow(
        name=info.name,
        task=info.task,
        description=info.description,
        source=info.source,
        image=shape,
        classes=classes,
        parameters=size.parameters,
        macs=size.macs,
        sites=len(sites),
        largest_site=largest.name,
        largest_site_weights=largest.weight.numel(),
        predictor_parameters=PredictorShape().parameters(max(site.width for site in sites)),
    )
