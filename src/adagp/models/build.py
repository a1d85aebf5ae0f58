"""Builds a model by its name: one of the table, of a library, or of the user's own function. Torch is imported late.

Models of libraries are named `timm:NAME`, `torchvision:NAME` or `hf:PATH/config.json`, and have random weights. A function in a
module of timm or torchvision (`torchvision.models:resnet18`) means the model of that name: these libraries use other argument
names for classes, channels and sizes.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MethodType
from typing import TYPE_CHECKING, Any

from adagp.core.memory import check_memory
from adagp.core.registry import faults_as, import_reference
from adagp.errors import ModelError, OptionError
from adagp.models.registry import IMAGES, LANGUAGE, MODELS, ModelInfo

if TYPE_CHECKING:
    from torch import nn


BUILDERS = {
    "timm": "adagp.models.vision:timm_model",
    "torchvision": "adagp.models.vision:torchvision_model",
    "hf": "adagp.models.huggingface:transformers_model",
}
"""The functions that build the models of each library, called with a `ZooModel`, `classes`, `image`, `task` and `length`."""


@dataclass(frozen=True)
class ZooModel:
    """A model of a library; `reference` is the name that the user wrote, `name` its name in the library (hf: its file)."""

    reference: str
    library: str
    name: str

    @property
    def builder(self) -> str:
        """The function that builds it, as `package.module:function`."""
        return BUILDERS[self.library]


def find_in_zoo(reference: str) -> ZooModel | None:
    """Return the model of a library that `reference` names; None if it names none."""
    package, colon, name = reference.partition(":")
    library = package.partition(".")[0]
    known = bool(colon) and library in BUILDERS and (package == library or library != "hf")
    return ZooModel(reference, library, name) if known else None


def unknown_in(library: str, what: str, name: str, known: Collection[str]) -> ModelError:
    """Return the error for a name that `library` does not have; it lists the nearest ones, since there are many."""
    near = get_close_matches(name.lower(), known, n=3)
    hint = f" The nearest names: {', '.join(near)}." if near else ""
    return ModelError(f"{library} has no {what} '{name}' among its {len(known)}.{hint}")


def import_function(reference: str) -> Callable[..., Any]:
    """Return the function that `reference` names as `package.module:function`."""
    function: Callable[..., Any] = import_reference(
        reference, what="a model of your own", kind="function", error=ModelError
    )
    return function


def parameters_of(function: Callable[..., Any], reference: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of `function`; raise if they cannot be inspected."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise ModelError(f"'{reference}' has no readable signature; a model is built by a function.") from None


def accepted(function: Callable[..., Any], options: Mapping[str, Any], reference: str) -> dict[str, Any]:
    """Return those of `options` that `function` accepts by keyword: all, if it takes `**options`.

    A parameter without default that is not among `options` is an error.
    """
    parameters = parameters_of(function, reference).values()
    by_keyword = [item for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)]
    for item in by_keyword:
        if item.default is item.empty and item.name not in options:
            raise ModelError(
                f"'{reference}' needs the argument '{item.name}', which has no default; available are {', '.join(options)}."
            )
    if any(item.kind is item.VAR_KEYWORD for item in parameters):
        return dict(options)
    return {item.name: options[item.name] for item in by_keyword if item.name in options}


Image = tuple[int, ...]
LENGTH = 128
"""Default length of a sequence in tokens."""


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
    """Return a new model of `task` for `classes` classes and images of shape `image` (channels, height, width).

    For language the classes are the tokens, and `length` is the length of a sequence. `width` scales the channels of every
    hidden layer, for small machines. The weights are drawn with torch's global random state on the default device
    (`with torch.device("meta")` allocates nothing). `name` is one of `MODELS`; a model of a library (see
    `adagp.models.build`); or `package.module:function` for a function of your own, called with the keyword arguments it
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

    builder = import_function(info.builder)
    model_options = info.keywords(options)
    if info.task == IMAGES:
        if info.ready:
            ready: nn.Module = builder(name=info.name, classes=classes, image=image, width=width, **model_options)
            return ready
        with torch.device("meta"):
            network: nn.Module = builder(name=info.name, classes=classes, image=image, width=width, **model_options)
        if torch.get_default_device().type != "meta":
            size = sum(parameter.numel() * parameter.element_size() for parameter in network.parameters())
            check_memory(size, f"model '{info.name}' with {classes:,} classes and width {width:g}", ModelError)
        return materialise(network)
    outputs = {"vocabulary" if info.task == LANGUAGE else "classes": classes}
    model: nn.Module = builder(**outputs, width=width, **model_options)
    return model


def _build_zoo(zoo: ZooModel, classes: int, image: Image, width: float, task: str, length: int) -> "nn.Module":
    if width != 1:
        raise ModelError(
            f"'{zoo.reference}' has fixed widths from its library; it cannot be built with width {width:g}."
        )
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
    if task == IMAGES:
        check_scores(model, name, classes, image)
    elif task == LANGUAGE:
        check_next_tokens(model, name, classes, length)


def _check_options(classes: int, image: Image, width: float) -> None:
    if classes < 2:
        raise OptionError(f"a model needs 2 classes or more; got {classes}.")
    if min(image) < 1:
        raise OptionError(f"image {image} is not allowed; it must be channels, height and width, each 1 or more.")
    if not 0 < width < float("inf"):
        raise OptionError(f"width {width} is not allowed; it must be above 0 (1 is the model as published).")


def _checked_info(name: str, image: Image, task: str) -> ModelInfo:
    info = MODELS[name]
    if info.task != task:
        able = [model for model in MODELS if MODELS[model].task == task]
        raise ModelError(f"model '{name}' is for the task {info.task}, not {task}; choose from: {', '.join(able)}.")
    if min(image[1:]) < info.smallest:
        raise ModelError(
            f"model '{name}' needs images of at least {info.smallest}x{info.smallest} pixels; "
            f"got {image[1]}x{image[2]}."
        )
    return info


def check_scores(model: "nn.Module", name: str, classes: int, image: tuple[int, ...]) -> None:
    """Raise if a model does not turn one image into one score per class; its training mode is kept."""
    import torch

    from adagp.layers.eval_mode import evaluation_mode

    device = next((tensor.device for tensor in model.parameters()), torch.get_default_device())
    size = "x".join(str(length) for length in image)
    errors = faults_as(ModelError, f"'{name}' cannot take images of {size}")
    with errors, evaluation_mode(model), torch.no_grad():  # batch norm must not change its statistics
        scores = model(torch.zeros(1, *image, device=device))
    if not isinstance(scores, torch.Tensor) or scores.ndim != 2:
        output = f"shape {tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise ModelError(f"'{name}' returns {output} for one image of {size}; it must return (1, {classes}).")
    if scores.shape[1] != classes:
        raise ModelError(f"'{name}' gives scores for {scores.shape[1]} classes; the data has {classes}.")


def check_next_tokens(model: "nn.Module", name: str, vocabulary: int, length: int) -> None:
    """Raise if a model does not score the next token at each position, or looks ahead at later tokens."""
    import torch

    from adagp.layers.eval_mode import evaluation_mode

    device = next((tensor.device for tensor in model.parameters()), torch.get_default_device())
    tokens = torch.zeros(2, length, dtype=torch.long, device=device)
    tokens[1, -1] = 1  # the samples differ only in their last token
    try:
        with evaluation_mode(model), torch.no_grad():
            scores = model(tokens)
    except Exception as fault:  # the user's code may fail in any way
        raise ModelError(f"'{name}' cannot take sequences of {length}: {type(fault).__name__}: {fault}") from fault
    expected = (2, length, vocabulary)
    output = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
    if output != expected:
        raise ModelError(f"'{name}' returns {output} for two sequences of {length}; it must return {expected}.")
    if device.type != "meta" and not torch.allclose(scores[0, :-1], scores[1, :-1], rtol=1e-4, atol=1e-5):
        raise ModelError(f"'{name}' is not causal: its scores before the last token depend on that token.")


def materialise(model: "nn.Module") -> "nn.Module":
    """Move `model` from the meta device to the default device with fresh weights, in place.

    All models of the table are initialised alike: convolutions with He's normal distribution over their outputs, as
    torchvision's ResNet and VGG (unless their class overrides `reset_parameters`), everything else with torch's default. With
    "meta" as the default device the model stays on the meta device.
    """
    import torch
    from torch import nn

    device = torch.get_default_device()
    if device.type == "meta":
        return model
    model.to_empty(device=device)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d) and type(layer).reset_parameters is nn.Conv2d.reset_parameters:
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(reset := getattr(layer, "reset_parameters", None), MethodType):
            reset()
        elif any(True for _ in layer.parameters(recurse=False)):
            raise ModelError(
                f"{type(layer).__name__} has parameters of its own but no reset_parameters(), which initialises the "
                f"layers of models in the table of models."
            )
    return model
