"""The errors at the model's outputs in one batch, on their way to the sources that need them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from adagp.sources.base import ModelCall, Source, missing_error


class OutputErrors:
    """The model's forward calls in a batch, until the loss is differentiated at their outputs.

    `wanting` are the sources that need the errors, by name, and `learning` those of them that learn from the batch. Every
    error is larger by `scale` than the loss's own. Where nothing but the errors is differentiated, `taps` are the beginnings
    of the loss's graph: of which call, which of its outputs, and the output itself.
    """

    def __init__(self, wanting: Mapping[str, Source], learning: Sequence[Source], scale: float) -> None:
        self._wanting = wanting
        self._learning = learning
        self._scale = scale
        self._calls: list[ModelCall] = []
        self.taps: list[tuple[ModelCall, int, Tensor]] = []

    @property
    def wanted(self) -> bool:
        """Whether there is a source that needs them."""
        return bool(self._wanting)

    def enter(self, call: ModelCall) -> None:
        """Tell the sources of a forward call that begins."""
        call.scale = self._scale
        self._calls.append(call)
        for source in self._wanting.values():
            source.enter(call)

    def leave(self, call: ModelCall, outputs: Sequence[Tensor]) -> None:
        """Show the outputs of a call that ends to the sources that learn."""
        for source in self._learning:
            source.leave(call, outputs)

    def differentiate(self, loss: Tensor) -> None:
        """Take the gradients at the outputs of the model, and no others: parameters that the loss has get none."""
        if not self.taps or not loss.requires_grad:
            return
        errors = torch.autograd.grad(loss, [tap for _, _, tap in self.taps], allow_unused=True)
        waiting: list[tuple[ModelCall, int, Tensor]] = []
        for (call, place, tap), error in zip(self.taps, errors, strict=True):
            if error is None:
                waiting.append((call, place, tap))  # another loss of the same batch may depend on it
            else:
                call.receive(place, error)
        self.taps[:] = waiting

    def hand_over(self) -> None:
        """Show the errors that are known to the sources; refuse a loss that gave none."""
        known = [call for call in self._calls if call.known]
        if not known:
            raise missing_error(next(iter(self._wanting)))
        for call in known:
            for source in self._wanting.values():
                source.observe_error(call)
        self._calls = [call for call in self._calls if not call.known]
