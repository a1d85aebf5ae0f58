"""From a model's name to the model."""

from typing import TYPE_CHECKING

from adagp.errors import ModelError, OptionError
from adagp.memory import check_memory
from adagp.models.references import accepted, import_function
from adagp.models.registry import IMAGES, MODELS, ModelInfo

if TYPE_CHECKING:
    from torch import nn

Image = tuple[int, int, int]


def build_model(
    name: str, *, classes: int, image: Image = (3, 32, 32), width: float = 1.0, task: str = IMAGES
) -> "nn.Module":
    """Return a fresh model of `task` for `classes` classes and images of shape `image` (channels, height, width).

    `width` scales the channels of every hidden layer, for small machines. The weights are drawn with torch's
    global random state on the default device (`with torch.device("meta")` allocates nothing). `name` is one
    of `MODELS`, or `package.module:function` for a function of your own, called with the keyword arguments it
    accepts out of `classes`, `image` and `width`.
    """
    _check_options(classes, image, width)
    if ":" in name:
        return _build_users(name, classes, image, width, task)
    info = _checked_info(name, image, task)
    if task == IMAGES:
        return _build_classifier(info, classes, image, width)
    model: nn.Module = import_function(info.builder)(classes=classes, width=width)
    return model


def _build_classifier(info: ModelInfo, classes: int, image: Image, width: float) -> "nn.Module":
    import torch

    from adagp.models.initialise import materialise

    builder = import_function(info.builder)
    with torch.device("meta"):
        model: nn.Module = builder(name=info.name, classes=classes, image=image, width=width)
    if torch.get_default_device().type != "meta":
        size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        check_memory(size, f"model '{info.name}' with {classes:,} classes and width {width:g}", ModelError)
    return materialise(model)


def _build_users(reference: str, classes: int, image: Image, width: float, task: str) -> "nn.Module":
    from torch import nn

    from adagp.models.check import check_scores

    function = import_function(reference)
    options = accepted(function, {"classes": classes, "image": image, "width": width}, reference)
    if width != 1 and "width" not in options:
        raise ModelError(f"'{reference}' takes no argument 'width', so it cannot be built with width {width:g}.")
    model = function(**options)
    if not isinstance(model, nn.Module):
        raise ModelError(f"'{reference}' returned a {type(model).__name__}; it must return a torch.nn.Module.")
    if task == IMAGES:
        check_scores(model, reference, classes, image)
    return model


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
        raise ModelError(f"model '{name}' is for the task {info.task}, not {task}.")
    if min(image[1:]) < info.smallest:
        raise ModelError(
            f"model '{name}' needs images of at least {info.smallest}x{info.smallest} pixels; "
            f"got {image[1]}x{image[2]}."
        )
    return info
