"""The backward formulas of softmax, normalisation and attention as arithmetic, with the operations that they take.

The accelerator model counts these layers by what they move; the counts here say what they compute. All work on float64 arrays
whose last axis is the one that softmax or the normalisation goes over.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def softmax(scores: Array) -> Array:
    """Return exp(z) / sum exp(z)."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    result: Array = powers / powers.sum(-1, keepdims=True)
    return result


def softmax_jacobian(shares: Array) -> Array:
    """Return diag(s) - s s^T of one row, as the lecture prints it."""
    result: Array = np.diag(shares) - np.outer(shares, shares)
    return result


def softmax_backward(shares: Array, gradient: Array) -> Array:
    """Return the gradient at the scores, without the matrix: s (g - sum(s g))."""
    result: Array = shares * (gradient - (shares * gradient).sum(-1, keepdims=True))
    return result


def normalised(inputs: Array) -> tuple[Array, Array]:
    """Return (z - mean) / deviation and the deviation, over the last axis."""
    centred = inputs - inputs.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True))
    return centred / deviation, deviation


def normalisation_backward(inputs: Array, scale: float, gradient: Array) -> tuple[Array, float, float]:
    """Return the gradients at the inputs, at the scale and at the shift of s = scale * normalised(z) + shift."""
    unit, deviation = normalised(inputs)
    inner = scale * gradient
    at_inputs = (inner - inner.mean(-1, keepdims=True) - unit * (inner * unit).mean(-1, keepdims=True)) / deviation
    return at_inputs, float((gradient * unit).sum()), float(gradient.sum())


def attention_backward(queries: Array, keys: Array, values: Array, gradient: Array) -> tuple[Array, Array, Array]:
    """Return the gradients at queries, keys and values of softmax(Q K^T / sqrt(d)) V: six products and softmax's formula."""
    root = np.sqrt(queries.shape[-1])
    shares = softmax(queries @ keys.T / root)
    at_scores = softmax_backward(shares, gradient @ values.T) / root
    return at_scores @ keys, at_scores.T @ queries, shares.T @ gradient


@dataclass(frozen=True)
class Operations:
    """Additions, multiplications and others (exponentials, divisions, roots) for each number of a layer's output."""

    forward: float
    backward: float


def operations(length: int) -> dict[str, Operations]:
    """Return the operations a number, over rows of `length` numbers; what is made once a row is shared by its numbers."""
    once = 1 / length
    return {
        # exp, sum, division; then s*g, its sum, g - sum, s*(...)
        "softmax": Operations(forward=3.0, backward=4.0),
        "softmax by its matrix": Operations(forward=3.0, backward=2.0 * length),
        # mean, centring, square, sum, division, scale and shift; then the two means and four products and differences
        "normalisation": Operations(forward=7.0 + 2 * once, backward=10.0 + 2 * once),
    }
