"""The one place that imports torchvision and timm; it also works if torchvision's compiled operators are missing.

A torchvision wheel built against CUDA, with a CPU-only torch, cannot load its compiled library; its
Python code then fails at import because it registers a fake kernel for an operator (`nms`) that was never
declared. Its models, transforms and data sets need no compiled operator, so it is enough to declare the two
schemas. If the library loads, nothing is declared.
"""

import importlib
import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from adagp.errors import ModelError
from adagp.models.build import ZooModel, unknown_in
from adagp.models.registry import IMAGES

Image = tuple[int, int, int]
_torch: Any = torch  # its library functions have no types
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def load_torchvision(module: str = "torchvision") -> ModuleType:
    """Import torchvision, or one of its modules, with or without its compiled operators."""
    _prepare()
    return importlib.import_module(module)


def load_timm() -> ModuleType:
    """Import timm, which imports torchvision."""
    _prepare()
    if importlib.util.find_spec("timm") is None:
        raise ModelError("timm is needed here and is not installed: pip install '.[models]'.")
    return importlib.import_module("timm")


def timm_model(zoo: ZooModel, *, classes: int, image: Image, task: str, length: int) -> nn.Module:
    """Return the model of timm with random weights for such images; models that accept the image size get it."""
    _check_task(zoo, task)
    timm: Any = load_timm()
    if not timm.is_model(zoo.name):
        raise unknown_in("timm", "model", zoo.name, timm.list_models())
    options = {"pretrained": False, "num_classes": classes, "in_chans": image[0]}
    try:
        try:
            model: nn.Module = timm.create_model(zoo.name, img_size=image[1:], **options)
        except TypeError as error:
            if "img_size" not in str(error):
                raise
            model = timm.create_model(zoo.name, **options)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise _misfit(zoo, image, error) from error
    return model


def torchvision_model(zoo: ZooModel, *, classes: int, image: Image, task: str, length: int) -> nn.Module:
    """Return torchvision's classifier with random weights for such images, without auxiliary heads."""
    _check_task(zoo, task)
    models: Any = load_torchvision("torchvision.models")
    names = models.list_models(module=models)
    if zoo.name not in names:
        raise unknown_in("torchvision", "classifier", zoo.name, names)
    options: dict[str, Any] = {"weights": None, "num_classes": classes}
    if zoo.name in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False, "init_weights": True}
    elif zoo.name.startswith("vit_"):
        options["image_size"] = image[1]
    elif zoo.name.startswith("maxvit_"):
        options["input_size"] = image[1:]
    try:
        model: nn.Module = models.get_model(zoo.name, **options)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise _misfit(zoo, image, error) from error
    _set_channels(model, image[0])
    return model


def _check_task(zoo: ZooModel, task: str) -> None:
    if task != IMAGES:
        raise ModelError(f"'{zoo.reference}' classifies images ({IMAGES}); it cannot do the task {task}.")


def _misfit(zoo: ZooModel, image: Image, error: Exception) -> ModelError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    size = "x".join(map(str, image))
    return ModelError(f"'{zoo.reference}' cannot be built for images of {size}: {reason}.")


def _set_channels(model: nn.Module, channels: int) -> None:
    """Replace the first convolution by one with this many input channels; all of torchvision's classifiers begin with one."""
    name, first = next((name, module) for name, module in model.named_modules() if isinstance(module, nn.Conv2d))
    if first.in_channels == channels:
        return
    sizes = first.out_channels, first.kernel_size, first.stride, first.padding, first.dilation
    new = nn.Conv2d(channels, *sizes, bias=first.bias is not None)  # type: ignore[arg-type]  # sizes are pairs here
    model.set_submodule(name, new)


def prepare_torchvision() -> None:
    """Make torchvision, if it is installed, ready for a library that imports it."""
    if importlib.util.find_spec("torchvision") is not None:
        _prepare()


@cache
def _prepare() -> Any:
    """Declare the missing operators once; the returned library must stay alive, and the cache keeps it."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ModelError("torchvision is needed here and is not installed: pip install '.[models]'.")
    if _compiled_operators_load(Path(spec.origin).parent):
        return None
    library: Any = _torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    return library


def _compiled_operators_load(package: Path) -> bool:
    for path in sorted(package.glob("_C*.so")) + sorted(package.glob("_C*.pyd")):
        try:
            _torch.ops.load_library(path)
        except OSError:
            return False
    return hasattr(torch.ops.torchvision, "nms")
