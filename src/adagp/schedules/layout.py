"""What a schedule may know of a model: its layers, their order and their cost. And the cost of a backward pass that stops.

The cost model counts multiply-accumulates of sites. A layer's forward, input-gradient and weight-gradient passes cost the
same; the first layer has no input gradient. All other layers (normalisation, attention products) are left out.
"""

from dataclasses import dataclass
from itertools import accumulate

from adagp.errors import OptionError


@dataclass(frozen=True)
class Layer:
    """A layer with parameters. `kind` is conv, linear or other; `macs` are the multiply-accumulates of a forward pass.

    `held` names those of its parameters that belong to no site: the bias of a convolution, the weight of a normalisation.
    """

    name: str
    kind: str
    is_site: bool
    macs: int = 0
    held: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """A model's layers: in the order in which they run, with costs, if `measured`; else as they were registered."""

    layers: tuple[Layer, ...]
    measured: bool = False

    @property
    def sites(self) -> tuple[Layer, ...]:
        """The layers that are sites."""
        return tuple(layer for layer in self.layers if layer.is_site)

    def savings(self) -> list[float]:
        """Return for each count c of sites the share of a batch's work that is saved if the backward pass stops above the
        first c sites: entry c belongs to c = 0 (nothing is saved) up to all sites (no backward pass).
        """
        macs = [layer.macs for layer in self.sites]
        total = 3 * sum(macs) - macs[0]
        below = list(accumulate(macs, initial=0))
        inputs = [*macs, 0]  # the lowest site that is trained needs no input gradient
        return [0.0] + [(2 * below[count] - macs[0] + inputs[count]) / total for count in range(1, len(macs) + 1)]

    def count_for(self, saving: float) -> int:
        """Return the smallest number of early sites with which a batch saves the share `saving` of its work."""
        savings = self.savings()
        if saving > savings[-1]:
            raise OptionError(
                f"the schedule wants to save {saving:.0%} of a batch's work, but without any backward pass it is "
                f"{savings[-1]:.0%}; ask for that or less."
            )
        return next(count for count, saved in enumerate(savings) if count and saved >= saving)

    def held_below(self, count: int) -> frozenset[str]:
        """Return the parameters of no site that lie below site number `count` (from 0), in the order of execution."""
        sites = self.sites
        if count >= len(sites):
            return frozenset(name for layer in self.layers for name in layer.held)
        end = self.layers.index(sites[count])
        return frozenset(name for layer in self.layers[:end] for name in layer.held)
