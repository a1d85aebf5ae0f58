"""What a source needs: memory, and work in multiply-accumulates. Derived from a trial forward pass, before training."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from torch import Size

from adagp.layers.sites import Site

NUMBER_BYTES = 4


@dataclass(frozen=True)
class TrialCall:
    """A forward call of a site in a trial: the sizes of its input and output, and its multiply-accumulates."""

    site: Site
    inputs: Size
    output: Size
    macs: int

    @property
    def rows(self) -> int:
        """The rows of its input: samples of a convolution, samples and positions of a linear layer."""
        return self.output[:-1].numel() if self.site.rule.kind == "linear" else self.output[0]


@dataclass(frozen=True)
class Demand:
    """Bytes that a source keeps between batches (`state`) and within a batch, and its multiply-accumulates in a batch.

    All of these are in addition to backprop in BP batches, and to the forward pass in GP batches.
    """

    state: int = 0
    bp_bytes: int = 0
    gp_bytes: int = 0
    bp_macs: int = 0
    gp_macs: int = 0

    def __add__(self, other: "Demand") -> "Demand":
        return Demand(
            self.state + other.state,
            self.bp_bytes + other.bp_bytes,
            self.gp_bytes + other.gp_bytes,
            self.bp_macs + other.bp_macs,
            self.gp_macs + other.gp_macs,
        )


def total(demands: Sequence[Demand | None]) -> Demand | None:
    """Return the sum; None if one of them is unknown."""
    known = [demand for demand in demands if demand is not None]
    return None if len(known) < len(demands) else reduce(Demand.__add__, known, Demand())


def kept_inputs(calls: Sequence[TrialCall]) -> int:
    """Return the bytes of the inputs of all calls."""
    return NUMBER_BYTES * sum(call.inputs.numel() for call in calls)


def weight_gradient_macs(calls: Sequence[TrialCall]) -> int:
    """Return the work of all exact weight gradients: as much as the forward pass of the sites."""
    return sum(call.macs for call in calls)


def chain_macs(calls: Sequence[TrialCall]) -> int:
    """Return the work of a backward pass through all sites, without weight gradients; the first one's input needs none."""
    return sum(call.macs for call in calls[1:])


def weight_bytes(calls: Sequence[TrialCall]) -> int:
    """Return the bytes of the weights of the sites that were called."""
    weights = {call.site: call.site.weight for call in calls}
    return sum(weight.numel() * weight.element_size() for weight in weights.values())
