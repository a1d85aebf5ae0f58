"""The contract of a source in a pipeline, where each process has some stages of the model and a batch is several micro-batches.

The methods of `Source` are called as in one process, but stage by stage: the batch of a stage's sites is complete when the last
of its micro-batches is done, while other stages may still compute theirs. In addition::

    reduce_with(all_reduce)             once: sets the function that sums over processes what is learned from all sites together
    for each update of some stages:
        catch_up(features, calls, ...)  if it is an `ErrorSource`: see the calls that the pipeline has kept, with the error
        averaged(sites), summed(sites)  if stages have copies: the tensors that the copies exchange
        shard(sites)                    if weights are sharded: shard the summed tensors
        produce, observe                as in one process, for the sites of these stages
        drop(sites)                     instead of forget
    site_state(sites)                   the part of `state_dict` that belongs to some sites, for a checkpoint in parts
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Size, Tensor

from adagp.layers.sites import Site
from adagp.sources.base import Source
from adagp.sources.local import Kept


class PipelineSource(Source):
    """A source that can train in a pipeline."""

    def reduce_with(self, all_reduce: Callable[[list[Tensor]], None]) -> None:  # not every source needs it
        """Store the function that sums over the processes what is learned from the sites of all stages together."""

    def averaged(self, sites: Sequence[Site]) -> list[Tensor]:
        """Return what was seen of `sites`, to be averaged in place over the copies of their stages."""
        return []

    def summed(self, sites: Sequence[Site]) -> list[Tensor]:
        """Return what was seen of `sites`, to be summed in place over the copies of their stages."""
        return []

    def shard(self, sites: Sequence[Site]) -> None:
        """Shard the summed tensors of `sites` like their weights."""

    def drop(self, sites: Sequence[Site]) -> None:
        """Drop what was seen of `sites`: their batch is over, while that of other sites may continue."""

    def site_state(self, sites: Collection[int]) -> dict[str, Any]:
        """Return the part of `state_dict` that belongs to the sites with these indices, without state common to all sites."""
        return {}

    def load_site_state(self, part: dict[str, Any]) -> None:
        """Restore what another process's `site_state` returned; the state of other sites stays."""


@dataclass(frozen=True)
class SiteCall:
    """One forward call of a site: the `shape` of its output; its input and the gradient at its output, if they were kept.

    `produce`: the source has to produce a weight gradient for it. `observe`: the source learns from its input.
    """

    site: Site
    shape: Size
    inputs: Kept | None = None
    gradient: Tensor | None = None
    produce: bool = False
    observe: bool = False

    def kept_inputs(self) -> Tensor:
        """Return the input; only for calls with `produce` or `observe`."""
        assert self.inputs is not None, "a call that produces or observes has its input"
        return self.inputs.get()


class ErrorSource(PipelineSource):
    """A source that needs the error at the model's output, which only the last stage of a pipeline has.

    The pipeline keeps the calls of a stage's sites, broadcasts the features of the error when the last micro-batch is done,
    and passes both to the source, as one call of the whole batch.
    """

    needs_error = True

    @property
    @abstractmethod
    def wants_inputs(self) -> bool:
        """Whether it learns, in this batch, from the inputs of the sites that are trained by backprop."""

    @property
    @abstractmethod
    def wants_gradients(self) -> bool:
        """Whether it learns, in this batch, from the gradients at the sites' outputs."""

    @abstractmethod
    def features_of(self, errors: Sequence[Tensor], outputs: Sequence[Tensor]) -> Tensor:
        """Return the features of the errors at the model's `outputs`, samples first; the last stage broadcasts them."""

    @abstractmethod
    def catch_up(self, features: Tensor, calls: Sequence[SiteCall], whole: Tensor | None = None) -> None:
        """See forward calls of sites, and the `features` of their error, instead of `watch` and `observe_error`.

        If the samples are only a part of the batch, `whole` has the features of the whole batch. Then the produced gradients
        and what is learned must add up over the parts (`summed`).
        """
