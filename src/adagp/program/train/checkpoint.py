"""Checkpoints: written whole or not at all, read without running foreign code, and checked part by part.

A checkpoint is a table of parts (model, optimizer, trainer, ...) with a digest of each. Digests are taken of what is to be
written and compared with what was read, so that no damage on the way passes as other numbers, wherever it happened.
Checkpoints of format 1 have no digests; they load unchecked.
"""

import hashlib
import io
import pickle
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adagp.core.files import write_atomically
from adagp.core.pickle_screen import check_torch_archive
from adagp.errors import OptionError, RunError

FORMAT = 2
WITHOUT_DIGESTS = 1
_NOT_PARTS = ("format", "digests")


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint at `path` by `state`: tensors and plain values only."""
    digests = {name: digest_of(part) for name, part in state.items()}
    write_atomically(path, _saved({"format": FORMAT, "digests": digests, **state}))


def save_weights(path: Path, model: nn.Module) -> None:
    """Write the model's plain state_dict: it loads with `torch.load`, without adagp."""
    write_atomically(path, _saved(model.state_dict()))


def _saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _read(path: Path) -> tuple[Any, int]:
    """Return what a file of torch holds, without running code of it, and its size; a foreign one can fail in any way."""
    size = check_torch_archive(path)
    return torch.load(path, map_location="cpu", weights_only=True), size


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return the parts that `save_checkpoint` wrote. A damaged file, or one of another kind, is an error."""
    if not path.is_file():
        raise RunError(f"there is no checkpoint at '{path}' yet: nothing to resume.")
    try:
        state, size = _read(path)
        _check_sizes(state, size)
    except Exception as error:
        raise RunError(
            f"cannot read the checkpoint '{path}': it is damaged or not a checkpoint ({_first_line(error)})."
        ) from None
    if not isinstance(state, dict) or state.get("format") not in (WITHOUT_DIGESTS, FORMAT):
        raise RunError(f"'{path}' is not an adagp checkpoint of format {WITHOUT_DIGESTS} or {FORMAT}.")
    parts = {name: part for name, part in state.items() if name not in _NOT_PARTS}
    if state["format"] == FORMAT:
        _compare_digests(parts, state.get("digests"), path)
    return parts


def _check_sizes(state: Any, size: int) -> None:
    """Raise on tensors and tables larger than a file of `size` bytes can hold: views and references can repeat storage."""
    for number, value in enumerate(_walk(state)):
        if isinstance(value, Tensor) and (fault := not_dense(value)):
            raise pickle.UnpicklingError(f"it holds a tensor that is {fault}")
        if number > size or (isinstance(value, Tensor) and value.numel() * value.element_size() > size):
            raise pickle.UnpicklingError("it claims more than the file can hold")


def _walk(root: Any) -> Iterator[Any]:
    waiting = [root]
    while waiting:
        value = waiting.pop()
        yield value
        if isinstance(value, dict):
            waiting += [inner for pair in value.items() for inner in pair]
        elif isinstance(value, list | tuple | set):
            waiting += value


def _compare_digests(parts: dict[str, Any], digests: Any, path: Path) -> None:
    if not isinstance(digests, dict) or digests.keys() != parts.keys():
        raise RunError(f"the checkpoint '{path}' is damaged: its parts are not those that were written.")
    for name, part in parts.items():
        if digest_of(part) != digests[name]:
            raise RunError(f"the checkpoint '{path}' is damaged: its part '{name}' is not what was written.")


def digest_of(part: Any) -> str:
    """Return a digest of tensors and plain values in tables and lists: of their kinds, shapes, order and bits."""
    digest = hashlib.sha256()
    _add(digest, part)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        digest.update(f"tensor {value.dtype} {tuple(value.shape)} ".encode())
        bits = value.detach().cpu().contiguous().reshape(-1)
        digest.update(bits.view(torch.uint8).numpy().data)
    elif isinstance(value, dict):
        digest.update(f"table {len(value)} ".encode())
        for name, inner in value.items():
            _add(digest, name)
            _add(digest, inner)
    elif isinstance(value, list | tuple):
        digest.update(f"list {len(value)} ".encode())
        for inner in value:
            _add(digest, inner)
    elif isinstance(value, float):
        digest.update(b"float " + struct.pack("<d", value))
    else:
        text = repr(value).encode("utf-8", "backslashreplace")
        digest.update(f"{type(value).__name__} {len(text)} ".encode() + text)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a file by name. Nothing in it is run."""
    if not path.is_file():
        raise OptionError(f"there is no file of weights at '{path}'.")
    try:
        state, size = _read(path)
    except Exception as error:
        raise OptionError(f"cannot read the weights '{path}': {_first_line(error).rstrip('.')}.") from None
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
    model_state = model.state_dict()
    for name in [*model_state, *state]:
        shapes = [_shape(table[name]) if name in table else None for table in (state, model_state)]
        if shapes[0] != shapes[1]:
            stored, needed = (shape or "not there" for shape in shapes)
            raise OptionError(
                f"the weights in '{path}' do not fit {what}: '{name}' is {stored} in the file, and {needed} in the model."
            )
    model.load_state_dict(dict(state))


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"
