"""Conversion of tensors to block floating point, as tensors of floats that hold what the format can hold.

A tensor is cut into groups of numbers that lie next to each other along one axis: the index over which a product sums. Its
length need not be a multiple of the group: the last group is filled up with zeros, which change neither exponent nor sum.

Exponents come from `frexp` of each group's largest magnitude (a logarithm would be one too high just below a power of two).
Conversion is exact for every rounding: numbers are first cut to whole multiples of a part of the step, a half for `nearest`
and 1/256 for `stochastic`, and only whole numbers are added to those. Ties of `nearest` go away from zero.

Numbers below 2^-118, subnormal ones among them, count as zero or one step. A tensor with a number that is not finite is
returned unchanged: the format has no infinity and NaN, and checks further on must see them.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, ldexp, prod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adagp.core.block_format import BlockFormat
from adagp.errors import UsageError

LEAST_STEP = -118
"""Exponent of the least step: 256 of its inverses are still a float."""
FINER = {"truncate": 0, "nearest": 1, "stochastic": 8}
"""Bits below the last kept one that a rounding uses."""
SLAB = 1 << 17
"""Numbers that are worked on at once on a CPU, so that they stay in its cache."""


def quantise(
    tensor: Tensor, block_format: BlockFormat, axis: int = -1, *, parts: int = 1, noise: Tensor | None = None
) -> Tensor:
    """Return `tensor` as `block_format` holds it, in groups along `axis`; `parts` equal parts of the axis share no group.

    `noise` has a byte for each number, in memory order; stochastic rounding needs it.
    """
    blocks = Blocks(tensor, axis, block_format.group, block_format.exponent_bits, parts)
    return blocks.converted(block_format, noise)


class Blocks:
    """A tensor cut into groups along one axis, with their shared exponents: made once, converted to any mantissa width."""

    def __init__(self, tensor: Tensor, axis: int, group: int, exponent_bits: int, parts: int = 1) -> None:
        tensor = tensor.detach()
        self._like = tensor
        self._axis, self._parts, self._group = axis, parts, group
        self._groups = self._grouped(tensor)
        self.finite, self._exponents = self._shared_exponents(2**exponent_bits)

    def converted(self, block_format: BlockFormat, noise: Tensor | None = None) -> Tensor:
        """Return the tensor in `block_format`, whose group and exponent must be those that it was cut with."""
        if block_format.rounding == "stochastic" and noise is None:
            raise UsageError("stochastic rounding needs noise: a byte for each number of the tensor.")
        if not self.finite or not self._like.numel():
            return self._like
        source = self._groups if block_format.mantissa_bits + 8 <= 24 else self._groups.double()
        result = torch.empty_like(source)
        exponents = (self._exponents - block_format.mantissa_bits + 1).clamp_(min=LEAST_STEP)
        steps = _GroupSteps.of(exponents, source.dtype, block_format.rounding)
        bits = None if noise is None else self._grouped_noise(noise)
        for slab in self._slabs():
            _convert(source[slab], result[slab], steps.at(slab), block_format, None if bits is None else bits[slab])
        return self._ungrouped(result)

    def improvement(self, low: int, high: int) -> float:
        """Return r, the relative improvement of `high` mantissa bits over `low`, both truncated.

        r = sum |BFP(x, high) - BFP(x, low)| / sum |BFP(x, low)|. Truncated magnitudes are nested, the low one being the upper
        bits of the high one, so that the sum of differences is the difference of the sums. 0 for a tensor of zeros.
        """
        if not self.finite or not self._like.numel():
            return 0.0
        exponents = (self._exponents - high + 1).clamp_(min=LEAST_STEP)
        steps = _GroupSteps.of(exponents, self._groups.dtype, "truncate")
        fines: list[Tensor] = []
        coarses: list[Tensor] = []
        for slab in self._slabs():
            magnitudes = torch.mul(self._groups[slab], steps.inverse[slab]).abs_().trunc_()
            worth = steps.worth[slab]
            coarses.append((magnitudes * 2.0 ** (low - high)).trunc_().mul_(worth).sum())
            fines.append(magnitudes.mul_(worth).sum())
        fine, coarse = (torch.stack(sums).sum(dtype=torch.float64).item() for sums in (fines, coarses))
        coarse *= 2.0 ** (high - low)
        return fine / coarse - 1 if coarse else inf if fine else 0.0

    def _grouped(self, tensor: Tensor) -> Tensor:
        """Return the tensor as `(groups, numbers in a group, others)` in its own memory order, filled up with zeros."""
        tensor = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
        strides = tensor.stride()
        self._order = sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim))
        axis = self._axis % tensor.dim()
        position = self._order.index(axis)
        ordered = tensor.permute(self._order).contiguous()
        self._shape = ordered.shape
        inner = prod(self._shape[position + 1 :])
        self._length = self._shape[position] // self._parts
        lines = ordered.reshape(-1, self._length, inner)
        size = min(self._group, self._length)
        self._padding = (size - self._length % size) % size if size else 0
        lines = F.pad(lines, (0, 0, 0, self._padding)) if self._padding else lines
        return lines.reshape(-1, size, inner) if lines.numel() else lines

    def _grouped_noise(self, noise: Tensor) -> Tensor:
        """Return the noise in the layout of the groups; padding is zero and needs none."""
        inner = self._groups.shape[2]
        lines = noise.to(self._groups.device).view(-1, self._length, inner)
        lines = F.pad(lines, (0, 0, 0, self._padding)) if self._padding else lines
        return lines.reshape(self._groups.shape)

    def _ungrouped(self, groups: Tensor) -> Tensor:
        """Undo `_grouped`, in the tensor's own shape, memory order and type."""
        lines = groups.reshape(-1, self._length + self._padding, groups.shape[2])[:, : self._length]
        ordered = lines.reshape(self._shape).contiguous().to(self._like.dtype)
        back = [0] * len(self._order)
        for position, dim in enumerate(self._order):
            back[dim] = position
        return ordered.permute(back)

    def _shared_exponents(self, window: int) -> tuple[bool, Tensor]:
        """Return whether all numbers are finite, and the groups' exponents within the window below the largest one."""
        groups = self._groups
        if not groups.numel():
            return True, groups.new_zeros(0)
        largest = groups.new_empty(groups.shape[0], 1, groups.shape[2])
        for slab in self._slabs():
            torch.amax(groups[slab].abs(), 1, keepdim=True, out=largest[slab])
        if not bool(largest.isfinite().all()):
            return False, largest
        exponents = torch.frexp(largest).exponent - 1
        exponents.masked_fill_(largest == 0, LEAST_STEP)
        return True, exponents.clamp_(min=int(exponents.max()) - window + 1)

    def _slabs(self) -> Iterator[tuple[slice, slice, slice]]:
        """Yield pieces of the groups: on a CPU small enough for its cache, on other devices all groups at once."""
        count, size, inner = self._groups.shape
        slab = SLAB if self._groups.device.type == "cpu" else self._groups.numel()
        across = min(inner, max(1, slab // size))
        down = max(1, slab // (size * across))
        for start in range(0, count, down):
            for left in range(0, inner, across):
                yield slice(start, start + down), slice(None), slice(left, left + across)


@dataclass(frozen=True)
class _GroupSteps:
    """The steps 2^`exponents` of groups, as floats, and what brings numbers to whole multiples of a part of them."""

    exponents: Tensor
    worth: Tensor
    inverse: Tensor

    @classmethod
    def of(cls, exponents: Tensor, dtype: torch.dtype, rounding: str) -> "_GroupSteps":
        finer = FINER[rounding]
        return cls(exponents, _power_of_two(exponents, dtype), _power_of_two(finer - exponents, dtype))

    def at(self, slab: tuple[slice, slice, slice]) -> "_GroupSteps":
        return _GroupSteps(self.exponents[slab], self.worth[slab], self.inverse[slab])


def _convert(
    numbers: Tensor, result: Tensor, steps: _GroupSteps, block_format: BlockFormat, noise: Tensor | None
) -> None:
    rounding, largest = block_format.rounding, block_format.largest
    _round(numbers, result, steps.inverse, rounding, noise)
    if block_format.overflow == "raise":
        over = result.abs().amax(1, keepdim=True) > largest
        if bool(over.any()):
            steps = _GroupSteps.of(steps.exponents + over, result.dtype, rounding)
            _round(numbers, result, steps.inverse, rounding, noise)
    if rounding != "truncate":
        result.clamp_(-largest, largest)
    result.mul_(steps.worth)


def _round(numbers: Tensor, result: Tensor, inverse: Tensor, rounding: str, noise: Tensor | None) -> None:
    torch.mul(numbers, inverse, out=result).trunc_()
    if rounding == "nearest":
        # A whole number of half steps. A push away from zero that is too small to reach another tie rounds ties that way.
        result.mul_(0.5 * (1 + ldexp(1.0, -17 if result.dtype is torch.float32 else -30))).round_()
    elif rounding == "stochastic":
        assert noise is not None
        # With 8 bits below the last kept one: a random byte carries into it with the probability of these bits.
        result.add_(noise.to(result.dtype).copysign_(result)).mul_(1 / LEVELS).trunc_()


def _power_of_two(exponents: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 2^`exponents` in single or double precision, whose exponent bits they become."""
    if dtype is torch.float32:
        return (exponents + 127).bitwise_left_shift_(23).view(torch.float32)
    return (exponents.long() + 1023).bitwise_left_shift_(52).view(torch.float64)


LEVELS = 256
"""Values of the noise: eight bits. A remainder below 1/256 of a step is never rounded up."""


def keyed_noise(count: int, *key: object) -> Tensor:
    """Return `count` bytes of noise on the CPU: those of a counter-based generator (Philox) under the digest of `key`.

    Keys are seeds, steps, names: the same key gives the same noise in a resumed run, another key unrelated noise.
    """
    digest = hashlib.blake2b(" ".join(map(str, key)).encode(), digest_size=16).digest()
    words = np.random.Philox(key=int.from_bytes(digest, "big")).random_raw(-(-count // 8))
    return torch.from_numpy(words.view(np.uint8)[:count])
