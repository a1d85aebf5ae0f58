"""Weights from a file: a state_dict, as a run's `model.pt` and torchvision's files have it."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from adagp.errors import OptionError


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a file by name. Nothing in it is run."""
    if not path.is_file():
        raise OptionError(f"there is no file of weights at '{path}'.")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a foreign file can make the reader fail in any way
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OptionError(f"cannot read the weights '{path}': {reason}") from None
    if not isinstance(state, dict) or not all(isinstance(one, Tensor) for one in state.values()):
        raise OptionError(f"'{path}' holds no state_dict: a table of tensors by name, as a run's model.pt.")
    return state


def load_weights(model: nn.Module, state: Mapping[str, Tensor], what: str, path: str | None) -> None:
    """Give a model its weights; refuse those of another, naming the first that does not fit."""
    own = model.state_dict()
    for name in [*own, *state]:
        shapes = [_shape(table[name]) if name in table else None for table in (state, own)]
        if shapes[0] != shapes[1]:
            given, needed = (one or "not there" for one in shapes)
            raise OptionError(
                f"the weights in '{path}' do not fit {what}: '{name}' is {given} in the file, and {needed} in the model."
            )
    model.load_state_dict(dict(state))


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"
