"""What autograd is to compute in a batch: nothing of the model, or all but what comes from elsewhere."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


class IdleParameters:
    """Parameters for which autograd computes nothing, because `requires_grad` is switched off while a batch runs.

    Autograd builds no graph below the lowest parameter that needs a gradient: none at all, where all are idle. Whether it is
    enabled is left to the user: gradients of inputs, or of another model, are taken as ever. Parameters that the user has
    frozen stay so.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = [one for one in parameters if one.requires_grad]
        self._held = False

    def __len__(self) -> int:
        return len(self._parameters)

    def hold(self) -> None:
        """Switch their gradients off."""
        for one in self._parameters:
            one.requires_grad_(False)
        self._held = True

    def release(self) -> None:
        """Switch them on again, if they are off."""
        if self._held:
            for one in self._parameters:
                one.requires_grad_(True)
        self._held = False

    @contextmanager
    def released(self) -> Iterator[None]:
        """Let them be as the user has them inside the context."""
        held = self._held
        self.release()
        try:
            yield
        finally:
            if held:
                self.hold()
