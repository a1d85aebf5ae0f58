"""The contract of a gradient source.

The engine calls a source in this order, and never asks which one it has::

    bind(sites, norms)                  once, when a trainer is made
    for each batch:
        watch(site, inputs, output)     in every forward call of a site it serves (or learns from)
        produce(sites)                  sites whose plan names it: give their weight gradients
        observe(sites, gradients)       sites trained by backprop: learn from the truth, if it learns
        forget()                        the batch is over
    end_epoch()                         after the last batch of an epoch

A source of your own is a subclass entered into `SOURCES` under a name; schedules can then name it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from adagp.registry import Registry
from adagp.sites import Site
from adagp.sources.norms import RunningNorms


class Source(ABC):
    """Gives the weight gradients of some sites for a batch."""

    learns: bool = False
    """Whether it wants to watch and observe the sites of BP batches."""

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:  # noqa: B027  # not every source needs it
        """Get to know the sites, and the running norms of their true gradients, which the engine keeps up to date."""

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: B027
        """See one forward call of `site`. Keep something small: activations are freed as the forward pass goes on."""

    @abstractmethod
    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return each site's weight gradient in the shape of its weight; None where the site was not called."""

    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:  # noqa: B027
        """Learn from the true gradients of a batch that was watched."""

    def forget(self) -> None:  # noqa: B027
        """Drop what was watched in this batch."""

    def end_epoch(self) -> None:  # noqa: B027
        """Take note that an epoch is over."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on exactly, as tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Take over what `state_dict` returned."""


SOURCES: Registry[Callable[[], Source]] = Registry("source")
"""Source factories by the name that plans and schedules use."""
