"""Block floating point: groups of numbers that share one exponent. Only the format, which training and hardware models share.

In `BFP(g, e, m)` g numbers share an exponent E; each has a sign and a magnitude k of m bits without a hidden one, and is worth
`(-1)^s * k * 2^(E - m + 1)`: the leading bit of a magnitude is worth 2^E. E is the exponent of the group's largest number.

The exponent's e bits count from a window: of 2^e exponents, the highest is that of the tensor's largest group, and groups
below the window use its lowest one. (This is adagp's choice; the FAST paper does not specify what its exponents count from.)

Magnitudes are stored as chunks of two bits, each with a sign bit of its own, so that the upper chunks can be read alone.
"""

from dataclasses import dataclass

from adagp.errors import OptionError, unknown_name

ROUNDINGS = ("nearest", "truncate", "stochastic")
"""k = floor(|x| / step + u) with u = 1/2, 0, or noise of 8 bits."""
OVERFLOWS = ("saturate", "raise")
"""What happens to a magnitude that is rounded up to 2^m: it stays at 2^m - 1, or its group's exponent is raised by one."""
CHUNK_BITS = 2
"""Bits of a magnitude that are multiplied, and stored with a sign, at once."""
MOST_MANTISSA_BITS, MOST_EXPONENT_BITS, LARGEST_GROUP = 24, 8, 65536


@dataclass(frozen=True)
class BlockFormat:
    """How a tensor is converted: `group` numbers share an exponent of `exponent_bits`; magnitudes have `mantissa_bits`."""

    group: int = 16
    exponent_bits: int = 4
    mantissa_bits: int = 4
    rounding: str = "nearest"
    overflow: str = "saturate"

    def __post_init__(self) -> None:
        for name, value, most in (
            ("group", self.group, LARGEST_GROUP),
            ("exponent bits", self.exponent_bits, MOST_EXPONENT_BITS),
            ("mantissa bits", self.mantissa_bits, MOST_MANTISSA_BITS),
        ):
            if not 1 <= value <= most:
                raise OptionError(f"{name} of block floating point: {value} was given; it must be 1 to {most}.")
        if self.rounding not in ROUNDINGS:
            raise unknown_name("rounding", self.rounding, ROUNDINGS)
        if self.overflow not in OVERFLOWS:
            raise unknown_name("overflow", self.overflow, OVERFLOWS)

    @property
    def largest(self) -> int:
        """The largest magnitude."""
        return int(2**self.mantissa_bits - 1)

    @property
    def window(self) -> int:
        """The number of different exponents."""
        return int(2**self.exponent_bits)

    @property
    def chunks(self) -> int:
        """The number of chunks of a magnitude."""
        return -(-self.mantissa_bits // CHUNK_BITS)

    @property
    def group_bits(self) -> int:
        """Bits of a group in memory: the shared exponent, and each number's chunks with their signs."""
        return self.exponent_bits + self.group * self.chunks * (CHUNK_BITS + 1)
