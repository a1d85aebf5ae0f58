"""Precision schedules: the mantissa widths of each site's products as a pure function of the batch and the site.

A plan decides where a site's weight gradient comes from; a precision, in which arithmetic the site's three products are
computed: the forward pass, the input gradient and the weight gradient. The two are independent of each other.

Single precision is None; block floating point has a mantissa width for each of the site's tensors: weights, activations
(the site's input) and gradients (at its output). FAST leaves the choice between two widths to the tensor itself: the width
is low where r, the relative improvement of the high one, is below a threshold that falls with time and depth.

Text forms, the same on the command line, in config files and in run folders:

bfp4                       block floating point of 4 mantissa bits, in groups of 16 with 4 exponent bits; also bfp2, bfp8, ...
bfp:g=16,e=4,m=4           the same with all sizes given
temporal:2-4@0.5           2 bits in the first half of the run, then 4; 4-2 is the reverse; fp32 may stand for a width
layers:2-4@10              2 bits in the first 10 layers, 4 in the others
fast                       each tensor has 2 or 4 bits, as its relative improvement by 4 is below a falling threshold or not
fast:alpha=0.6,beta=0.3    the same with the threshold alpha - beta * time - beta * depth; low=2 and high=4 are the widths
random:2-4@0.5             a control: 4 bits with probability 0.5, else 2

All take, separated by commas: g=16 (numbers in a group), e=4 (bits of an exponent), rounding=nearest|truncate (of
weights and activations), gradients=stochastic|nearest|truncate, overflow=saturate|raise.

"""

import hashlib
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

from adagp.core.block_format import MOST_MANTISSA_BITS, BlockFormat
from adagp.core.precision import PRECISIONS, Precision, PrecisionFamily, unreadable_precision
from adagp.errors import OptionError, unknown_name

if TYPE_CHECKING:
    from adagp.engine.extensions import Arithmetic, ArithmeticFacts

TENSORS = ("weights", "activations", "gradients")


@dataclass(frozen=True)
class Width:
    """The mantissa bits of a tensor: `low` if its relative improvement is below `threshold`, else `high`."""

    low: int
    high: int
    threshold: float = 0.0

    @property
    def measured(self) -> bool:
        """Whether the tensor itself decides."""
        return self.low != self.high


@dataclass(frozen=True)
class TensorContext:
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
        """A pseudo-random number in [0, 1), the same for the same place."""
        key = f"precision {self.seed} {self.batch} {self.site} {self.tensor}"
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") / 2**64


@dataclass(frozen=True)
class Conversion:
    """What all conversions of a run have in common: `rounding` is for weights and activations, `gradients` for these.

    That gradients get noise is FAST's; how weights and activations are rounded is our choice, the paper leaves it open.
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
        from adagp.papers.fast.arithmetic import BlockArithmetic  # which needs torch

        return BlockArithmetic(self, facts, is_training)

    @abstractmethod
    def width(self, context: TensorContext) -> Width | None:
        """Return the width of the tensor in `context`."""

    def check(self, sites: int) -> None:  # most fit every model
        """Raise if the precision does not fit a model with this many sites."""


@dataclass(frozen=True)
class Fixed(BlockPrecision):
    """The same width everywhere."""

    bits: int = 4

    def width(self, context: TensorContext) -> Width | None:
        """Return the one width."""
        return fixed(self.bits)


@dataclass(frozen=True)
class Temporal(BlockPrecision):
    """One width in the first part of the run, another one in the rest; `share` is the first part's."""

    first: int | None = 2
    second: int | None = 4
    share: float = 0.5

    def width(self, context: TensorContext) -> Width | None:
        """Return the width of the part of the run that the batch lies in."""
        return fixed(self.first if context.batch < self.share * context.batches else self.second)


@dataclass(frozen=True)
class ByLayer(BlockPrecision):
    """One width in the first `count` sites, another one in the others."""

    first: int | None = 2
    second: int | None = 4
    count: int = 1
    by_layer = True

    def width(self, context: TensorContext) -> Width | None:
        """Return the width of the part of the model that the site lies in."""
        return fixed(self.first if context.site < self.count else self.second)

    def check(self, sites: int) -> None:
        """Raise if the model has no site beyond the first part."""
        if self.count >= sites:
            raise OptionError(
                f"the precision '{self.text}' cuts the model after layer {self.count}; it has {sites} layers, so that it "
                f"must be 1 to {sites - 1}."
            )


@dataclass(frozen=True)
class Fast(BlockPrecision):
    """FAST's adaptive precision: the threshold is `alpha - beta * time - beta * depth`, both from 0 to 1.

    The paper's alpha and beta were not available: 0.6 and 0.3 are adagp's choice, with which the threshold starts just
    above the r of ordinary tensors and is 0 in the last layer of the last batch.
    """

    alpha: float = 0.6
    beta: float = 0.3
    low: int = 2
    high: int = 4
    by_layer = True

    def threshold(self, context: TensorContext) -> float:
        """Return the threshold below which the relative improvement of the high width is not worth it."""
        return self.alpha - self.beta * context.progress - self.beta * context.depth

    def width(self, context: TensorContext) -> Width | None:
        """Return both widths with the threshold between them."""
        return Width(self.low, self.high, self.threshold(context))


@dataclass(frozen=True)
class RandomChoice(BlockPrecision):
    """A control: each tensor has the second width with probability `share`, whatever is in it."""

    first: int | None = 2
    second: int | None = 4
    share: float = 0.5

    def width(self, context: TensorContext) -> Width | None:
        """Return one of the widths."""
        return fixed(self.second if context.draw < self.share else self.first)


def fixed(bits: int | None) -> Width | None:
    """Return a width that no tensor decides."""
    return None if bits is None else Width(bits, bits)


FORMS = {
    "bfp": ("bfp4", "bfp:g=16,e=4,m=4"),
    "temporal": ("temporal:2-4@0.5",),
    "layers": ("layers:2-4@10",),
    "fast": ("fast", "fast:alpha=0.6,beta=0.3"),
    "random": ("random:2-4@0.5",),
}
_CONVERSION = {
    "g": "group",
    "e": "exponent_bits",
    "rounding": "rounding",
    "gradients": "gradients",
    "overflow": "overflow",
}
_WORDS = ("rounding", "gradients", "overflow")
_WHOLE = ("g", "e", "m", "low", "high")


def parse_block_precision(text: str) -> BlockPrecision:
    """Return the precision schedule that `text` describes."""
    name, split, items = _parts(text)
    match = re.fullmatch(r"bfp(\d{1,9})", name)
    kind = "bfp" if match else name
    if kind not in _READERS:
        raise unreadable_precision(text)
    options = _options(text, items, _OWN[kind])
    if match:
        if "m" in options:
            raise OptionError(f"the precision '{text}' gives the mantissa bits twice, as {name} and as m.")
        options["m"] = int(match[1])
    if bool(split) != (kind in ("temporal", "layers", "random")):
        raise unreadable_precision(text)
    conversion = Conversion(**{_CONVERSION[key]: options.pop(key) for key in list(options) if key in _CONVERSION})
    return _READERS[kind](text, conversion, split, options)


def _parts(text: str) -> tuple[str, str, list[str]]:
    """Return the name, `A-B@WHERE` (empty if there is none) and the options of a precision."""
    name, _, rest = text.partition(":")
    items = [item for item in rest.split(",") if item]
    if rest and not items:
        raise unreadable_precision(text)
    split = items.pop(0) if items and "=" not in items[0] else ""
    return name, split, items


def _options(text: str, items: list[str], own: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in items:
        key, _, value = item.partition("=")
        if key not in (*own, *_CONVERSION):
            raise unknown_name(f"option of the precision '{text[:80]}'", key, (*own, *_CONVERSION))
        if key in values:
            raise OptionError(f"the precision '{text[:80]}' gives {key} twice.")
        values[key] = value if key in _WORDS else _number(text, key, value, whole=key in _WHOLE)
    return values


def _number(text: str, name: str, value: str, *, whole: bool) -> Any:
    try:
        number = int(value) if whole else float(value)
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        kind = "whole number" if whole else "number"
        raise OptionError(f"the precision '{text[:80]}' has {name}={value}; it must be a {kind}.")
    return number


def _bits(text: str, bits: int) -> int:
    if not 1 <= bits <= MOST_MANTISSA_BITS:
        raise OptionError(
            f"the precision '{text[:80]}' has {bits} mantissa bits; it must be 1 to {MOST_MANTISSA_BITS}, or fp32."
        )
    return bits


def _split(text: str, split: str) -> tuple[int | None, int | None, str]:
    match = re.fullmatch(r"(fp32|\d{1,9})-(fp32|\d{1,9})@(.+)", split)
    if not match:
        raise unreadable_precision(text)
    first, second = (None if width == "fp32" else _bits(text, int(width)) for width in match.groups()[:2])
    return first, second, match[3]


def _share(text: str, written: str, name: str) -> float:
    share = float(_number(text, name, written, whole=False))
    if not 0 <= share <= 1:
        raise OptionError(f"the precision '{text[:80]}' has the {name} {written}; it must be 0 to 1.")
    return share


def _read_fixed(text: str, conversion: Conversion, split: str, options: Mapping[str, Any]) -> BlockPrecision:
    return Fixed(text, conversion, _bits(text, options.get("m", 4)))


def _read_temporal(text: str, conversion: Conversion, split: str, options: Mapping[str, Any]) -> BlockPrecision:
    first, second, where = _split(text, split)
    return Temporal(text, conversion, first, second, _share(text, where, "share of the run"))


def _read_layers(text: str, conversion: Conversion, split: str, options: Mapping[str, Any]) -> BlockPrecision:
    first, second, where = _split(text, split)
    count = _number(text, "number of layers", where, whole=True)
    if count < 1:
        raise OptionError(f"the precision '{text[:80]}' changes after layer {count}; it must be 1 or more.")
    return ByLayer(text, conversion, first, second, count)


def _read_random(text: str, conversion: Conversion, split: str, options: Mapping[str, Any]) -> BlockPrecision:
    first, second, where = _split(text, split)
    return RandomChoice(text, conversion, first, second, _share(text, where, "probability"))


def _read_fast(text: str, conversion: Conversion, split: str, options: Mapping[str, Any]) -> BlockPrecision:
    low, high = (_bits(text, options.get(name, bits)) for name, bits in (("low", 2), ("high", 4)))
    if not low < high:
        raise OptionError(f"the precision '{text[:80]}' has low={low} and high={high}; low must be below high.")
    alpha, beta = options.get("alpha", Fast.alpha), options.get("beta", Fast.beta)
    if not (abs(alpha) <= 100 and 0 <= beta <= 100):
        raise OptionError(
            f"the precision '{text[:80]}' has alpha={alpha:g} and beta={beta:g}; they must be -100 to 100 and 0 to 100."
        )
    return Fast(text, conversion, alpha, beta, low, high)


_READERS: dict[str, Callable[[str, Conversion, str, Mapping[str, Any]], BlockPrecision]] = {
    "bfp": _read_fixed,
    "temporal": _read_temporal,
    "layers": _read_layers,
    "fast": _read_fast,
    "random": _read_random,
}
_OWN: dict[str, tuple[str, ...]] = {
    "bfp": ("m",),
    "temporal": (),
    "layers": (),
    "fast": ("alpha", "beta", "low", "high"),
    "random": (),
}

for _family, _forms in FORMS.items():
    PRECISIONS.add(_family, PrecisionFamily(_forms, parse_block_precision))
