"""The three products on one array against NumPy, over drawn sizes; no matrix is ever transposed on the way in."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import layer_norm, scaled_dot_product_attention

from adagp.papers.lecture.experiments import NUMERIC, formula_errors
from adagp.papers.lecture.systolic import (
    SystolicArray,
    attention_backward,
    normalisation_backward,
    softmax,
    softmax_backward,
)

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


def gradient_of(tensor: torch.Tensor) -> np.ndarray:
    assert tensor.grad is not None
    return np.asarray(tensor.grad)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_formulas_agree_with_finite_differences() -> None:
    errors = formula_errors()
    assert list(errors) == ["softmax", "beta", "alpha", "attention"]
    assert max(errors.values()) < NUMERIC


def test_softmax() -> None:
    torch.manual_seed(0)
    scores, gradient = drawn(3, 7), torch.randn(3, 7, dtype=torch.float64)
    torch.softmax(scores, -1).backward(gradient)
    ours = softmax_backward(softmax(scores.detach().numpy()), gradient.numpy())
    assert np.abs(ours - gradient_of(scores)).max() < 1e-12


def test_normalisation() -> None:
    torch.manual_seed(0)
    inputs, gradient = drawn(3, 7), torch.randn(3, 7, dtype=torch.float64)
    scale, shift = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (1.5, 0.5))
    (scale * layer_norm(inputs, (7,), eps=0.0) + shift).backward(gradient)
    at_inputs, at_scale, at_shift = normalisation_backward(inputs.detach().numpy(), 1.5, gradient.numpy())
    assert np.abs(at_inputs - gradient_of(inputs)).max() < 1e-12
    assert abs(at_scale - gradient_of(scale)) < 1e-12
    assert abs(at_shift - gradient_of(shift)) < 1e-12


def test_attention() -> None:
    torch.manual_seed(0)
    queries, keys, values = drawn(5, 4), drawn(5, 4), drawn(5, 4)
    gradient = torch.randn(5, 4, dtype=torch.float64)
    scaled_dot_product_attention(queries, keys, values).backward(gradient)
    ours = attention_backward(
        queries.detach().numpy(), keys.detach().numpy(), values.detach().numpy(), gradient.numpy()
    )
    for own, tensor in zip(ours, (queries, keys, values), strict=True):
        assert np.abs(own - gradient_of(tensor)).max() < 1e-12
