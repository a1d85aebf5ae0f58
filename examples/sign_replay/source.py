"""The source of gradients: one sign per weight, and one magnitude per layer, of the last true gradient."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import adagp
from adagp.layers.sites import Site


class SignReplaySource(adagp.Source):
    """In GP batches, gives the signs of the last true gradient times its mean magnitude."""

    learns = True  # observes the true gradients of BP batches

    def __init__(self, magnitude: float = 1.0) -> None:
        self.magnitude = magnitude
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
        """Keep the signs as single bytes, and the mean magnitude."""
        for site, gradient in zip(sites, gradients, strict=True):
            self._kept[site.index] = gradient.sign().to(torch.int8), gradient.abs().mean()

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return the gradient of each site; None before its first true gradient."""
        kept = (self._kept.get(site.index) for site in sites)
        return [None if pair is None else self.magnitude * pair[1] * pair[0] for pair in kept]

    def state_dict(self) -> dict[str, Any]:
        """Return what is kept, so that a run resumes exactly."""
        return {"kept": dict(self._kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._kept = dict(state["kept"])
