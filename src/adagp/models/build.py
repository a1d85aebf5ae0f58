"""From a model's name to the model."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from adagp.core.memory import check_memory
from adagp.core.references import faults_as
from adagp.errors import ModelError, OptionError
from adagp.models.references import accepted, import_function, parameters_of
from adagp.models.registry import IMAGES, LANGUAGE, MODELS, ModelInfo
from adagp.models.zoo import ZooModel, find_in_zoo

if TYPE_CHECKING:
    from torch import nn

Image = tuple[int, ...]
LENGTH = 128
"""Tokens in a sequence, where nobody says how many."""


def build_model(
    name: str,
    *,
    classes: int,
    image: Image = (3, 32, 32),
    width: float = 1.0,
    task: str = IMAGES,
    length: int = LENGTH,
    options: Mapping[str, Any] | None = None,
) -> "nn.Module":
    """Return a fresh model of `task` for `classes` classes and images of shape `image` (channels, height, width).

    For language the classes are the tokens, and `length` is that of a sequence. `width` scales the channels of every hidden
    layer, for small machines. The weights are drawn with torch's global random state on the default device
    (`with torch.device("meta")` allocates nothing). `name` is one of `MODELS`; a model of a library (see
    `adagp.models.zoo`); or `package.module:function` for a function of your own, called with the keyword arguments it
    accepts out of `classes` (or `num_classes`), `image` and `width`, and for language out of `vocabulary`, `length` and
    `width`. `options` are those of a registered model (`ModelInfo.options`); other names are ignored.
    """
    _check_options(classes, image, width)
    zoo = find_in_zoo(name)
    if zoo is not None:
        model = _build_zoo(zoo, classes, image, width, task, length)
    elif ":" in name:
        model = _build_users(name, classes, image, width, task, length)
    else:
        return _build_registered(_checked_info(name, image, task), classes, image, width, options or {})
    _try_out(model, name, classes, image, task, length)
    return model


def _build_registered(
    info: ModelInfo, classes: int, image: Image, width: float, options: Mapping[str, Any]
) -> "nn.Module":
    import torch

    from adagp.models.initialise import materialise

    builder = import_function(info.builder)
    own = info.keywords(options)
    if info.task == IMAGES:
        if info.ready:
            ready: nn.Module = builder(name=info.name, classes=classes, image=image, width=width, **own)
            return ready
        with torch.device("meta"):
            network: nn.Module = builder(name=info.name, classes=classes, image=image, width=width, **own)
        if torch.get_default_device().type != "meta":
            size = sum(parameter.numel() * parameter.element_size() for parameter in network.parameters())
            check_memory(size, f"model '{info.name}' with {classes:,} classes and width {width:g}", ModelError)
        return materialise(network)
    outputs = {"vocabulary" if info.task == LANGUAGE else "classes": classes}
    model: nn.Module = builder(**outputs, width=width, **own)
    return model


def _build_zoo(zoo: ZooModel, classes: int, image: Image, width: float, task: str, length: int) -> "nn.Module":
    if width != 1:
        raise ModelError(f"'{zoo.reference}' has the widths of its library; it cannot be built with width {width:g}.")
    builder = import_function(zoo.builder)
    model: nn.Module = builder(zoo, classes=classes, image=image, task=task, length=length)
    return model


def _build_users(reference: str, classes: int, image: Image, width: float, task: str, length: int) -> "nn.Module":
    from torch import nn

    function = import_function(reference)
    offered: dict[str, Any] = {"vocabulary": classes, "length": length, "width": width}
    if task != LANGUAGE:
        named = "num_classes" if "num_classes" in parameters_of(function, reference) else "classes"
        offered = {named: classes, "image": image, "width": width}
    options = accepted(function, offered, reference)
    if width != 1 and "width" not in options:
        raise ModelError(f"'{reference}' takes no argument 'width', so it cannot be built with width {width:g}.")
    with faults_as(ModelError, f"'{reference}' cannot be built"):
        model = function(**options)
    if not isinstance(model, nn.Module):
        raise ModelError(f"'{reference}' returned a {type(model).__name__}; it must return a torch.nn.Module.")
    return model


def _try_out(model: "nn.Module", name: str, classes: int, image: Image, task: str, length: int) -> None:
    """Refuse a model that does not do what its task asks for."""
    from adagp.models.check import check_next_tokens, check_scores

    if task == IMAGES:
        check_scores(model, name, classes, image)
    elif task == LANGUAGE:
        check_next_tokens(model, name, classes, length)


def _check_options(classes: int, image: Image, width: float) -> None:
    if classes < 2:
        raise OptionError(f"{classes} classes cannot be told apart; a model needs 2 or more.")
    if min(image) < 1:
        raise OptionError(f"image {image} is not allowed; it must be channels, height and width, each 1 or more.")
    if not 0 < width < float("inf"):
        raise OptionError(f"width {width} is not allowed; it must be above 0 (1 is the model as published).")


def _checked_info(name: str, image: Image, task: str) -> ModelInfo:
    info = MODELS[name]
    if info.task != task:
        able = [one for one in MODELS if MODELS[one].task == task]
        raise ModelError(f"model '{name}' is for the task {info.task}, not {task}; choose from: {', '.join(able)}.")
    if min(image[1:]) < info.smallest:
        raise ModelError(
            f"model '{name}' needs images of at least {info.smallest}x{info.smallest} pixels; "
            f"got {image[1]}x{image[2]}."
        )
    return info
