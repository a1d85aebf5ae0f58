"""The arithmetic of a reversible chain's residual stream: how `x + F` is kept, so that `x` can be found again from it.

float   plain addition. The inverse is off by roundings, which every block above magnifies.
bfp     the stream is rounded to block floating point after each addition, as published: it takes 6.4 bits a value.
fixed   the stream is whole numbers on a fixed grid. Adding and taking away are exact, so the inverse is, bit by bit.

A memory that is read at the end of its retention time (embedded DRAM) is sometimes wrong: `ReadFaults`.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from adagp.core.block_format import BlockFormat
from adagp.errors import OptionError, unknown_name
from adagp.papers.fast.quantise import quantise

KINDS = ("values", "bits")
MANTISSA_BITS = 23


class ReadFaults:
    """Makes a share of what is read wrong, drawn from torch's global random state.

    `values`: exactly the rounded share of a tensor's values, each replaced by normal noise of the tensor's scale. `bits`: the
    same number of values, in each of which one bit of the mantissa is flipped. The paper does not state which of the two it
    means.
    """

    def __init__(self, share: float = 0.0, kind: str = "values") -> None:
        if not 0 <= share <= 1:
            raise OptionError(f"the share of wrong reads is {share}; it must be from 0 to 1.")
        if kind not in KINDS:
            raise unknown_name("kind of faults", kind, KINDS)
        self.share, self.kind = share, kind

    def count(self, total: int) -> int:
        """Return how many of `total` values are read wrongly."""
        return round(self.share * total)

    @torch.no_grad()
    def read(self, tensor: Tensor) -> Tensor:
        """Return what is read of `tensor`, which itself is left as it is."""
        wrong = self.count(tensor.numel())
        if not wrong:
            return tensor
        seen = tensor.detach().reshape(-1).clone()
        indices = torch.randperm(len(seen), device=seen.device)[:wrong]
        if self.kind == "values":
            seen[indices] = torch.randn(wrong, device=seen.device, dtype=seen.dtype) * seen.std()
        else:
            turned = 1 << torch.randint(MANTISSA_BITS, (wrong,), device=seen.device, dtype=torch.int32)
            bits = seen.float().view(torch.int32)
            bits[indices] ^= turned
            seen = bits.view(torch.float32).to(seen.dtype)
        return seen.view(tensor.shape)


STREAMS = ("float", "bfp", "fixed")
CAMEL_FORMAT = BlockFormat(group=9, exponent_bits=4, mantissa_bits=5)
"""CAMEL's: 9 values share an exponent of 4 bits, each has 5 bits and a sign. Along channels: our choice."""
FRACTION_BITS = 16
"""Fraction bits of a number on the fixed grid, which has 32 bits in all: steps of 1.5e-5, up to 32,768."""
MOST = 2.0**30
"""What F adds at once is cut to this many steps."""


class Stream(ABC):
    """How the two halves of a chain's stream are kept."""

    @abstractmethod
    def enter(self, values: Tensor) -> Tensor:
        """Return the stream that begins with `values`."""

    @abstractmethod
    def read(self, stream: Tensor) -> Tensor:
        """Return the values that a block sees."""

    @abstractmethod
    def add(self, stream: Tensor, values: Tensor) -> Tensor:
        """Return the stream after `values` were added."""

    @abstractmethod
    def subtract(self, stream: Tensor, values: Tensor) -> Tensor:
        """Return the stream before `values` were added."""


class FloatStream(Stream):
    """Plain floating point."""

    def enter(self, values: Tensor) -> Tensor:
        """Return the values themselves."""
        return values

    def read(self, stream: Tensor) -> Tensor:
        """Return the values themselves."""
        return stream

    def add(self, stream: Tensor, values: Tensor) -> Tensor:
        """Return the sum."""
        return stream + values

    def subtract(self, stream: Tensor, values: Tensor) -> Tensor:
        """Return the difference, which is off by a rounding."""
        return stream - values


class BlockStream(Stream):
    """Block floating point, rounded after each addition."""

    def __init__(self, block_format: BlockFormat = CAMEL_FORMAT) -> None:
        self.block_format = block_format

    def enter(self, values: Tensor) -> Tensor:
        """Return the values in the format."""
        return quantise(values, self.block_format, axis=1)

    def read(self, stream: Tensor) -> Tensor:
        """Return the values."""
        return stream

    def add(self, stream: Tensor, values: Tensor) -> Tensor:
        """Return the sum in the format."""
        return self.enter(stream + values)

    def subtract(self, stream: Tensor, values: Tensor) -> Tensor:
        """Return the difference in the format, which may be off by as much as it was rounded."""
        return self.enter(stream - values)


class FixedStream(Stream):
    """Whole numbers of 32 bits on a grid. Integers cannot represent infinity or NaN; the chain's output is then NaN."""

    def __init__(self, fraction_bits: int = FRACTION_BITS) -> None:
        self.scale = 2.0**fraction_bits

    def enter(self, values: Tensor) -> Tensor:
        """Return the nearest places of the grid."""
        steps = (values * self.scale).round_().clamp_(-MOST, MOST)
        return steps.nan_to_num_(nan=MOST).to(torch.int32)

    def read(self, stream: Tensor) -> Tensor:
        """Return the values at the places."""
        return stream.to(torch.float32) / self.scale

    def add(self, stream: Tensor, values: Tensor) -> Tensor:
        """Return the sum, exactly."""
        return stream + self.enter(values)

    def subtract(self, stream: Tensor, values: Tensor) -> Tensor:
        """Return the difference, exactly."""
        return stream - self.enter(values)


def find_stream(name: str) -> Stream:
    """Return the arithmetic of this name."""
    known: dict[str, type[Stream]] = {"float": FloatStream, "bfp": BlockStream, "fixed": FixedStream}
    if name not in known:
        raise unknown_name("stream", name, STREAMS)
    return known[name]()
