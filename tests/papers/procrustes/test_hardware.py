"""Balanced half tiles against every possible pairing, against a PE-by-PE simulation, and at the edges."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from adagp.hw.systems import EpochRecord, LayerRecord, SystemOptions, run_on_system
from adagp.hw.workload import Attention, Convolution, Linear, Workload
from adagp.papers.procrustes.hardware import (
    SIDE,
    Counts,
    LayerShape,
    Tile,
    drawn_counts,
    fullest,
    index_bits,
    inverse_speedup,
    training_cost,
)


def matchings(items: list[int]) -> Iterator[list[tuple[int, int]]]:
    """Yield every way to put the items into pairs."""
    if not items:
        yield []
        return
    first, *rest = items
    for place, other in enumerate(rest):
        for more in matchings(rest[:place] + rest[place + 1 :]):
            yield [(first, other), *more]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4).flatmap(
        lambda halves: st.tuples(*[st.integers(0, 9)] * (2 * len(halves)))
    )
)
def test_no_pairing_has_a_less_full_pair(halves: tuple[int, ...]) -> None:
    """Up to eight halves, all perfect matchings."""
    best = min(max(sum(pair) for pair in pairs) for pairs in matchings(list(halves)))
    assert fullest(np.array([halves])) == [best]


def unbalanced(counts: Counts) -> Counts:
    """Return for each array-full the nonzeros of the fullest PE, if each keeps its own two halves."""
    found: Counts = np.max(counts[:, ::2] + counts[:, 1::2], axis=1, initial=0)
    return found


def unbalanced_inverse_speedup(counts: Counts, dense: Counts) -> float:
    return float(np.mean(unbalanced(counts) / np.maximum(1, unbalanced(dense))))


def tile_counts(mask: NDArray[np.bool_], tile: Tile, side: int) -> tuple[Counts, Counts]:
    """Return nonzeros and weights of the half tiles of a mask `(channels, filters, kernel)` on `side` PEs."""
    channels, filters, _ = mask.shape
    half = tile.channels // 2
    wide, deep = -(-channels // (half * 2 * side)), -(-filters // tile.filters)

    def halves(weights: NDArray[np.bool_]) -> Counts:
        padded = np.zeros((wide * side * 2 * half, deep * tile.filters, mask.shape[2]), dtype=np.int64)
        padded[:channels, :filters] = weights
        shape = (wide, 2 * side, half, deep, tile.filters, mask.shape[2])
        found: Counts = padded.reshape(shape).sum(axis=(2, 4, 5)).transpose(0, 2, 1).reshape(wide * deep, 2 * side)
        return found

    return halves(mask), halves(np.ones_like(mask))


def random_mask(density: float, channels: int = 40, filters: int = 12, kernel: int = 9) -> NDArray[np.bool_]:
    return np.random.default_rng(0).random((channels, filters, kernel)) < density


@pytest.mark.parametrize("density", [0.05, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("tile", [Tile(2, 4, 9), Tile(4, 5, 9), Tile(2, 12, 9)])
def test_counts_are_those_of_a_simulation_of_each_element(density: float, tile: Tile) -> None:
    mask, side = random_mask(density), 4
    counts, dense = tile_counts(mask, tile, side)
    half = tile.channels // 2
    rows = [
        [
            int(mask[base + part * half : base + (part + 1) * half, first : first + tile.filters].sum())
            for part in range(2 * side)
        ]
        for base in range(0, 40, 2 * half * side)  # array-fulls: channels, then filters
        for first in range(0, 12, tile.filters)
    ]
    assert counts.tolist() == rows
    assert (counts <= dense).all()
    busy = [max(row[2 * pe] + row[2 * pe + 1] for pe in range(side)) for row in rows]
    assert unbalanced(counts).tolist() == busy


@pytest.mark.parametrize("density", [0.05, 0.1, 0.3])
def test_balancing_lies_between_none_and_the_ideal(density: float) -> None:
    counts, dense = tile_counts(random_mask(density, 64, 32), Tile(2, 8, 9), 16)
    balanced, without = inverse_speedup(counts, dense), unbalanced_inverse_speedup(counts, dense)
    assert without >= balanced >= counts.sum() / dense.sum()
    assert without > balanced


def test_all_weights_take_the_dense_time_whatever_the_edges() -> None:
    for channels, filters in ((3, 5), (16, 16), (33, 7)):
        for counts in (
            tile_counts(np.ones((channels, filters, 9), dtype=np.bool_), Tile(4, 3, 9), 16),
            drawn_counts(channels, filters, Tile(4, 3, 9), 16, 1.0, np.random.default_rng(0)),
        ):
            assert inverse_speedup(*counts) == 1.0
            assert unbalanced_inverse_speedup(*counts) == 1.0


def test_drawn_tiles_have_the_sizes_of_real_ones() -> None:
    for channels, filters in ((40, 12), (3, 5), (64, 10)):
        tile = Tile(4, 5, 9)
        dense = tile_counts(np.ones((channels, filters, 9), dtype=np.bool_), tile, 4)[1]
        assert np.array_equal(drawn_counts(channels, filters, tile, 4, 0.1, np.random.default_rng(1))[1], dense)


def test_the_speed_ups_of_large_layers() -> None:
    """512 x 512 3x3 at density 0.1, 16 PEs, 2 x 32 kernels each: about 8 without balancing, 9.5 with, ideal 10."""
    counts = drawn_counts(512, 512, Tile(2, 32, 9), 16, 0.1, np.random.default_rng(0))
    assert 1 / unbalanced_inverse_speedup(*counts) == pytest.approx(8.2, abs=0.3)
    assert 1 / inverse_speedup(*counts) == pytest.approx(9.5, abs=0.2)


Packed = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.float32]]
"""Masks of the blocks, the index of each block's first value, and the values."""


def pack_blocks(weights: NDArray[np.float32], block: int) -> Packed:
    """Return weights in compressed sparse blocks; the last block is filled up with zeros."""
    flat = np.zeros(-(-weights.size // block) * block, dtype=np.float32)
    flat[: weights.size] = weights.reshape(-1)
    mask = flat.reshape(-1, block) != 0
    starts = np.concatenate([[0], np.cumsum(mask.sum(axis=1))[:-1]])
    return np.packbits(mask, axis=1), starts, flat[flat != 0]


def unpack_blocks(packed: Packed, block: int, size: int) -> NDArray[np.float32]:
    """Return the weights that were packed, each block by its pointer alone."""
    bits, starts, values = packed
    weights = np.zeros((len(bits), block), dtype=np.float32)
    for row, (mask, start) in enumerate(zip(np.unpackbits(bits, axis=1, count=block), starts, strict=True)):
        kept = np.flatnonzero(mask)
        weights[row, kept] = values[start : start + len(kept)]
    return weights.reshape(-1)[:size]


@pytest.mark.parametrize("block", [1, 9, 16])
def test_compressed_blocks_restore_the_weights_and_take_the_modelled_bits(block: int) -> None:
    weights = np.where(random_mask(0.2, 5, 3), 1.5, 0).astype(np.float32)
    masks, starts, values = packed = pack_blocks(weights, block)
    assert np.array_equal(unpack_blocks(packed, block, weights.size), weights.reshape(-1))
    assert index_bits(weights.size, block) == len(masks) * block + 20 * len(starts)
    assert len(values) == np.count_nonzero(weights)


CONV = Convolution("conv", 32, 64, (3, 3), (16, 16), (16, 16))
NET = Workload("net", (replace(CONV, name="first", input_gradient=False), CONV, Linear("fc", 1, 64, 10)))


def records(workload: Workload, weight: float, inputs: float) -> dict[str, LayerRecord]:
    return {layer.name: LayerRecord(weight, inputs) for layer in workload.array_layers}


def test_all_weights_and_inputs_are_exactly_the_dense_array() -> None:
    cost = training_cost(NET, 32, {})
    assert cost.notes["speed-up over dense on the same array"] == 1.0
    assert cost.notes["energy of dense over ours"] == pytest.approx(1.0)
    shape = LayerShape(CONV, 32)
    assert shape.dense_cycles(shape.c, shape.n) == 2 * 2 * 64 * 9 * 256 == shape.macs / SIDE**2
    passes = 3 * shape.macs + 2 * LayerShape(NET.array_layers[0], 32).macs
    fc = LayerShape(NET.array_layers[2], 32)
    assert cost.batch().cycles == passes / SIDE**2 + sum(
        fc.dense_cycles(*sides) for sides in ((fc.c, fc.n), (fc.k, fc.n), (fc.n, fc.k))
    )


@pytest.mark.parametrize(("weight", "inputs"), [(0.1, 0.5), (0.2, 0.5), (0.1, 1.0)])
def test_a_sparse_array_gains_at_most_the_ideal(weight: float, inputs: float) -> None:
    workload = Workload("net", (CONV,))
    cost = training_cost(workload, 32, records(workload, weight, inputs))
    ideal = 3 / (2 * weight + inputs)
    assert 0.7 * ideal < float(cost.notes["speed-up over dense on the same array"]) <= ideal + 1e-6
    assert 1 < float(cost.notes["energy of dense over ours"]) < ideal
    assert float(cost.notes["cycles over ideal ones"]) >= 1


def test_attention_is_dense_and_depthwise_layers_use_their_channels() -> None:
    attention = Workload("net", (Attention("attention", 4, 16, 8, 16),))
    assert training_cost(attention, 2, records(attention, 0.1, 0.1)).notes["speed-up over dense on the same array"] == 1
    depthwise = LayerShape(replace(CONV, out_channels=32, groups=32), 32)
    assert depthwise.dense_cycles(depthwise.c, depthwise.n) == depthwise.macs / SIDE**2


def test_a_run_is_the_sum_of_its_epochs_and_ends_at_the_target() -> None:
    dense, sparse = records(NET, 1.0, 1.0), records(NET, 0.1, 0.5)
    epochs = [
        EpochRecord(10, 0, dense),
        EpochRecord(6, 4, sparse, reached=True),
        EpochRecord(10, 0, sparse, reached=True),
    ]
    found = run_on_system("procrustes", NET, 32, epochs, SystemOptions())
    one, other = (training_cost(NET, 32, layers) for layers in (dense, sparse))
    reached = one.batch() * 10 + other.batch() * 6 + other.batch(predicted=True) * 4
    assert found.to_target == reached
    assert found.total.cycles == pytest.approx((reached + other.batch() * 10).cycles)
    assert run_on_system("procrustes", NET, 32, epochs[:1], SystemOptions()).to_target is None
