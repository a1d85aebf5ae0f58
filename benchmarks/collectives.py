"""Counts what torch.distributed sends, by kind."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

KINDS = ("parameters gathered", "gradients reduced", "seen by sources")


class Collectives(TorchDispatchMode):
    """Adds up the bytes of the tensors that are exchanged inside the context, whoever exchanges them.

    What is gathered are parameters; what is reduced during a backward pass are gradients, and otherwise what sources have seen.
    A tensor counts with its whole size: that of the gathered or of the reduced tensor. In a ring of P processes, each sends
    (P - 1) / P of it, and twice as much of one that is reduced for all of them.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.sent: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count a collective, and run it."""
        if getattr(func, "namespace", "") in ("c10d", "_c10d_functional"):
            name = func._schema.name.partition("::")[2]
            kind = kind_of(name, backward=torch._C._current_graph_task_id() != -1)
            if kind is not None:
                self.sent[kind] += max(map(_bytes, args), default=0)
                self.calls[kind] += 1
        return func(*args, **(kwargs or {}))


def kind_of(name: str, *, backward: bool) -> str | None:
    """Return what a collective of this name sends; None for others, as a broadcast of buffers or a wait."""
    if "gather" in name:
        return "parameters gathered"
    if "reduce" in name:
        return "gradients reduced" if backward else "seen by sources"
    return None


def count(run: Callable[[], object]) -> Collectives:
    """Return what was sent in a call."""
    found = Collectives()
    with found:
        run()
    return found


def _bytes(thing: Any) -> int:
    if isinstance(thing, Tensor):
        return thing.numel() * thing.element_size()
    return sum(map(_bytes, thing)) if isinstance(thing, list | tuple) else 0
