"""The three products on one array against NumPy, over drawn sizes; no matrix is ever transposed on the way in."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adagp.papers.lecture.systolic import SystolicArray

sizes = st.integers(1, 5)


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, sizes, st.integers(0, 99))
def test_the_products_of_training(samples: int, inputs: int, outputs: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    x, w, dy = (draw.integers(-9, 9, shape) for shape in ((samples, inputs), (inputs, outputs), (samples, outputs)))
    array = SystolicArray(w.tolist())
    assert array.forward(x.tolist()) == (x @ w).tolist()
    assert array.input_gradient(dy.tolist()) == (dy @ w.T).tolist()
    assert array.weight_gradient(x.tolist(), dy.tolist()) == (x.T @ dy).tolist()
    assert array.cycles == 3 * (samples + inputs + outputs - 2)
