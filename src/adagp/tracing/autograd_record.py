"""Records what autograd saves in a model's forward pass, and which activations get several gradients.

Autograd reports what it saves: `torch.autograd.graph.saved_tensors_hooks` gets each tensor as it is saved, on the meta
device as on any other. For instance a convolution and a linear layer keep their input, a ReLU its result, GELU and SiLU their
input, a batch norm its input and the batch's mean and deviation, a softmax its result, max pooling its input and indices, a
product of two activations both, a sum nothing. Parameters and buffers are in memory anyway and do not count. A tensor is
identified by its elements in memory: one that three projections save counts once, and of a larger tensor only the saved part
counts.

If an activation has several uses, its gradients are added. An in-place operation ends an activation and begins another one.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from adagp.hw.workload import GRADIENT_SUM, Elementwise, Layer, Saved
from adagp.tracing.weight_uses import View, WeightUses, storage_of, view_of

BATCH_STATISTICS = frozenset(("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"))
"""Operations whose results after the first are sums over the batch, which do not grow with it."""
VIEWS = frozenset(("_unsafe_view",))
"""Operations that torch does not mark as views, but that count as views: the operand's gradient is the result's."""
KEEPS_RESULT = frozenset(
    (
        *("_log_softmax", "_safe_softmax", "_softmax", "elu_", "exp", "reciprocal", "relu", "relu_", "rsqrt"),
        *("sigmoid", "sigmoid_", "sqrt", "tanh", "tanh_"),
    )
)
"""Operations of which autograd saves the first result. Further results (statistics, masks, indices) it always saves."""
LONGEST_JOINED = 32
"""The most recent uses that are remembered, for layers that are joined into one."""
BITS = {torch.bool: 8, torch.uint8: 8, torch.int8: 8, torch.int16: 16, torch.int32: 32, torch.int64: 64}
"""The width in which torch stores tensors that are not activations: masks, indices."""


@dataclass
class _Uses:
    """The uses of one activation: the words of all operands that give it a gradient, and layer and module of the first."""

    tensor: Tensor
    words: int
    layer: int
    module: str


class AutogradRecord:
    """Records one traced forward pass. Tensors are kept alive, because they are identified by their memory."""

    def __init__(self, weights: WeightUses, batch: int) -> None:
        self._weights = weights
        self._batch = batch
        self._operation, self._module, self._layer = "", "", 0
        self._saved: dict[tuple[int, View], Saved] = {}
        self._keepers: dict[tuple[int, View], list[int]] = {}
        self._waiting: list[Tensor] = []
        self._own_results: set[int] = set()
        self._grows: set[int] = set()
        self._uses: dict[tuple[int, int], _Uses] = {}
        self._latest: deque[tuple[int, tuple[int, int], int]] = deque(maxlen=LONGEST_JOINED)
        self._kept: list[Tensor] = []

    @contextmanager
    def watched(self, inputs: Iterable[Tensor]) -> Iterator[None]:
        """Record what autograd saves inside the context, in a call of the model with `inputs`, which grow with the batch."""
        for tensor in inputs:
            self._kept.append(tensor)
            self._grows.add(storage_of(tensor))
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
            yield
        self._place_waiting("", "", self._layer)

    def _pack(self, tensor: Tensor) -> Tensor:
        """Record a tensor that autograd saves: an operand before its operation runs, a result after it has run."""
        if self._weights.find(tensor) is None:
            self._waiting.append(tensor)
        return tensor

    def begin(self, operation: str, module: str, layer: int) -> None:
        """Record the operation that is about to run, and the index that its layer will have."""
        self._place_waiting(operation, module, layer)
        self._operation, self._module, self._layer = operation, module, layer

    def end(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Record the results of the operation, which is not a view."""
        self._follow(operands, results)
        own = results if self._operation in KEEPS_RESULT else results[1:]
        self._own_results = {storage_of(tensor) for tensor in own}
        if any(tensor.is_floating_point() for tensor in results) and self._operation not in VIEWS:
            for tensor in operands:
                if tensor.requires_grad and self._weights.find(tensor) is None:
                    self._use(tensor)

    def _follow(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Record which results grow with the batch: those of operations with an operand that does."""
        self._kept += results
        if any(storage_of(tensor) in self._grows for tensor in operands):
            growing = results[:1] if self._operation in BATCH_STATISTICS else results
            self._grows |= {storage_of(tensor) for tensor in growing}

    def _use(self, tensor: Tensor) -> None:
        key = storage_of(tensor), tensor._version
        self._latest.append((self._layer, key, _words(tensor)))
        if key in self._uses:
            self._uses[key].words += _words(tensor)
        else:
            self._uses[key] = _Uses(tensor, _words(tensor), self._layer, self._module)

    def _place_waiting(self, operation: str, module: str, layer: int) -> None:
        """Assign what was saved since the last operation began: its own results to it, operands to the next operation."""
        for tensor in self._waiting:
            storage = storage_of(tensor)
            fixed = storage not in self._grows
            words = _words(tensor) // (1 if fixed else self._batch)
            place = layer, module, operation
            key = storage, view_of(tensor)
            if (storage in self._own_results and key not in self._saved) or not operation:
                place = self._layer, self._module, self._operation
            self._saved.setdefault(key, Saved(*place, words, BITS.get(tensor.dtype, 0), fixed))
            self._keepers.setdefault(key, []).append(place[0])
        self._kept += self._waiting
        self._waiting = []

    def join_layers(self, first: int) -> None:
        """Record that the layers from `first` on have become one, so that an activation has one use in them."""
        used = set()
        for layer, key, words in self._latest:
            if layer >= first and key in used:
                self._uses[key].words -= words
            elif layer >= first:
                used.add(key)
        self._saved = {key: replace(saved, layer=min(saved.layer, first)) for key, saved in self._saved.items()}
        for uses in self._uses.values():
            uses.layer = min(uses.layer, first)

    def finish(self, layers: Sequence[Layer]) -> tuple[tuple[Layer, ...], tuple[Saved, ...]]:
        """Return all layers, with each sum of gradients before the first use of its activation, and the saved tensors."""
        sums: dict[int, list[Elementwise]] = {}
        for use in self._uses.values():
            whole = use.tensor.untyped_storage().nbytes() // use.tensor.element_size()
            if use.words > whole:
                work = Elementwise(use.module, GRADIENT_SUM, use.words // self._batch, whole // self._batch)
                sums.setdefault(use.layer, []).append(work)
        all_layers: list[Layer] = []
        places: list[int] = []
        for index, layer in enumerate(layers):
            all_layers += sums.get(index, [])
            places.append(len(all_layers))
            all_layers.append(layer)
        last = len(layers) - 1
        sites = {index for index, layer in enumerate(layers) if not isinstance(layer, Elementwise) and layer.trainable}
        saved = (
            replace(tensor, layer=places[min(tensor.layer, last)], of_site=not sites.isdisjoint(self._keepers[key]))
            for key, tensor in self._saved.items()
            if layers
        )
        return tuple(all_layers), tuple(saved)


def _words(tensor: Tensor) -> int:
    """Return the number of elements of a tensor; those that are repeated along a broadcast dimension count once."""
    return prod(size for size, _ in view_of(tensor)[1])
