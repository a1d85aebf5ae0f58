"""A nested state as named tensors: what torch.distributed.checkpoint spreads over processes, and puts together again.

Tensors that are worth a place of their own get a name, the path to them; what is left (plain values, small tensors, and
where each named tensor belongs) is written as one more tensor, of bytes. So a checkpoint holds tensors only, and is read
without running foreign code.
"""

import io
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

SMALL = 64
"""Numbers up to which a tensor stays among the plain values."""
_NAMED = "adagp tensor"


def take_apart(state: Any, name: str) -> dict[str, Tensor]:
    """Return the tensors of `state` by names that begin with `name`, and under `name` itself the rest, as bytes."""
    named: dict[str, Tensor] = {}
    rest = io.BytesIO()
    torch.save(_without_tensors(state, name, named), rest)
    return {name: torch.frombuffer(bytearray(rest.getvalue()), dtype=torch.uint8), **named}


def read_rest(saved: Tensor) -> Any:
    """Return what `take_apart` wrote as bytes: the state, with a note in the place of each named tensor."""
    return torch.load(io.BytesIO(saved.numpy().tobytes()), map_location="cpu", weights_only=True)


def put_together(rest: Any, named: dict[str, Tensor]) -> Any:
    """Return the state whose plain part is `rest`."""
    if isinstance(rest, dict):
        if _NAMED in rest:
            return named[rest[_NAMED]]
        return {key: put_together(value, named) for key, value in rest.items()}
    if isinstance(rest, list | tuple):
        return type(rest)(put_together(value, named) for value in rest)
    return rest


def in_memory(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor, or of the part held here of a DTensor, in main memory."""
    own = tensor.detach()
    if own.device.type != "cpu":
        return own.cpu()
    return own.clone() if isinstance(own, DTensor) else own.clone(memory_format=torch.contiguous_format)


def memory_orders(rest: Any) -> dict[str, list[int]]:
    """Return the stride of each named tensor that was no DTensor: it is to lie in memory as before."""
    if isinstance(rest, dict):
        if _NAMED in rest:
            return {rest[_NAMED]: rest["stride"]} if rest["stride"] else {}
        values: Any = rest.values()
    else:
        values = rest if isinstance(rest, list | tuple) else ()
    return {name: stride for value in values for name, stride in memory_orders(value).items()}


def _without_tensors(value: Any, name: str, named: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor) and (isinstance(value, DTensor) or value.numel() > SMALL):
        named[name] = value.detach()
        return {_NAMED: name, "stride": None if isinstance(value, DTensor) else list(value.stride())}
    if isinstance(value, dict):
        return {key: _without_tensors(inner, f"{name}/{key}", named) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_without_tensors(inner, f"{name}/{place}", named) for place, inner in enumerate(value))
    return value
