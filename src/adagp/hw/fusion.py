"""Element-wise work after a layer: what it moves off chip, alone or fused with the layer before it.

Alone, an operation reads its inputs and writes its outputs, and on the way back reads both and writes once more. Fused, it
works on words that are on chip anyway: on the layer's results as they leave the array, or on the next layer's inputs as they
enter.
"""

from dataclasses import dataclass

from adagp.hw.workload import Elementwise

COPIES = frozenset(
    (
        "_to_copy",
        "_unsafe_view",
        "bernoulli_",
        "cat",
        "clone",
        "copy_",
        "empty_like",
        "expand_copy",
        "stack",
        "zeros_like",
    )
)
"""Operations that only place words: results are written to their place at once."""

POINTWISE = frozenset(
    (
        *("add", "add_", "div", "div_", "masked_fill", "masked_fill_", "mul", "mul_", "native_dropout", "rsub"),
        *(
            "sub",
            "sub_",
            "where",
            "clamp",
            "clamp_",
            "hardtanh",
            "hardtanh_",
            "leaky_relu",
            "leaky_relu_",
            "relu",
            "relu_",
        ),
    )
)
"""Operations that read their other operands, if they have any, both ways; a sign is seen from the activation that is kept."""

SMOOTH = frozenset(
    (
        *("elu", "elu_", "exp", "gelu", "hardsigmoid", "hardsigmoid_", "hardswish", "hardswish_", "pow", "rsqrt"),
        *("sigmoid", "sigmoid_", "silu", "silu_", "softplus", "sqrt", "tanh", "tanh_"),
    )
)
"""Operations whose slope depends on their input, which is kept for the backward pass besides their output."""

NORMALISATIONS = frozenset(("native_batch_norm", "native_group_norm", "native_layer_norm"))
"""Their sums are taken as words leave the array, and the next layer's inputs are normalised as they enter. On the way back the
gradient depends on sums over the batch, so it goes off chip and back once, beside the kept input."""


@dataclass(frozen=True)
class Moved:
    """Off-chip words of a sample: read and written in the forward pass, and in the backward pass."""

    reads: int = 0
    writes: int = 0
    backward_reads: int = 0
    backward_writes: int = 0

    def __add__(self, other: "Moved") -> "Moved":
        return Moved(
            self.reads + other.reads,
            self.writes + other.writes,
            self.backward_reads + other.backward_reads,
            self.backward_writes + other.backward_writes,
        )


def moved_words(work: Elementwise, fused: bool) -> Moved:
    """Return what an operation moves off chip; where it cannot be fused (pooling, softmax, ...), the same either way."""
    inputs, outputs = work.input_words, work.output_words
    alone = Moved(inputs, outputs, inputs + outputs, inputs)
    if not fused:
        return alone
    if work.operation in COPIES:
        return Moved()
    if work.operation in POINTWISE:
        others = max(0, inputs - outputs)
        return Moved(reads=others, backward_reads=others)
    if work.operation in SMOOTH:
        return Moved(writes=inputs, backward_reads=inputs)
    if work.operation in NORMALISATIONS:
        return Moved(0, 0, inputs + outputs, inputs)
    return alone
