"""Weights of a model: the first ones, for a network on the meta device, and those from a file with a state_dict."""

from collections.abc import Mapping
from pathlib import Path
from types import MethodType

import torch
from torch import Tensor, nn

from adagp.core.pickle_screen import check_torch_archive
from adagp.errors import ModelError, OptionError


class ZeroConv2d(nn.Conv2d):
    """A convolution whose weight starts at zero."""

    def reset_parameters(self) -> None:
        """Set weight and bias to zero."""
        nn.init.zeros_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def materialise(model: nn.Module) -> nn.Module:
    """Move `model` from the meta device to the default device with fresh weights, in place.

    All our models start alike: convolutions with He's normal distribution over their outputs, as
    torchvision's ResNet and VGG do, everything else as torch does by default. With "meta" as the default
    device the model stays as it is.
    """
    device = torch.get_default_device()
    if device.type == "meta":
        return model
    model.to_empty(device=device)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d) and not isinstance(layer, ZeroConv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(reset := getattr(layer, "reset_parameters", None), MethodType):
            reset()
        elif any(True for _ in layer.parameters(recurse=False)):
            raise ModelError(
                f"{type(layer).__name__} has parameters of its own but no reset_parameters(), by which layers of a model "
                "in the table of models get their first values."
            )
    return model


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a file by name. Nothing in it is run."""
    if not path.is_file():
        raise OptionError(f"there is no file of weights at '{path}'.")
    try:
        size = check_torch_archive(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a foreign file can make the reader fail in any way
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OptionError(f"cannot read the weights '{path}': {reason}") from None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise OptionError(f"'{path}' holds no state_dict: a table of tensors by name, as a run's model.pt.")
    for name, tensor in state.items():
        fault = not_dense(tensor)
        if fault is None and tensor.numel() * tensor.element_size() > size:
            fault = "larger than the file"
        if fault:
            raise OptionError(f"cannot read the weights '{path}': '{name}' is {fault}; weights must be plain tensors.")
    return state


def not_dense(tensor: Tensor) -> str | None:
    """Return in words what keeps a tensor from being plain numbers in memory; None if nothing does."""
    if tensor.is_quantized:
        return "quantised"
    if tensor.is_nested or tensor.layout != torch.strided:
        return "nested" if tensor.is_nested else "sparse"
    if tensor.device.type != "cpu":
        return f"on the device {tensor.device.type}"
    return None if type(tensor) in (Tensor, nn.Parameter) else f"of type {type(tensor).__name__}"


def load_weights(model: nn.Module, state: Mapping[str, Tensor], what: str, path: str | None) -> None:
    """Load weights into a model; raise on those of another model, naming the first that does not fit."""
    own = model.state_dict()
    for name in [*own, *state]:
        shapes = [_shape(table[name]) if name in table else None for table in (state, own)]
        if shapes[0] != shapes[1]:
            stored, needed = (shape or "not there" for shape in shapes)
            raise OptionError(
                f"the weights in '{path}' do not fit {what}: '{name}' is {stored} in the file, and {needed} in the model."
            )
    model.load_state_dict(dict(state))


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"
