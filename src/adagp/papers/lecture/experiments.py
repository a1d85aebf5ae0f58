"""Lecture 11: worked products on one array, backward formulas, reversible blocks. Arithmetic; nothing is trained."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from adagp.hw.workload import Elementwise
from adagp.papers.lecture.systolic import (
    Array,
    SystolicArray,
    attention_backward,
    normalisation_backward,
    normalised,
    operations,
    softmax,
    softmax_jacobian,
)
from adagp.program.figures.style import grouped_bars, subplots
from adagp.program.reproduce.experiment import Conclusion, Experiment, Workspace, add_experiment
from adagp.program.reproduce.published import published
from adagp.program.reproduce.verdict import Verdict, compare, judge
from adagp.program.workloads import model_workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRODUCTS, BACKWARD, REVERSIBLE = "lecture-products", "lecture-backward", "lecture-reversible"
X, W, DY = ((1, 4), (5, 2)), ((2, 3), (0, 1)), ((3, 4), (1, 2))
"""The matrices of the worked examples."""
ROUNDING = 1e-9
"""By how much two ways to compute the same in double precision may differ."""
DEPTHS = (2, 4, 8, 16)
BLOCKS = 16
"""Reversible blocks in the chain."""
MINUTES = {"quick": 0.1, "standard": 0.1, "full": 0.1}


def _bars(rows: list[dict[str, Any]], name: str, columns: tuple[str, ...], label: str) -> "Figure":
    figure, axes = subplots(1, 1, (7, 4))
    grouped_bars(
        axes[0][0], [str(row[name]) for row in rows], {column: [row[column] for row in rows] for column in columns}
    )
    axes[0][0].set(ylabel=label)
    return figure


def conclude_products(budget: str, workspace: Workspace) -> Conclusion:
    """Make the three worked products on the array, cell by cell."""
    section, array = published(PRODUCTS), SystolicArray(W)
    rows: list[dict[str, Any]] = []
    verdicts: list[Verdict] = []
    for name, product in (
        ("y", array.forward(X)),
        ("dx", array.input_gradient(DY)),
        ("dw", array.weight_gradient(X, DY)),
    ):
        rows.append(
            {"product": name, "result": str(product), "cycles": array.cycles - sum(row["cycles"] for row in rows)}
        )
        verdicts += [
            compare(
                f"{name}, row {line + 1}, column {column + 1}",
                section.number(name, str(line), str(column)),
                product[line][column],
                "computed",
            )
            for line in range(2)
            for column in range(2)
        ]
    agree = all(verdict.difference == 0 for verdict in verdicts)
    text = "cell by cell; the weights were loaded once, and no matrix was transposed; " + ", ".join(
        f"{row['product']} {row['cycles']} cycles" for row in rows
    )
    verdicts += [
        judge(f"claim: {name}", section.claim(name), agree, text, "computed") for name in ("in_place", "directions")
    ]
    return Conclusion(
        rows, verdicts, lambda: _bars(rows, "product", ("cycles",), "cycles on 2x2 cells, without loading")
    )


def conclude_backward(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the formulas with finite differences, count their operations, and look at memory and work by depth."""
    section = published(BACKWARD)
    errors = formula_errors()
    work = {depth: _depth_work(depth) for depth in DEPTHS}
    last = work[DEPTHS[-1]]
    kept = ", ".join(str(own["activations"]) for own in work.values())
    linear = len({own["activations"] / depth for depth, own in work.items()}) == 1
    texts = {"softmax": _transformer_share(), "attention": "six products and softmax's formula"}
    verdicts = [
        judge(
            f"formula: {name}",
            section.claim(name),
            error < NUMERIC,
            "; ".join(filter(None, (f"off by {error:.1e} from finite differences", texts.get(name)))),
            "computed",
        )
        for name, error in errors.items()
    ]
    verdicts += [
        judge(
            "work of the backward pass",
            section.claim("more"),
            all(own["backward"] > own["forward"] for own in work.values()),
            f"{last['backward'] / last['forward']:.2f} times the forward pass with {DEPTHS[-1]} equal layers",
            "computed",
        ),
        judge(
            "memory by depth",
            section.claim("memory"),
            linear,
            f"words kept a sample with {', '.join(map(str, DEPTHS))} layers of 64 numbers: {kept}",
            "computed",
        ),
    ]
    rows: list[dict[str, Any]] = [
        {"layer": name, "forward": count.forward, "backward": count.backward} for name, count in operations(64).items()
    ]
    label = "operations a number, rows of 64"
    return Conclusion(rows, verdicts, lambda: _bars(rows, "layer", ("forward", "backward"), label))


def formula_errors() -> dict[str, float]:
    """Return by how much each formula differs from finite differences, on drawn numbers."""
    draw = np.random.default_rng(0)
    scores, gradient = draw.normal(size=8), draw.normal(size=8)
    shares = softmax(scores)
    numeric = _numeric(lambda z: float(softmax(z) @ gradient), scores)
    _, at_scale, at_shift = normalisation_backward(scores, SCALE, gradient)
    scale, shift = _numeric(
        lambda own: float((own[0] * normalised(scores)[0] + own[1]) @ gradient), np.array([SCALE, 0.0])
    )
    queries, keys, values, upper = (draw.normal(size=(5, 4)) for _ in range(4))
    at_queries = attention_backward(queries, keys, values, upper)[0].reshape(-1)
    flat = _numeric(lambda own: _attention_loss(own.reshape(5, 4), keys, values, upper), queries.reshape(-1))
    return {
        "softmax": float(np.abs(softmax_jacobian(shares) @ gradient - numeric).max()),
        "beta": abs(at_shift - float(shift)),
        "alpha": abs(at_scale - float(scale)),
        "attention": float(np.abs(flat - at_queries).max()),
    }


SCALE = 1.5
NUMERIC = 1e-6
"""By how much finite differences may be off."""


def _numeric(function: Callable[[Array], float], at: Array) -> Array:
    """Return the gradient of a function by central differences."""
    step = 1e-6
    steps = np.eye(len(at)) * step
    return np.array([(function(at + one) - function(at - one)) / (2 * step) for one in steps])


def _attention_loss(queries: Array, keys: Array, values: Array, gradient: Array) -> float:
    return float(((softmax(queries @ keys.T / np.sqrt(queries.shape[-1])) @ values) * gradient).sum())


def _depth_work(depth: int, width: int = 64) -> dict[str, int]:
    """Return the multiply-accumulates of both passes of equal layers, and the words that the backward pass needs."""
    macs = width * width
    return {"forward": depth * macs, "backward": (2 * depth - 1) * macs, "activations": depth * width}


def _transformer_share() -> str:
    """Return what these formulas take of Table 2's Transformer, next to the products on the array."""
    workload = model_workload("transformer", "multi30k")
    counts = operations(64)
    total = 0.0
    for layer in workload.layers:
        if isinstance(layer, Elementwise):
            kind = "softmax" if "softmax" in layer.operation else "normalisation" if "norm" in layer.operation else None
            if kind is not None:
                total += layer.output_words * counts[kind].backward
    share = total / (2 * workload.macs)
    return f"with normalisation {share:.2%} as many operations as the Transformer's backward products"


class _CountedChain:
    """Reversible blocks y1 = x1 + F2(y2), y2 = x2 + F1(x1) with F(x) = tanh(W x), in numpy: its own forward and backward pass.

    It counts what it does: `kept` pairs of activations, `evaluated` functions F.
    """

    def __init__(self, blocks: int, size: int) -> None:
        draw = np.random.default_rng(0)
        self.weights = draw.normal(size=(blocks, 2, size, size)) / size
        self.inputs = draw.normal(size=(2, size))
        self.kept = self.evaluated = 0

    def gradient(self, recompute: bool) -> "np.ndarray[Any, Any]":
        """Return the gradient of the sum of all outputs with respect to the inputs.

        With `recompute` only the last outputs are kept, and each block's inputs are computed from its outputs; without, the
        activations of every block are kept.
        """
        self.evaluated = 0
        x1, x2 = self.inputs
        stored = []
        for first, second in self.weights:
            f1 = self._evaluate(first, x1)
            y2 = x2 + f1
            f2 = self._evaluate(second, y2)
            x1, x2 = x1 + f2, y2
            if not recompute:
                stored.append((f1, f2))
        self.kept = max(1, len(stored))  # at least the outputs of the last block
        dy1, dy2 = np.ones_like(x1), np.ones_like(x2)
        for first, second in self.weights[::-1]:
            if recompute:
                f2 = self._evaluate(second, x2)
                x1 = x1 - f2
                f1 = self._evaluate(first, x1)
                x2 = x2 - f1
            else:
                f1, f2 = stored.pop()
            dy2 = dy2 + second.T @ (dy1 * (1 - f2**2))
            dy1 = dy1 + first.T @ (dy2 * (1 - f1**2))
        return np.stack([dy1, dy2])

    def _evaluate(self, weights: "np.ndarray[Any, Any]", x: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        self.evaluated += 1
        return np.asarray(np.tanh(weights @ x))


def conclude_reversible(budget: str, workspace: Workspace) -> Conclusion:
    """Train through a chain of reversible blocks with and without stored activations, and count what is kept and computed."""
    section, chain = published(REVERSIBLE), _CountedChain(BLOCKS, size=6)
    gradients, rows = [], []
    kept, evaluated = [], []
    for network, recompute in (("stored", False), ("reversible", True)):
        gradients.append(chain.gradient(recompute))
        kept.append(chain.kept)
        evaluated.append(chain.evaluated)
        rows.append({"network": network, "kept_activations": chain.kept, "evaluations": chain.evaluated})
    error = np.abs(gradients[1] - gradients[0]).max()
    same = bool(error < ROUNDING)
    verdicts = [
        judge(
            "inverse of a block",
            section.claim("inverse"),
            same,
            f"{BLOCKS} blocks inverted one after the other: the gradient differs by at most {error:.1e} from the one with "
            "stored activations",
            "computed",
        ),
        judge(
            "activations kept",
            section.claim("stored"),
            same and kept[1] == 1,
            f"the same gradient; the outputs of {kept[1]} block are kept instead of those of {kept[0]}; measured in torch by "
            "camel-training",
            "computed",
        ),
        judge(
            "computation",
            section.claim("compute"),
            evaluated[1] > evaluated[0],
            f"{evaluated[1]} evaluations of the blocks' functions in place of {evaluated[0]}; with a backward pass of twice a "
            f"forward pass, {(evaluated[1] + 2 * evaluated[0]) / (3 * evaluated[0]):.2f} times the work",
            "computed",
        ),
    ]
    return Conclusion(
        rows,
        verdicts,
        lambda: _bars(rows, "network", ("kept_activations", "evaluations"), f"in a chain of {BLOCKS} blocks"),
    )


for _experiment in (
    Experiment(PRODUCTS, "three worked products on one systolic array", MINUTES, lambda budget: (), conclude_products),
    Experiment(
        BACKWARD,
        "backward formulas of softmax, normalisation, attention",
        MINUTES,
        lambda budget: (),
        conclude_backward,
    ),
    Experiment(REVERSIBLE, "the inverse of a reversible block", MINUTES, lambda budget: (), conclude_reversible),
):
    add_experiment(_experiment)
