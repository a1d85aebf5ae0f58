"""Tiles of a layer's own mask against counting weight by weight, and the lecture's lines against DropBack."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adagp.papers.procrustes.experiments import printed_rule
from adagp.papers.procrustes.hardware import Tile, counts_of_mask, drawn_counts, inverse_speedup, unbalanced_share


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 9), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99)
)
def test_half_tiles_of_a_mask(filters: int, channels: int, kernel: int, depth: int, side: int, seed: int) -> None:
    mask = np.random.default_rng(seed).random((filters, channels, kernel)) < 0.4
    tile = Tile(2, depth, kernel)
    counts, dense = counts_of_mask(mask, tile, side)
    drawn, drawn_dense = drawn_counts(channels, filters, tile, side, 0.5, np.random.default_rng(0))
    assert (dense == drawn_dense).all()
    assert counts.shape == drawn.shape
    expected = np.zeros_like(counts)
    deep = -(-filters // depth)
    for row, column, tap in np.argwhere(mask):
        wide, half = divmod(column, 2 * side)
        expected[wide * deep + row // depth, half] += 1
        assert 0 <= tap < kernel
    assert (counts == expected).all()
    assert inverse_speedup(counts, dense) <= 1
    assert unbalanced_share(dense, dense) == 1 == inverse_speedup(dense, dense)


def test_the_lectures_lines_are_dropback_without_decay() -> None:
    printed, ours = printed_rule()
    assert int((ours != 0).sum()) == 10
    np.testing.assert_allclose(printed.numpy(), ours.numpy(), atol=1e-12)
