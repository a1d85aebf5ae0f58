"""Precision schedules: in which arithmetic the products of each site are made, as a pure function of the batch and the site.

A plan says where a site's weight gradient comes from; a precision says in which arithmetic the site's three products are
made: the forward pass, the input gradient and the weight gradient. The two are independent of each other.

Single precision is None; block floating point has a mantissa width for each of the site's tensors: weights, activations
(the site's input) and gradients (at its output). FAST leaves the choice between two widths to the tensor itself: the width
is low where r, the relative improvement of the high one, is below a threshold that falls with time and depth.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adagp.core.block_format import BlockFormat
from adagp.core.precision import Precision
from adagp.errors import OptionError

if TYPE_CHECKING:
    from adagp.engine.arithmetic import Arithmetic, ArithmeticFacts

TENSORS = ("weights", "activations", "gradients")


@dataclass(frozen=True)
class Width:
    """The mantissa bits of a tensor: `low` where its relative improvement is below `threshold`, else `high`."""

    low: int
    high: int
    threshold: float = 0.0

    @property
    def measured(self) -> bool:
        """Tell whether the tensor itself decides."""
        return self.low != self.high


@dataclass(frozen=True)
class TensorPlace:
    """A tensor of a site in a batch: batch number `batch` of `batches`, site number `site` of `sites` in their order."""

    batch: int
    batches: int
    site: int
    sites: int
    tensor: str = "weights"
    seed: int = 0

    @property
    def progress(self) -> float:
        """The share of the run, from 0 in its first batch to 1 in its last."""
        return self.batch / max(1, self.batches - 1)

    @property
    def depth(self) -> float:
        """The share of the model, from 0 in its first site to 1 in its last."""
        return self.site / max(1, self.sites - 1)

    @property
    def draw(self) -> float:
        """A number from 0 up to 1 that looks random, the same whenever it is asked for."""
        key = f"precision {self.seed} {self.batch} {self.site} {self.tensor}"
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") / 2**64


@dataclass(frozen=True)
class Conversion:
    """What all conversions of a run have in common: `rounding` is for weights and activations, `gradients` for these.

    That gradients get noise is FAST's; how weights and activations are rounded is our choice, the paper does not say.
    """

    group: int = 16
    exponent_bits: int = 4
    rounding: str = "nearest"
    gradients: str = "stochastic"
    overflow: str = "saturate"

    def __post_init__(self) -> None:
        for tensor in TENSORS:
            self.block_format(tensor, 1)
        if self.rounding == "stochastic":
            raise OptionError(
                "rounding is 'stochastic'; weights and activations take nearest or truncate, gradients all."
            )

    def block_format(self, tensor: str, mantissa_bits: int) -> BlockFormat:
        """Return the format of a tensor of this kind and width."""
        rounding = self.gradients if tensor == "gradients" else self.rounding
        return BlockFormat(self.group, self.exponent_bits, mantissa_bits, rounding, self.overflow)


@dataclass(frozen=True)
class BlockPrecision(Precision):
    """A pure function from a tensor's place to its width; None is single precision. `text` is what `parse_precision` reads."""

    text: str
    conversion: Conversion = field(default_factory=Conversion)

    @property
    def shared_exponent(self) -> tuple[int, int]:  # type: ignore[override]  # here it follows from the conversion
        """How many numbers share an exponent, and its bits."""
        return self.conversion.group, self.conversion.exponent_bits

    def arithmetic(self, facts: "ArithmeticFacts", is_training: Callable[[], bool]) -> "Arithmetic":
        """Return what computes the products of a run in block floating point."""
        from adagp.papers.fast.interpose import BlockArithmetic  # which needs torch

        return BlockArithmetic(self, facts, is_training)

    @abstractmethod
    def width(self, place: TensorPlace) -> Width | None:
        """Return the width of the tensor at `place`."""

    def check(self, sites: int) -> None:  # most fit every model
        """Refuse a model with so many sites if it does not fit."""


@dataclass(frozen=True)
class Fixed(BlockPrecision):
    """The same width everywhere."""

    bits: int = 4

    def width(self, place: TensorPlace) -> Width | None:
        """Return the one width."""
        return fixed(self.bits)


@dataclass(frozen=True)
class Temporal(BlockPrecision):
    """One width in the first part of the run, another one in the rest; `share` is the first part's."""

    first: int | None = 2
    second: int | None = 4
    share: float = 0.5

    def width(self, place: TensorPlace) -> Width | None:
        """Return the width of the part of the run that the batch lies in."""
        return fixed(self.first if place.batch < self.share * place.batches else self.second)


@dataclass(frozen=True)
class ByLayer(BlockPrecision):
    """One width in the first `count` sites, another one in the others."""

    first: int | None = 2
    second: int | None = 4
    count: int = 1
    by_layer = True

    def width(self, place: TensorPlace) -> Width | None:
        """Return the width of the part of the model that the site lies in."""
        return fixed(self.first if place.site < self.count else self.second)

    def check(self, sites: int) -> None:
        """Refuse a model that has no site beyond the first part."""
        if self.count >= sites:
            raise OptionError(
                f"the precision '{self.text}' cuts the model after layer {self.count}; it has {sites} layers, so that it "
                f"must be 1 to {sites - 1}."
            )


@dataclass(frozen=True)
class Fast(BlockPrecision):
    """FAST's adaptive precision: the threshold is `alpha - beta * time - beta * depth`, both from 0 to 1.

    The paper's alpha and beta are not in the text at hand: 0.6 and 0.3 are our choice, with which the threshold starts just
    above the r of ordinary tensors and is 0 in the last layer of the last batch.
    """

    alpha: float = 0.6
    beta: float = 0.3
    low: int = 2
    high: int = 4
    by_layer = True

    def threshold(self, place: TensorPlace) -> float:
        """Return the threshold below which the relative improvement of the high width is not worth it."""
        return self.alpha - self.beta * place.progress - self.beta * place.depth

    def width(self, place: TensorPlace) -> Width | None:
        """Return both widths with the threshold between them."""
        return Width(self.low, self.high, self.threshold(place))


@dataclass(frozen=True)
class RandomChoice(BlockPrecision):
    """A control: each tensor has the second width with probability `share`, whatever is in it."""

    first: int | None = 2
    second: int | None = 4
    share: float = 0.5

    def width(self, place: TensorPlace) -> Width | None:
        """Return one of the widths."""
        return fixed(self.second if place.draw < self.share else self.first)


def fixed(bits: int | None) -> Width | None:
    """Return a width that no tensor decides."""
    return None if bits is None else Width(bits, bits)
