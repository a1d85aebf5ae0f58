"""The initial weights, as long as they are needed: a copy, or drawn again from the seed."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Regenerate = Callable[[], Mapping[str, Tensor]]
"""Returns the initial value of every parameter by name, as drawn from the seed."""


class InitialWeights:
    """The values that parameters had in the beginning.

    Without `regenerate` they are copied, and the copy is part of the state, until `free`. With it they need not be in any
    checkpoint; `keep=False` stores no copy in memory either and draws them again for each use.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], regenerate: Regenerate | None = None, *, keep: bool = True
    ) -> None:
        self._parameters = dict(parameters)
        self.regenerate = regenerate
        self._keep = keep or regenerate is None
        self._copy: dict[str, Tensor] | None = None
        if self._keep:
            self._copy = {name: weight.detach().clone() for name, weight in self._parameters.items()}

    @property
    def stored(self) -> int:
        """Bytes of the copy."""
        return sum(copy.numel() * copy.element_size() for copy in (self._copy or {}).values())

    def read(self) -> dict[str, Tensor]:
        """Return the initial values by name."""
        if self._copy is not None:
            return self._copy
        if self.regenerate is None:
            raise RuntimeError("the initial weights were freed")
        drawn = self.regenerate()
        initial = {
            name: drawn[name].detach().to(weight.device).to(memory_format=_order(weight))
            for name, weight in self._parameters.items()
        }
        if self._keep:
            self._copy = initial
        return initial

    def free(self) -> None:
        """Free the copy, which is no longer needed."""
        self._copy = None

    def state_dict(self) -> dict[str, Any]:
        """Return the copy, if there is one that cannot be drawn again."""
        return {} if self.regenerate is not None or self._copy is None else {"copy": dict(self._copy)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        if self.regenerate is not None:
            self._copy = None
        elif "copy" not in state:
            self.free()
        else:
            saved: Mapping[str, Tensor] = state["copy"]
            self._copy = {name: saved[name].to(weight.device) for name, weight in self._parameters.items()}


def _order(parameter: Tensor) -> torch.memory_format:
    last = parameter.dim() == 4 and not parameter.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format
