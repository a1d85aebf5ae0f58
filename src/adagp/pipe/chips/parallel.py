"""How a model and its batches are split over chips: data, tensor and pipeline parallelism, and ZeRO's sharding.

Chips are numbered with the tensor group innermost, then the copies (data), then the stages: those that exchange most are
neighbours. `data` counts copies of the model, each with a share of every batch. `zero` shards what the copies would otherwise
duplicate: 1 the optimizer's state, 2 also the gradients, 3 also the weights (FSDP). With weights and gradients of 2 bytes and
12 bytes of state (a weight, momentum and variance in 32 bits), N copies take 4 + 12 / N, 2 + 14 / N and 16 / N bytes for each
weight (ZeRO, Rajbhandari et al. 2020).

Tensor parallelism is Megatron's (Shoeybi et al. 2019). In each pair of linear layers, the first is split by its outputs
(columns) and the second by its inputs (rows); so is attention: the projections to queries, keys and values by heads, and the
one after it by inputs. What lies between is split with them. The results of a row split are summed over the chips in the
forward pass, the gradients at the input of a column split in the backward pass: two all-reduces each way in a Transformer
block. The last layer is split by its outputs (the vocabulary, padded), and so is the embedding's table, whose results are
summed as well.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, fields, replace

from adagp.errors import OptionError
from adagp.hw import Accelerator
from adagp.hw.workload import ArrayLayer, Attention, Elementwise, Layer, Linear, Saved, Workload
from adagp.pipe.chips.collectives import Groups

_FORM = (
    "write for example data=8,tensor=2,pipeline=4, and zero=1, 2 or 3 to shard optimizer state, gradients and weights"
)
ZERO_STAGES = 3


@dataclass(frozen=True)
class Parallelism:
    """Copies of the model, chips of a tensor group, stages of a pipeline, and the stage of ZeRO (0: none)."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    zero: int = 0

    def __post_init__(self) -> None:
        if self.zero and self.data == 1:
            raise OptionError(f"zero={self.zero} shards over copies of the model, but data=1 has only one.")

    def __str__(self) -> str:
        text = f"data={self.data},tensor={self.tensor},pipeline={self.pipeline}"
        return f"{text},zero={self.zero}" if self.zero else text

    @property
    def chips(self) -> int:
        """All chips."""
        return self.data * self.tensor * self.pipeline

    @property
    def shards(self) -> int:
        """Chips over which the update of a weight is sharded."""
        return self.data if self.zero else 1

    def chip(self, stage: int, copy: int, shard: int) -> int:
        """Return the number of a chip."""
        return (stage * self.data + copy) * self.tensor + shard

    @property
    def tensor_groups(self) -> Groups:
        """The chips that hold parts of the same layers."""
        return tuple(
            tuple(self.chip(stage, copy, shard) for shard in range(self.tensor))
            for stage in range(self.pipeline)
            for copy in range(self.data)
        )

    @property
    def data_groups(self) -> Groups:
        """The chips that hold copies of the same weights."""
        return tuple(
            tuple(self.chip(stage, copy, shard) for copy in range(self.data))
            for stage in range(self.pipeline)
            for shard in range(self.tensor)
        )

    @property
    def everyone(self) -> Groups:
        """All chips as one group."""
        return (tuple(range(self.chips)),)

    @property
    def next_stages(self) -> tuple[tuple[int, int], ...]:
        """Pairs of chips: the first sends its outputs to the second."""
        stride = self.data * self.tensor
        return tuple((chip, chip + stride) for chip in range(self.chips - stride))


def parse_parallelism(text: str, chips: int) -> Parallelism:
    """Return the split that `text` describes; its product must be `chips`."""
    values: dict[str, int] = {}
    known = [field.name for field in fields(Parallelism)]
    for word in map(str.strip, text.split(",")):
        name, _, number = (part.strip() for part in word.partition("="))
        least, most = (0, ZERO_STAGES) if name == "zero" else (1, chips)
        if name not in known or name in values or not number.isdecimal():
            raise OptionError(f"cannot read '{word}' in --parallel '{text}'; {_FORM}.")
        if not least <= int(number) <= most:
            raise OptionError(f"--parallel: {name} is {number}; it must be {least} to {most}.")
        values[name] = int(number)
    parallel = Parallelism(**values)
    if parallel.chips != chips:
        raise OptionError(
            f"--parallel {parallel} takes {parallel.data} x {parallel.tensor} x {parallel.pipeline} = {parallel.chips} chips, "
            f"but --chips is {chips}."
        )
    return parallel


@dataclass(frozen=True)
class TensorSplit:
    """A chip's part of a workload, and the words of a sample that its tensor group sums, by layer of the array.

    `forward` is summed after a layer's forward pass, `backward` after its backward pass.
    """

    workload: Workload
    forward: tuple[int, ...]
    backward: tuple[int, ...]


COLUMNS, ROWS, HEADS, WHOLE = "columns", "rows", "heads", "whole"


def split_tensors(workload: Workload, ways: int) -> TensorSplit:
    """Return the part of a Transformer that each of `ways` chips has."""
    layers = workload.array_layers
    if ways == 1:
        return TensorSplit(workload, (0,) * len(layers), (0,) * len(layers))
    roles = _roles(workload, ways)
    parts: list[Layer] = []
    forward, backward = [0] * len(layers), [0] * len(layers)
    index, inside = -1, False
    shared: set[int] = set()
    for number, layer in enumerate(workload.layers):
        if isinstance(layer, Elementwise):
            if inside:
                shared.add(number)
            if layer.operation == "embedding" and index < 0:
                forward[0] = max(forward[0], layer.output_words)  # the sum of its results, counted with the first layer
            parts.append(_narrowed(layer, ways) if inside else layer)
            continue
        index += 1
        if roles[index] == COLUMNS and not inside and layer.input_gradient:
            backward[index] = layer.input_words
        # From a column split to the next row split, each chip has only its part of the activations.
        inside = roles[index] in (COLUMNS, HEADS)
        if roles[index] in (HEADS, ROWS):
            shared.add(number)
        if roles[index] == ROWS:
            forward[index] += layer.output_words
        parts.append(_part(layer, roles[index], ways))
    part = Workload(workload.name, tuple(parts), _kept_part(workload.saved, shared, ways))
    return TensorSplit(part, tuple(forward), tuple(backward))


def _kept_part(saved: tuple[Saved, ...] | None, shared: Set[int], ways: int) -> tuple[Saved, ...] | None:
    """Return what a chip keeps for the backward pass: its part of what the `shared` layers keep, and all of the rest.

    A column split keeps its whole input. Tables of positions are the same for all heads.
    """
    if saved is None:
        return None
    return tuple(
        replace(tensor, words=-(-tensor.words // ways)) if tensor.layer in shared and not tensor.fixed else tensor
        for tensor in saved
    )


def _narrowed(layer: Elementwise, ways: int) -> Elementwise:
    return replace(layer, input_words=-(-layer.input_words // ways), output_words=-(-layer.output_words // ways))


def _part(layer: ArrayLayer, role: str, ways: int) -> ArrayLayer:
    if isinstance(layer, Attention):
        return replace(layer, count=layer.count // ways)
    if not isinstance(layer, Linear) or role == WHOLE:
        return layer
    if role == COLUMNS:
        part = replace(layer, out_features=-(-layer.out_features // ways))
    else:
        part = replace(layer, in_features=layer.in_features // ways)
    return replace(part, shared_weights=min(part.weights, layer.shared_weights // ways))


def _roles(workload: Workload, ways: int) -> list[str]:
    """Return how each layer of the array is split."""
    layers = workload.array_layers
    roles = [WHOLE] * len(layers)
    for start, stop in _attention_runs(layers):
        _split_attention(layers, roles, start, stop, ways)
    if HEADS not in roles:
        raise OptionError(
            f"tensor={ways} splits the linear layers and the attention of Transformers; '{workload.name}' has no attention."
        )
    for group in _runs_of_whole_linears(layers, roles):
        _split_pairs(layers, roles, group, ways)
    last = len(layers) - 1
    if roles[last] == WHOLE and isinstance(layers[last], Linear):
        roles[last] = COLUMNS
    return roles


def _attention_runs(layers: Sequence[ArrayLayer]) -> Iterator[tuple[int, int]]:
    """Yield where runs of products of two activations begin and end."""
    start = None
    for index, layer in enumerate(layers):
        if isinstance(layer, Attention):
            start = index if start is None else start
        elif start is not None:
            yield start, index
            start = None
    if start is not None:
        yield start, len(layers)


def _split_attention(layers: Sequence[ArrayLayer], roles: list[str], start: int, stop: int, ways: int) -> None:
    """Split the products by heads, the projections before them by outputs, the one after them by inputs."""
    heads = layers[start]
    assert isinstance(heads, Attention)
    if heads.count % ways:
        raise OptionError(f"'{heads.name}' has {heads.count} heads, which do not divide by tensor={ways}.")
    size = heads.depth
    roles[start:stop] = [HEADS] * (stop - start)
    after = layers[stop] if stop < len(layers) else None
    if not isinstance(after, Linear) or after.in_features != heads.count * size:
        raise OptionError(
            f"no linear layer takes the results of attention '{heads.name}', so tensor={ways} cannot split it."
        )
    roles[stop] = ROWS
    # The projections before the products read the model's width, which is the output width of the projection after them.
    width = after.out_features
    for index in range(start - 1, -1, -1):
        layer = layers[index]
        if not isinstance(layer, Linear) or roles[index] != WHOLE or layer.in_features != width:
            break
        if layer.out_features % size == 0 and (layer.out_features // size) % ways:
            raise OptionError(
                f"'{layer.name}' has the outputs of {layer.out_features // size} heads, which do not divide by tensor={ways}."
            )
        roles[index] = COLUMNS


def _runs_of_whole_linears(layers: Sequence[ArrayLayer], roles: Sequence[str]) -> Iterator[list[int]]:
    """Yield the linear layers between those of attention."""
    run: list[int] = []
    for index, layer in enumerate(layers):
        if isinstance(layer, Linear) and roles[index] == WHOLE:
            run.append(index)
        else:
            yield run
            run = []
    yield run


def _split_pairs(layers: Sequence[ArrayLayer], roles: list[str], group: Sequence[int], ways: int) -> None:
    """Split layers that widen by outputs, if they are followed by one that narrows again, which is split by inputs."""
    widening: list[Linear] = []
    positions: list[int] = []
    for index in group:
        layer = layers[index]
        assert isinstance(layer, Linear)
        narrows = bool(widening) and layer.out_features == widening[0].in_features
        if narrows and layer.in_features == widening[-1].out_features:
            if layer.in_features % ways:
                raise OptionError(
                    f"'{layer.name}' has {layer.in_features} inputs, which do not divide by tensor={ways}."
                )
            for position in positions:
                roles[position] = COLUMNS
            roles[index] = ROWS
            widening, positions = [], []
        else:
            widening.append(layer)
            positions.append(index)


def shared_equally(amount: int, parts: int, what: str) -> int:
    """Return `amount` over `parts`; raise if they do not divide."""
    if amount % parts:
        raise OptionError(f"a batch of {amount} samples does not split into {parts} equal parts ({what}).")
    return amount // parts


STATE_BITS = 32
"""Bits of a word of the optimizer's state, and of its copy of the weights, unless the accelerator has its own widths."""


@dataclass(frozen=True)
class ChipMemory:
    """Bytes on the fullest chip."""

    weights: float
    gradients: float
    optimizer: float
    activations: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.gradients + self.optimizer + self.activations


def weight_memory(weights: float, accelerator: Accelerator, copies: int = 1, zero: int = 0) -> ChipMemory:
    """Return the bytes of `weights` words and all that belongs to them.

    If weights have fewer than 32 bits, the optimizer keeps a copy of them in 32, or in the accelerator's `master_bits`.
    """
    copy = accelerator.master_bits or (STATE_BITS if accelerator.width("weights") < STATE_BITS else 0)
    state = (accelerator.optimizer_words * (accelerator.state_bits or STATE_BITS) + copy) / 8
    return ChipMemory(
        weights * accelerator.width("weights") / 8 / (copies if zero == 3 else 1),
        weights * accelerator.width("gradients") / 8 / (copies if zero >= 2 else 1),
        weights * state / (copies if zero else 1),
    )
