"""A model that is compiled, hooks and all."""

import os
import shutil
from functools import partial
from typing import Any

import torch
from torch import nn

from adagp.errors import OptionError


class CompiledForward:
    """The compiled `forward` of one module. A copy of the module, or one that comes out of a file, has its plain one."""

    def __init__(self, module: nn.Module, backend: str) -> None:
        self._module = module
        self._compiled = torch.compile(module.forward, backend=backend)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run the compiled code."""
        return self._compiled(*inputs, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (type(self._module).forward, self._module)


def compile_model(model: nn.Module, backend: str) -> None:
    """Compile the `forward` of `model` with torch's compiler; its names and its `state_dict` stay as they are.

    The hooks must be on its layers before: what the sources watch becomes part of the compiled code. It is made in the first
    batch of each kind (with a backward pass, and without), which takes a while.
    """
    if backend == "inductor" and next(model.parameters()).device.type == "cpu":
        _require_compiler()
    # Not model.compile(): that would take in the hooks on the model itself.
    model.forward = CompiledForward(model, backend)


def restore_forward(model: nn.Module) -> None:
    """Give `model` the forward of its class again, if `compile_model` has compiled it."""
    if isinstance(vars(model).get("forward"), CompiledForward):
        del model.forward


def _require_compiler() -> None:
    named = os.environ.get("CXX")
    names = [named] if named else ["g++", "clang++"]
    if not any(shutil.which(name) for name in names):
        raise OptionError(
            f"compiling a model for the CPU needs a C++ compiler; {' and '.join(names)} cannot be found. "
            "Install one, name it in the environment variable CXX, or do not compile."
        )
