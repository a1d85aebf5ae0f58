"""The engine's switch for `requires_grad`: parameters that are frozen while a batch runs."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


class FrozenParameters:
    """Parameters whose `requires_grad` is off while a batch runs, so that autograd computes nothing for them.

    Autograd builds no graph below the lowest parameter that needs a gradient: none at all, where all are frozen. Whether it is
    enabled is left to the user: gradients of inputs, or of another model, are computed as always. Parameters that the user has
    frozen stay so.

    What the user does inside the batch holds: `requires_grad_()` of a parameter or a module is noted and applied, and copies
    and files of the model have the `requires_grad` that the user gave it. Only an assignment `parameter.requires_grad = False`
    cannot be seen, as it changes nothing.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._switches = [_Switch(parameter) for parameter in parameters if parameter.requires_grad]
        self._is_frozen = False

    def __len__(self) -> int:
        return len(self._switches)

    def freeze(self) -> None:
        """Switch `requires_grad` off."""
        self._switches = [switch for switch in self._switches if switch.parameter.requires_grad]
        for switch in self._switches:
            switch.freeze()
        self._is_frozen = True

    def unfreeze(self) -> None:
        """Switch `requires_grad` on again, if it is off."""
        if self._is_frozen:
            for switch in self._switches:
                switch.unfreeze()
        self._is_frozen = False

    @contextmanager
    def unfrozen(self) -> Iterator[None]:
        """Unfreeze them inside the context."""
        was_frozen = self._is_frozen
        self.unfreeze()
        try:
            yield
        finally:
            if was_frozen:
                self.freeze()


class _Switch:
    """Freezes one parameter. Python looks these methods up on the object itself, so that its class stays what it is."""

    __slots__ = ("_shadows", "parameter", "wanted")

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        self.wanted = True
        self._shadows = {
            "requires_grad_": self._set_by_user,
            "__deepcopy__": self._deepcopy,
            "__reduce_ex__": self._reduce,
        }

    def freeze(self) -> None:
        self.parameter.requires_grad_(False)
        vars(self.parameter).update(self._shadows)

    def unfreeze(self) -> None:
        attributes = vars(self.parameter)
        for name in self._shadows:
            attributes.pop(name, None)
        self.parameter.requires_grad_(self.wanted)

    def _set_by_user(self, requires_grad: bool = True) -> Tensor:
        self.wanted = requires_grad
        return type(self.parameter).requires_grad_(self.parameter, requires_grad)

    def _deepcopy(self, memo: dict[int, Any]) -> Any:
        with self._as_user_left_it():
            return copy.deepcopy(self.parameter, memo)

    def _reduce(self, protocol: Any) -> Any:
        with self._as_user_left_it():
            return self.parameter.__reduce_ex__(protocol)

    @contextmanager
    def _as_user_left_it(self) -> Iterator[None]:
        requires_grad = self.parameter.requires_grad
        self.unfreeze()
        try:
            yield
        finally:
            self.freeze()
            type(self.parameter).requires_grad_(self.parameter, requires_grad)
