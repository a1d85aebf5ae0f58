"""The one place that imports torchvision and timm; it also works where compiled operators are missing.

A torchvision wheel built against CUDA, beside a torch for the CPU only, cannot load its compiled library; its
Python code then fails at import because it registers a fake kernel for an operator (`nms`) that was never
declared. Its models, transforms and data sets need no compiled operator, so declaring the two schemas is all
that is missing. Where the library loads, nothing is declared.
"""

import importlib
import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from adagp.errors import ModelError

_torch: Any = torch  # its library functions have no types
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def load_torchvision(module: str = "torchvision") -> ModuleType:
    """Import torchvision, or one of its modules, whole or not."""
    _prepare()
    return importlib.import_module(module)


def load_timm() -> ModuleType:
    """Import timm, which imports torchvision."""
    _prepare()
    if importlib.util.find_spec("timm") is None:
        raise ModelError("timm is needed here and is not installed: pip install 'adagp[models]'.")
    return importlib.import_module("timm")


def prepare_torchvision() -> None:
    """Make torchvision, if it is there, ready for a library that imports it."""
    if importlib.util.find_spec("torchvision") is not None:
        _prepare()


@cache
def _prepare() -> Any:
    """Declare the missing operators once; the returned library must stay alive, and the cache keeps it."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ModelError("torchvision is needed here and is not installed: pip install 'adagp[models]'.")
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
