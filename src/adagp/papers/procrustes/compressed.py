"""Compressed sparse blocks: for each block of weights a bit for each, a pointer, and the values that are not zero."""

import numpy as np
from numpy.typing import NDArray

POINTER_BITS = 20
WORD_BITS = 32

Packed = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.float32]]
"""The bits of the blocks, each block's first value among the values, and the values."""


def pack_blocks(weights: NDArray[np.float32], block: int) -> Packed:
    """Return weights in blocks of so many, the last one filled up with zeros."""
    flat = np.zeros(-(-weights.size // block) * block, dtype=np.float32)
    flat[: weights.size] = weights.reshape(-1)
    mask = flat.reshape(-1, block) != 0
    starts = np.concatenate([[0], np.cumsum(mask.sum(axis=1))[:-1]])
    return np.packbits(mask, axis=1), starts, flat[flat != 0]


def unpack_blocks(packed: Packed, block: int, size: int) -> NDArray[np.float32]:
    """Return the weights that were packed; a block is found by its pointer alone."""
    bits, starts, values = packed
    found = np.zeros((len(bits), block), dtype=np.float32)
    for row, (held, start) in enumerate(zip(np.unpackbits(bits, axis=1, count=block), starts, strict=True)):
        places = np.flatnonzero(held)
        found[row, places] = values[start : start + len(places)]
    return found.reshape(-1)[:size]


def packed_bits(weights: int, nonzeros: float, block: int) -> float:
    """Return the bits that so many weights take."""
    return index_bits(weights, block) + WORD_BITS * nonzeros


def index_bits(weights: int, block: int) -> int:
    """Return the bits of masks and pointers."""
    return -(-weights // block) * (block + POINTER_BITS)
