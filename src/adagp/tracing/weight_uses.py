"""The weights of a traced model: which parameters a tensor contains, and how often each is used.

A weight is identified by its elements in memory, so a view, a chunk or a transposed weight is still the same weight. A tensor
computed from parameters only (a cast, a copy, a normalised weight) counts as these parameters. A weight that is used several
times, as in recurrent nets and tied embeddings, is counted once, and parts of one parameter are distinct.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

View = tuple[int, tuple[tuple[int, int], ...]]
"""Elements of a block of memory: the first one, then (size, stride) of each dimension, the longest stride first."""


@dataclass(frozen=True)
class Elements:
    """The weights in a tensor: elements of the memory `root`, which belong to the module `owner`."""

    root: Hashable
    view: View
    owner: str
    trainable: bool

    @property
    def count(self) -> int:
        """The number of different elements; one that is repeated along a broadcast dimension counts once."""
        return prod(size for size, _ in self.view[1])


@dataclass(frozen=True)
class _Derived:
    """A tensor of weights: its elements, and the position of its memory in that of their root, if both have the same order."""

    tensor: Tensor
    elements: Elements
    start: int | None


class WeightUses:
    """The weights of a traced model. Added tensors are kept alive, because they are identified by their memory."""

    def __init__(self) -> None:
        self._derived: dict[int, _Derived] = {}
        self._first: dict[Hashable, View] = {}
        self._used: dict[Hashable, Tensor] = {}

    def add(self, tensor: Tensor, owner: str, trainable: bool) -> None:
        """Add a parameter or buffer of the module `owner`."""
        storage = storage_of(tensor)
        self._derived[storage] = _Derived(
            tensor, Elements(("parameter", storage), view_of(tensor), owner, trainable), 0
        )

    def derive(self, operation: str, sources: Sequence[Tensor], results: Iterable[Tensor]) -> None:
        """Add the results of an operation on weights only; a copy of a weight counts as that weight."""
        parents = [elements for source in sources if (elements := self.find(source)) is not None]
        if not any(elements.trainable for elements in parents):
            return
        largest = max(parents, key=lambda elements: elements.count)
        for index, result in enumerate(results):
            if storage_of(result) in self._derived:
                continue
            if len(sources) == 1 and operation in COPIES:
                derived = _Derived(result, largest, self._start_of_copy(sources[0], result))
            else:
                root = (operation, index, tuple((elements.root, elements.view) for elements in parents), result.shape)
                derived = _Derived(result, Elements(root, view_of(result), largest.owner, True), 0)
            self._derived[storage_of(result)] = derived

    def _start_of_copy(self, source: Tensor, copy: Tensor) -> int | None:
        start = self._derived[storage_of(source)].start
        same = source.shape == copy.shape and source.stride() == copy.stride()
        return start + int(source.storage_offset()) if same and start is not None else None

    def find(self, tensor: Tensor) -> Elements | None:
        """Return the weights in `tensor`; None for an activation."""
        derived = self._derived.get(storage_of(tensor))
        if derived is None:
            return None
        elements, (offset, directions) = derived.elements, view_of(tensor)
        if derived.start is not None:
            return Elements(elements.root, (derived.start + offset, directions), elements.owner, elements.trainable)
        if prod(size for size, _ in directions) == derived.tensor.numel():  # all of a copy, in another order
            return elements
        return Elements((elements.root, elements.view), (offset, directions), elements.owner, elements.trainable)

    def is_used(self, elements: Elements) -> bool:
        """Return whether a product has used any elements of the same memory."""
        return elements.root in self._first

    def use(self, elements: Elements) -> int:
        """Record a use in a product; return how many of the elements had been used in a product before."""
        root, view = elements.root, elements.view
        if root not in self._first:
            self._first[root] = view
            return 0
        if root not in self._used:
            if view == self._first[root]:
                return elements.count
            self._used[root] = torch.zeros(_end(self._first[root]), dtype=torch.bool)
            _at(self._used[root], self._first[root]).fill_(True)
        used = self._used[root]
        if len(used) < _end(view):
            used = self._used[root] = torch.cat([used, used.new_zeros(_end(view) - len(used))])
        before = int(_at(used, view).sum())
        _at(used, view).fill_(True)
        return before


COPIES = frozenset(("clone", "_to_copy", "_unsafe_view", "_reshape_copy", "expand_copy"))
"""Operations whose result is a copy of their only tensor."""


def view_of(tensor: Tensor) -> View:
    """Return the elements of its memory that `tensor` has, in a form independent of the order and split of its dimensions."""
    directions = sorted(
        ((size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and stride > 0),
        key=lambda direction: -direction[1],
    )
    joined: list[tuple[int, int]] = []
    for size, stride in directions:
        if joined and joined[-1][1] == size * stride:
            joined[-1] = (joined[-1][0] * size, stride)
        else:
            joined.append((size, stride))
    return int(tensor.storage_offset()), tuple(joined)


def _end(view: View) -> int:
    return view[0] + sum((size - 1) * stride for size, stride in view[1]) + 1


def _at(memory: Tensor, view: View) -> Tensor:
    sizes, strides = [size for size, _ in view[1]], [stride for _, stride in view[1]]
    return memory.as_strided(sizes, strides, view[0])


def storage_of(tensor: Tensor) -> int:
    """Return an id of the memory of a tensor, which is used again after the memory was freed."""
    return int(tensor.untyped_storage()._cdata)
