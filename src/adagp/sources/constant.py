"""The sources that compute nothing: a zero gradient, and no batch at all."""

from collections.abc import Sequence

import torch
from torch import Tensor

from adagp.layers.sites import Site
from adagp.sources.base import Source
from adagp.sources.pipeline import PipelineSource


class ZeroSource(PipelineSource):
    """Gives a gradient of 0: the weight moves by the optimizer's momentum and weight decay alone.

    `zero` is the approximation of Wang and Nelaturu, for some sites of a batch; `momentum` is the same source as a control,
    for all sites of a batch: what is a GP phase worth if only the momentum of the last BP batch goes on?
    """

    joins = True

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return zeros."""
        return [torch.zeros_like(site.weight) for site in sites]


class SkipSource(Source):
    """The batch is not trained on: no forward pass, no step of the optimizer. It serves all sites of a batch or none."""

    skips = True
    joins = True

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return no gradient for any site."""
        return [None] * len(sites)
