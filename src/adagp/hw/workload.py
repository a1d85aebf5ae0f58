"""The work of a model for an accelerator: its layers' shapes for one sample, without torch and without weights.

A workload is what `adagp.tracing.tracer` passes to the accelerator model. All sizes are those of **one sample**; a batch
multiplies the rows of a product, never its weights. It is saved as JSON, and reads back equal.

Element-wise work after a layer moves words off chip, alone or fused with a layer. Alone, an operation reads its inputs and
writes its outputs, and on the way back reads both and writes once more. Fused, it works on words that are on chip anyway: on
the layer's results as they leave the array, or on the next layer's inputs as they enter.

What autograd keeps for the backward pass is a list of its own (`Saved`), tensor by tensor.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from pathlib import Path
from typing import Any, ClassVar

from adagp.core.files import publish, read_text
from adagp.errors import DataError
from adagp.hw.product import Product, Window

FORMAT = "adagp-workload"
VERSION = 2
READABLE = (1, 2)
"""Versions that can be read; files of version 1 do not list what autograd keeps."""


@dataclass(frozen=True)
class Convolution:
    """A convolution of `(height, width)` sizes; a transposed one has its input and output sizes as they are seen outside.

    `trainable`: its weights are trained; `input_gradient`: something below it is trained; `shared_weights` are
    those of its weights that an earlier layer of the workload uses, too.
    """

    kind: ClassVar[str] = "convolution"
    name: str
    in_channels: int
    out_channels: int
    kernel: tuple[int, int]
    input_size: tuple[int, int]
    output_size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    transposed: bool = False
    trainable: bool = True
    input_gradient: bool = True
    shared_weights: int = 0

    @property
    def weights(self) -> int:
        """Weights in words."""
        return self.in_channels * self.out_channels // self.groups * prod(self.kernel)

    @property
    def samples(self) -> int:
        """Samples that a gradient predictor sees: output channels."""
        return self.out_channels

    @property
    def input_words(self) -> int:
        """Words of one sample's input."""
        return self.in_channels * prod(self.input_size)

    @property
    def output_words(self) -> int:
        """Words of one sample's output."""
        return self.out_channels * prod(self.output_size)

    def product(self, batch: int) -> Product:
        """Return the forward pass of `batch` samples as matrix products, one for each group."""
        if self.transposed:
            rows, depth = prod(self.input_size), self.in_channels // self.groups
            columns = self.out_channels // self.groups * prod(self.kernel)
            distinct = batch * self.output_words // self.groups
            return Product(batch * rows, depth, columns, count=self.groups, output_words=distinct)
        depth = self.in_channels // self.groups * prod(self.kernel)
        window = Window(batch, self.kernel, self.output_size, self.stride, self.dilation, self.input_size)
        columns = self.out_channels // self.groups
        return Product(batch * prod(self.output_size), depth, columns, count=self.groups, window=window)


@dataclass(frozen=True)
class Linear:
    """A linear layer that maps `rows` vectors per sample (1 in a classifier, the tokens in a Transformer).

    `groups` of them, of these sizes and with weights of their own, lie side by side, as in a mixture of experts.
    `shared_weights` are those of all weights that an earlier layer of the workload uses, too.
    """

    kind: ClassVar[str] = "linear"
    name: str
    rows: int
    in_features: int
    out_features: int
    trainable: bool = True
    input_gradient: bool = True
    groups: int = 1
    shared_weights: int = 0

    @property
    def weights(self) -> int:
        """Weights in words."""
        return self.groups * self.in_features * self.out_features

    @property
    def samples(self) -> int:
        """Samples that a gradient predictor sees: output neurons."""
        return self.groups * self.out_features

    @property
    def input_words(self) -> int:
        """Words of one sample's input."""
        return self.groups * self.rows * self.in_features

    @property
    def output_words(self) -> int:
        """Words of one sample's output."""
        return self.groups * self.rows * self.out_features

    def product(self, batch: int) -> Product:
        """Return the forward pass of `batch` samples as matrix products, one for each group."""
        return Product(batch * self.rows, self.in_features, self.out_features, count=self.groups)


@dataclass(frozen=True)
class Attention:
    """`count` products per sample of two activations, (rows x depth) (depth x columns): attention scores and their use."""

    kind: ClassVar[str] = "attention"
    name: str
    count: int
    rows: int
    depth: int
    columns: int
    input_gradient: bool = True

    trainable: ClassVar[bool] = False
    groups: ClassVar[int] = 1
    samples: ClassVar[int] = 0
    shared_weights: ClassVar[int] = 0

    @property
    def weights(self) -> int:
        """Words of the second factor of one sample; it is an activation, but takes the place of weights in the array."""
        return self.count * self.depth * self.columns

    @property
    def input_words(self) -> int:
        """Words of one sample's first factor."""
        return self.count * self.rows * self.depth

    @property
    def output_words(self) -> int:
        """Words of one sample's result."""
        return self.count * self.rows * self.columns

    def product(self, batch: int) -> Product:
        """Return the forward pass of `batch` samples as matrix products."""
        return Product(self.rows, self.depth, self.columns, count=batch * self.count)


@dataclass(frozen=True)
class Elementwise:
    """Everything that is not a product (normalisation, activation, pooling, sums): traffic only, in words per sample.

    `parameters` are the trained weights of a lookup table (an embedding) that no product uses; they do not grow with the batch.
    """

    kind: ClassVar[str] = "elementwise"
    name: str
    operation: str
    input_words: int
    output_words: int
    parameters: int = 0


ArrayLayer = Convolution | Linear | Attention
Layer = ArrayLayer | Elementwise
KINDS: Mapping[str, type[Layer]] = {cls.kind: cls for cls in (Convolution, Linear, Attention, Elementwise)}


@dataclass(frozen=True)
class Saved:
    """A tensor that autograd keeps from the forward to the backward pass, counted once however many operations keep it.

    `layer` is the index, among all layers, of the first operation that keeps it: the backward pass of that one is the last
    that needs it. `words` are those of one sample or, with `fixed`, of a batch of any size (statistics of a batch norm,
    tables of positions). Words have `bits` or, with 0, the width of activations. `of_site`: it is the input of a trained layer.
    """

    layer: int
    name: str
    operation: str
    words: int
    bits: int = 0
    fixed: bool = False
    of_site: bool = False

    def bytes(self, batch: int, activation_bits: int) -> int:
        """Return its bytes in a batch; a tensor fills whole bytes."""
        words = self.words if self.fixed else batch * self.words
        return -(-words * (self.bits or activation_bits) // 8)


@dataclass(frozen=True)
class Workload:
    """A model's layers in the order of their execution.

    `saved` is what autograd keeps of a batch, None if unknown (ONNX files, workloads saved by older versions). `parameters` is
    the number of all trained numbers, with those of biases and normalisations; 0 if unknown.
    """

    name: str
    layers: tuple[Layer, ...]
    saved: tuple[Saved, ...] | None = None
    parameters: int = 0

    @cached_property
    def array_layers(self) -> tuple[ArrayLayer, ...]:
        """The layers that run on the PE array."""
        return tuple(layer for layer in self.layers if not isinstance(layer, Elementwise))

    @cached_property
    def shapes(self) -> tuple[ArrayLayer, ...]:
        """The layers of the array without their names: those of one shape are equal, and cost the same."""
        return tuple(replace(layer, name="") for layer in self.array_layers)

    @cached_property
    def stage_of(self) -> tuple[int, ...]:
        """The index of each layer's stage: a layer of the array with the element-wise work after it, or before the first."""
        counts = accumulate(not isinstance(layer, Elementwise) for layer in self.layers)
        return tuple(max(0, count - 1) for count in counts)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one sample's forward pass."""
        return sum(layer.product(1).macs for layer in self.array_layers)

    @property
    def weights(self) -> int:
        """Weights of convolutions and linear layers, in words; one that is used several times counts once."""
        layers = (layer for layer in self.array_layers if not isinstance(layer, Attention))
        return sum(layer.weights - layer.shared_weights for layer in layers)

    def to_json(self) -> str:
        """Return the workload as text, one line per layer."""
        rows = ",\n  ".join(json.dumps({"kind": layer.kind, **asdict(layer)}) for layer in self.layers)
        head = f'"format": "{FORMAT}", "version": {VERSION}, "name": {json.dumps(self.name)}'
        head += f', "parameters": {self.parameters}'
        if self.saved is None:
            return f'{{{head}, "layers": [\n  {rows}\n]}}\n'
        kept = ",\n  ".join(json.dumps(asdict(tensor)) for tensor in self.saved)
        return f'{{{head}, "layers": [\n  {rows}\n], "saved": [\n  {kept}\n]}}\n'

    def save(self, path: Path) -> None:
        """Write the workload to `path`."""
        publish(path, self.to_json().encode())


def load_workload(path: Path) -> Workload:
    """Read a workload that was saved."""
    if not path.is_file():
        raise DataError(f"there is no workload file {path}.")
    text = read_text(path, "the workload", DataError)
    try:
        return workload_from_json(text)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def workload_from_json(text: str) -> Workload:
    """Return the workload that `text` describes."""
    document = _parse_json(text)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DataError(f'not a workload: "format" must be "{FORMAT}".')
    if document.get("version") not in READABLE:
        raise DataError(
            f"workload of version {document.get('version')}; this program reads versions {', '.join(map(str, READABLE))}."
        )
    name, layers, saved = document.get("name"), document.get("layers"), document.get("saved", [])
    if not isinstance(name, str) or not isinstance(layers, list) or not _are_objects(layers):
        raise DataError('not a workload: it needs a "name" and a list of "layers".')
    if not _are_objects(saved):
        raise DataError('not a workload: "saved" must be a list of tensors.')
    parameters = document.get("parameters", 0)
    if not _is_size(parameters, 0):
        raise DataError(f"'parameters' is {parameters!r}; it must be a whole number from 0 to {LARGEST:g}.")
    kept = tuple(_saved(entry, len(layers)) for entry in saved) if "saved" in document else None
    return Workload(name, tuple(_layer(entry) for entry in layers), kept, parameters)


def _are_objects(items: object) -> bool:
    return isinstance(items, list) and all(isinstance(item, dict) for item in items)


def _saved(entry: Mapping[str, Any], layers: int) -> Saved:
    known = {field.name for field in fields(Saved)}
    if entry.keys() - known:
        raise DataError(
            f"a saved tensor has no field {min(entry.keys() - known)!r}; allowed: {', '.join(sorted(known))}."
        )
    try:
        tensor = Saved(**entry)
    except TypeError as error:
        raise DataError(f"a saved tensor is incomplete: {error}.") from None
    for field in fields(Saved):
        _check(tensor, field.name, field.type)
    if tensor.layer >= layers:
        raise DataError(f"a saved tensor belongs to layer {tensor.layer}; there are {layers}.")
    return tensor


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise DataError("not a workload: it is nested too deep.") from None
    except ValueError as error:
        raise DataError(f"not a workload: {error}.") from None


def _layer(entry: Mapping[str, Any]) -> Layer:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    values.pop("kind", None)
    kind = _layer_class(entry.get("kind"))
    known = {field.name for field in fields(kind)}
    unknown = values.keys() - known
    if unknown:
        raise DataError(f"a {kind.kind} has no field {min(unknown)!r}; allowed: {', '.join(sorted(known))}.")
    try:
        layer = kind(**values)
    except TypeError as error:
        raise DataError(f"a {kind.kind} is incomplete: {error}.") from None
    for field in fields(kind):
        _check(layer, field.name, field.type)
    _check_sharing_and_groups(layer)
    return layer


def _layer_class(kind: object) -> type[Layer]:
    if not isinstance(kind, str) or kind not in KINDS:
        raise DataError(f"layer kind {kind!r} is unknown; allowed: {', '.join(KINDS)}.")
    return KINDS[kind]


def _check_sharing_and_groups(layer: Layer) -> None:
    if not isinstance(layer, Elementwise) and layer.shared_weights > layer.weights:
        raise DataError(f"layer '{layer.name}' shares {layer.shared_weights} weights, but has only {layer.weights}.")
    if isinstance(layer, Convolution) and (layer.in_channels % layer.groups or layer.out_channels % layer.groups):
        channels = f"{layer.in_channels} and {layer.out_channels} channels"
        raise DataError(f"layer '{layer.name}' has {channels}, which do not divide into {layer.groups} groups.")


LARGEST = 10**12
"""No size of one sample's layer is more."""
MAY_BE_ZERO = ("shared_weights", "input_words", "output_words", "parameters", "layer", "bits")


def _check(layer: Layer | Saved, name: str, kind: Any) -> None:
    value, least = getattr(layer, name), 0 if name in MAY_BE_ZERO else 1
    if kind in (str, bool):
        holds, allowed = type(value) is kind, "text" if kind is str else "true or false"
    elif kind is int:
        holds, allowed = _is_size(value, least), f"a whole number from {least} to {LARGEST:g}"
    else:
        holds = isinstance(value, tuple) and len(value) == 2 and all(map(_is_size, value))
        allowed = f"two whole numbers from 1 to {LARGEST:g}"
    if not holds:
        what = "saved tensor" if isinstance(layer, Saved) else layer.kind
        raise DataError(f"'{name}' of a {what} is {value!r}; it must be {allowed}.")


def _is_size(value: object, least: int = 1) -> bool:
    return type(value) is int and least <= value <= LARGEST


COPIES = frozenset(
    (
        *("_to_copy", "_unsafe_view", "bernoulli_", "cat", "clone"),
        *("copy_", "empty_like", "expand_copy", "stack", "zeros_like"),
    )
)
"""Operations that only place words: results are written to their place at once."""

SUMS = frozenset(("add", "add_", "rsub", "sub", "sub_"))
"""Operations that read their other operands forward; on the way back the gradient of the result is each operand's."""

POINTWISE = frozenset(
    (
        *("div", "div_", "masked_fill", "masked_fill_", "mul", "mul_", "native_dropout", "where"),
        *("clamp", "clamp_", "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_", "relu", "relu_"),
    )
)
"""Operations that read their other operands, if they have any, both ways; a sign is seen from the activation that is kept."""

PRODUCT = "product"
"""An element-wise product, or quotient, of two activations that both need a gradient, as in gated units (SwiGLU). Forward it
reads one operand, and writes the other, which would not leave the chip otherwise. Backward it reads both, and writes a second
gradient."""

GRADIENT_SUM = "gradient_sum"
"""Nothing forward. Backward the gradients of an activation that several operations use are added up: `output_words` are the
activation's, `input_words` those of all its uses. Each use after the first reads the sum so far."""

SMOOTH = frozenset(
    (
        *("elu", "elu_", "exp", "gelu", "hardsigmoid", "hardsigmoid_", "hardswish", "hardswish_", "pow", "rsqrt"),
        *("sigmoid", "sigmoid_", "silu", "silu_", "softplus", "sqrt", "tanh", "tanh_"),
    )
)
"""Operations whose slope depends on their input, which is kept for the backward pass together with their output."""

RMS_NORM = "rms_norm"
NORMALISATIONS = frozenset(("native_batch_norm", "native_group_norm", "native_layer_norm", RMS_NORM))
"""Their sums are taken as words leave the array, and the next layer's inputs are normalised as they enter. On the way back the
gradient depends on sums over the batch, so it goes off chip and back once, as does the kept input."""


@dataclass(frozen=True)
class Moved:
    """Off-chip words of a sample: read and written in the forward pass, and in the backward pass.

    `parameters` are trained words of lookup tables, which are updated once in a batch.
    """

    reads: int = 0
    writes: int = 0
    backward_reads: int = 0
    backward_writes: int = 0
    parameters: int = 0

    def __add__(self, other: "Moved") -> "Moved":
        return Moved(
            self.reads + other.reads,
            self.writes + other.writes,
            self.backward_reads + other.backward_reads,
            self.backward_writes + other.backward_writes,
            self.parameters + other.parameters,
        )


def moved_words(work: Elementwise, fused: bool) -> Moved:
    """Return what an operation moves off chip; if it cannot be fused (pooling, softmax, ...), `fused` makes no difference."""
    inputs, outputs = work.input_words, work.output_words
    others = max(0, inputs - outputs)
    alone = Moved(inputs, outputs, inputs + outputs, inputs, work.parameters)
    if work.operation == GRADIENT_SUM:
        return Moved(backward_reads=others) if fused else Moved(backward_reads=2 * others, backward_writes=others)
    if not fused or work.parameters:
        return alone
    if work.operation in COPIES:
        return Moved()
    if work.operation in SUMS:
        return Moved(reads=others)
    if work.operation in POINTWISE:
        return Moved(reads=others, backward_reads=others)
    if work.operation == PRODUCT:
        return Moved(others, outputs, inputs, others)
    if work.operation in SMOOTH:
        return Moved(writes=inputs, backward_reads=inputs)
    if work.operation in NORMALISATIONS:
        return Moved(0, 0, inputs + outputs, inputs)
    return alone


def vector_operations(work: Elementwise) -> tuple[int, int]:
    """Return the element operations of a sample on a vector unit, forward and backward: words times passes over them.

    A normalisation takes its sums in one pass and applies them in another; a softmax needs the largest value, the sum of
    exponentials and the quotients.
    """
    words = max(work.input_words, work.output_words)
    if work.operation == GRADIENT_SUM:
        return 0, max(0, work.input_words - work.output_words)
    if work.operation in COPIES:
        return 0, 0
    if work.operation in SUMS:
        return words, 0
    if work.operation == PRODUCT:
        return work.output_words, 2 * work.output_words
    if work.operation in NORMALISATIONS:
        return 2 * words, 2 * words
    return (3 * words, 2 * words) if "softmax" in work.operation else (words, words)


def attention_pairs(workload: Workload) -> tuple[tuple[int, int], ...]:
    """Return the indices, among all layers, of the two products of each attention: the scores, and their use.

    Between them there is element-wise work only, a softmax among it, unless they were traced as one operation.
    """
    products = [index for index, layer in enumerate(workload.layers) if not isinstance(layer, Elementwise)]
    pairs: list[tuple[int, int]] = []
    for first, second in pairwise(products):
        is_use = bool(pairs) and pairs[-1][1] == first
        if not is_use and _is_attention(workload.layers[first : second + 1]):
            pairs.append((first, second))
    return tuple(pairs)


def _is_attention(layers: Sequence[Layer]) -> bool:
    scores, *between, use = layers
    if not isinstance(scores, Attention) or not isinstance(use, Attention):
        return False
    matches = (scores.count, scores.rows, scores.columns) == (use.count, use.rows, use.depth)
    operations = [work.operation for work in between if isinstance(work, Elementwise)]
    return matches and (not operations or any("softmax" in operation for operation in operations))
