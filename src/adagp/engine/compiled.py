"""A model that is compiled, hooks and all."""

import os
import shutil

import torch
from torch import nn

from adagp.errors import OptionError


def compile_model(model: nn.Module, backend: str) -> None:
    """Compile the `forward` of `model` with torch's compiler; its names and its `state_dict` stay as they are.

    The hooks must be on its layers before: what the sources watch becomes part of the compiled code. It is made in the first
    batch of each kind (with a backward pass, and without), which takes a while.
    """
    if backend == "inductor" and next(model.parameters()).device.type == "cpu":
        _require_compiler()
    # Not model.compile(): that would take in the hooks on the model itself, which switch autograd on and off.
    model.forward = torch.compile(model.forward, backend=backend)


def _require_compiler() -> None:
    named = os.environ.get("CXX")
    names = [named] if named else ["g++", "clang++"]
    if not any(shutil.which(name) for name in names):
        raise OptionError(
            f"compiling a model for the CPU needs a C++ compiler; {' and '.join(names)} cannot be found. "
            "Install one, name it in the environment variable CXX, or do not compile."
        )
