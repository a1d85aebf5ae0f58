"""Dot products of groups as a cell of FAST's array makes them: chunk by chunk."""

from collections.abc import Sequence

from adagp.core.block_format import CHUNK_BITS


def chunk_serial_sum(first: Sequence[int], second: Sequence[int], bits: tuple[int, int]) -> tuple[int, int]:
    """Return the dot product of two groups of signed magnitudes as an fMAC makes it, and in how many passes."""
    total = passes = 0
    for place in range(-(-bits[0] // CHUNK_BITS)):
        for other in range(-(-bits[1] // CHUNK_BITS)):
            tree = sum(_chunk(one, place) * _chunk(two, other) for one, two in zip(first, second, strict=True))
            total += tree << CHUNK_BITS * (place + other)
            passes += 1
    return total, passes


def _chunk(number: int, place: int) -> int:
    """Return two bits of a magnitude, with its sign."""
    bits = abs(number) >> CHUNK_BITS * place & (1 << CHUNK_BITS) - 1
    return -bits if number < 0 else bits
