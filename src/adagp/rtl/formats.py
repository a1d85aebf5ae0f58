"""Number formats of the array: narrow values, wide sums, and one multiply-add, as a numpy model that is exact to the bit.

Words are bit patterns in int64 arrays. A **value** is what memories hold and multipliers take; a **sum** is what adders give.
The same operations in gates are in `gates.py` and `float_gates.py`; the tests compare the two.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagp.core.registry import Registry
from adagp.errors import unknown_name

Words = NDArray[np.int64]
Reals = NDArray[np.float64]

GUARD_BITS = 16
"""Bits of an integer sum above a product's: this many doublings before it can overflow."""


@dataclass(frozen=True)
class ArrayFormat(ABC):
    """What the array multiplies and adds. `value_bits` and `sum_bits` are widths of words."""

    name: str
    value_bits: int
    sum_bits: int

    @property
    @abstractmethod
    def longest_sum(self) -> int | None:
        """Products that a sum takes for certain without overflow; None: any number."""

    @property
    def word_bits(self) -> int:
        """Width of what moves through the array: values and sums."""
        return max(self.value_bits, self.sum_bits)


@dataclass(frozen=True)
class NumberFormat(ArrayFormat):
    """A kind of single numbers, of which each value is one."""

    @abstractmethod
    def encode(self, reals: Any) -> Words:
        """Return the values nearest to `reals`."""

    @abstractmethod
    def decode(self, values: Words) -> Reals:
        """Return the numbers that values encode."""

    @abstractmethod
    def decode_sums(self, sums: Words) -> Reals:
        """Return the numbers that sums encode."""

    @abstractmethod
    def multiply_add(self, left: Words, right: Words, sums: Words) -> Words:
        """Return the sums plus the products of values `left` and `right`."""

    @abstractmethod
    def promote(self, values: Words) -> Words:
        """Return values as sums, exactly."""

    @abstractmethod
    def convert(self, sums: Words) -> Words:
        """Return sums rounded to values."""

    @abstractmethod
    def positive(self, values: Words) -> NDArray[np.bool_]:
        """Return which values are above zero."""

    @abstractmethod
    def relu(self, sums: Words) -> Words:
        """Return sums with zero for what is below it."""

    @abstractmethod
    def share(self, count: int) -> tuple[int, int]:
        """Return 1 / `count` for `scale`: a factor, which is a value, and by how many bits the product is shifted right."""

    @abstractmethod
    def scale(self, sums: Words, factor: int, shift: int) -> Words:
        """Return sums times the value `factor`, shifted right by `shift` bits."""


def _unsigned(words: Words, bits: int) -> Words:
    return words & ((1 << bits) - 1)


def _signed(words: Words, bits: int) -> Words:
    half = 1 << (bits - 1)
    result: Words = ((words & ((1 << bits) - 1)) ^ half) - half
    return result


@dataclass(frozen=True)
class Integers(NumberFormat):
    """Fixed point: two's complement with `fraction` bits behind the point; a sum has twice as many."""

    fraction: int = 0

    @property
    def longest_sum(self) -> int:
        """Products that a sum takes for certain."""
        return 1 << GUARD_BITS

    def encode(self, reals: Any) -> Words:
        """Return the nearest values."""
        limit = 1 << (self.value_bits - 1)
        scaled = np.floor(np.asarray(reals, np.float64) * (1 << self.fraction) + 0.5)
        return _unsigned(np.clip(scaled, -limit, limit - 1).astype(np.int64), self.value_bits)

    def decode(self, values: Words) -> Reals:
        """Return the numbers that values encode."""
        result: Reals = _signed(values, self.value_bits) / (1 << self.fraction)
        return result

    def decode_sums(self, sums: Words) -> Reals:
        """Return the numbers that sums encode."""
        result: Reals = _signed(sums, self.sum_bits) / (1 << 2 * self.fraction)
        return result

    def multiply_add(self, left: Words, right: Words, sums: Words) -> Words:
        """Return the sums plus the products."""
        product = _signed(left, self.value_bits) * _signed(right, self.value_bits)
        return _unsigned(_signed(sums, self.sum_bits) + product, self.sum_bits)

    def promote(self, values: Words) -> Words:
        """Return values as sums."""
        return _unsigned(_signed(values, self.value_bits) << self.fraction, self.sum_bits)

    def convert(self, sums: Words) -> Words:
        """Round half up, and saturate."""
        limit = 1 << (self.value_bits - 1)
        half = (1 << self.fraction) >> 1
        rounded = (_signed(sums, self.sum_bits) + half) >> self.fraction
        return _unsigned(np.clip(rounded, -limit, limit - 1), self.value_bits)

    def positive(self, values: Words) -> NDArray[np.bool_]:
        """Return which values are above zero."""
        return _signed(values, self.value_bits) > 0

    def relu(self, sums: Words) -> Words:
        """Return sums with zero for what is below it."""
        return np.where(_signed(sums, self.sum_bits) < 0, 0, sums)

    def share(self, count: int) -> tuple[int, int]:
        """Return a factor above 1/2 and at most 1: of small numbers few bits would be left."""
        shift = count.bit_length() - 1
        return int(self.encode((1 << shift) / count)), shift

    def scale(self, sums: Words, factor: int, shift: int) -> Words:
        """Return sums times a value, rounded down."""
        product = _signed(sums, self.sum_bits) * _signed(np.array(factor), self.value_bits)
        return _unsigned(product >> (self.fraction + shift), self.sum_bits)


@dataclass(frozen=True)
class Floats(NumberFormat):
    """IEEE 754 binary values, with infinities and subnormals; sums, and products before they are added, are rounded to fp32.

    All rounding is to nearest, ties to even. There is one NaN.
    """

    exponent_bits: int = 8
    mantissa_bits: int = 23

    @property
    def longest_sum(self) -> None:
        """Products that a sum takes for certain."""
        return None

    def encode(self, reals: Any) -> Words:
        """Return the nearest values."""
        with np.errstate(over="ignore"):
            return self.convert(single_bits(np.asarray(reals, np.float64).astype(np.float32)))

    def decode(self, values: Words) -> Reals:
        """Return the numbers that values encode."""
        return self.decode_sums(self.promote(values))

    def decode_sums(self, sums: Words) -> Reals:
        """Return the numbers that sums encode."""
        with np.errstate(invalid="ignore"):  # of NaNs that signal
            return single_reals(sums).astype(np.float64)

    def multiply_add(self, left: Words, right: Words, sums: Words) -> Words:
        """Return the sums plus the products."""
        with np.errstate(all="ignore"):
            return single_bits(
                single_reals(sums) + single_reals(self.promote(left)) * single_reals(self.promote(right))
            )

    def promote(self, values: Words) -> Words:
        """Return values as sums."""
        if self.mantissa_bits == 23:
            return values
        if self.exponent_bits == 8:
            return single_bits(single_reals(values << 16))
        return single_bits(np.array(values, np.uint16, order="C").view(np.float16).astype(np.float32))

    def convert(self, sums: Words) -> Words:
        """Return the nearest values."""
        if self.mantissa_bits == 23:
            return sums
        if self.exponent_bits == 8:
            words = single_bits(single_reals(sums))
            rounded = (words + 0x7FFF + ((words >> 16) & 1)) >> 16
            return np.where(np.isnan(single_reals(sums)), 0x7FC0, rounded)
        with np.errstate(over="ignore"):
            half = np.array(single_reals(sums), np.float16, order="C")
        return np.where(np.isnan(half), 0x7E00, half.view(np.uint16).astype(np.int64))

    def positive(self, values: Words) -> NDArray[np.bool_]:
        """Return which values are above zero."""
        return single_reals(self.promote(values)) > 0

    def relu(self, sums: Words) -> Words:
        """Return sums with zero for what is below it."""
        return np.where(single_reals(sums) > 0, sums, 0)

    def share(self, count: int) -> tuple[int, int]:
        """Return the nearest value, which is not shifted."""
        return int(self.encode(1 / count)), 0

    def scale(self, sums: Words, factor: int, shift: int) -> Words:
        """Return sums times a value, rounded."""
        with np.errstate(all="ignore"):
            return single_bits(single_reals(sums) * single_reals(self.promote(np.array(factor))))


@dataclass(frozen=True)
class GroupedFormat(ArrayFormat):
    """Groups of numbers that share an exponent; only the array works on them.

    A group takes one word or two (`wide` matrices). A PE multiplies two groups in one pass for each pair of their words, and
    adds the product to a sum. A paper or plug-in adds its format to GROUPED_FORMATS.
    """

    @abstractmethod
    def element(self, stages: int) -> Any:
        """Return a processing element (a `GroupedElement`) with this many pipeline stages."""

    @abstractmethod
    def check_product(
        self,
        blueprint: Any,
        dataflow: str,
        operation: str,
        sizes: tuple[int, int, int],
        mantissa_bits: str | None,
        seed: int,
        vcd: Path | None,
    ) -> dict[str, Any]:
        """Run a product of random matrices on a simulated chip of `blueprint` (a `Blueprint`).

        Return what it took, and as `equal` whether sums and cycles are those of the models.
        """


def single_reals(words: Words) -> NDArray[np.float32]:
    """Return the numbers that fp32 words encode."""
    return np.array(words, np.uint32, order="C").view(np.float32)


def single_bits(reals: NDArray[np.float32]) -> Words:
    """Return fp32 words; all NaNs are one."""
    words = np.array(reals, np.float32, order="C").view(np.uint32).astype(np.int64)
    return np.where(np.isnan(reals), 0x7FC00000, words)


FORMATS: dict[str, NumberFormat] = {
    "int8": Integers("int8", 8, 16 + GUARD_BITS, fraction=4),
    "int16": Integers("int16", 16, 32 + GUARD_BITS, fraction=8),
    "bf16": Floats("bf16", 16, 32, exponent_bits=8, mantissa_bits=7),
    "fp16": Floats("fp16", 16, 32, exponent_bits=5, mantissa_bits=10),
    "fp32": Floats("fp32", 32, 32),
}
"""Formats of single numbers."""
GROUPED_FORMATS = Registry[GroupedFormat]("number format", extensible=True)
"""Formats of groups, which papers and plug-ins add."""


def find_format(name: str) -> ArrayFormat:
    """Return the format of that name."""
    if name in FORMATS:
        return FORMATS[name]
    if name not in GROUPED_FORMATS:
        raise unknown_name("number format", name, [*FORMATS, *GROUPED_FORMATS])
    return GROUPED_FORMATS[name]
