"""The weights of a model under trace: which parameters a tensor holds, and how often each is used.

A weight is its elements in memory, so a view, a chunk or a transposed weight is still the same weight, and what
is made of parameters alone (a cast, a copy, a normalised weight) stands for them. A weight that is used several times, as
in recurrent nets and tied embeddings, is counted once, and parts of one parameter are distinct.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

View = tuple[int, tuple[tuple[int, int], ...]]
"""Elements of a memory: the first one, then (size, stride) of each direction, the longest stride first."""


@dataclass(frozen=True)
class Elements:
    """What a tensor holds: elements of the memory `root`, as trained weights of the module `owner`."""

    root: Hashable
    view: View
    owner: str
    trainable: bool

    @property
    def count(self) -> int:
        """Different elements; one that is repeated along a broadcast direction counts once."""
        return prod(size for size, _ in self.view[1])


@dataclass(frozen=True)
class _Derived:
    """A tensor under watch: what it holds, and where element 0 of its memory is in the root's, if they are in one order."""

    tensor: Tensor
    elements: Elements
    start: int | None


class WeightUses:
    """The weights of a model under trace. Tensors that were added are kept, so that their memory names them."""

    def __init__(self) -> None:
        self._derived: dict[int, _Derived] = {}
        self._first: dict[Hashable, View] = {}
        self._used: dict[Hashable, Tensor] = {}

    def add(self, tensor: Tensor, owner: str, trainable: bool) -> None:
        """Enter a parameter or buffer of the module `owner`."""
        storage = storage_of(tensor)
        self._derived[storage] = _Derived(
            tensor, Elements(("parameter", storage), view_of(tensor), owner, trainable), 0
        )

    def derive(self, operation: str, sources: Sequence[Tensor], results: Iterable[Tensor]) -> None:
        """Enter the results of an operation on weights alone; a copy of one weight stands for that weight."""
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
        """Return the weights that `tensor` holds; None for an activation."""
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
        """Return whether a product has used any of the memory that the elements are in."""
        return elements.root in self._first

    def use(self, elements: Elements) -> int:
        """Note a use in a product; return how many of the elements were used in a product before."""
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
"""Operations whose result has the elements of their one tensor."""


def view_of(tensor: Tensor) -> View:
    """Return which elements of its memory `tensor` has, whatever the order of its dimensions and however they are cut."""
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
    """Return a number of the memory that a tensor lies in; it is used again when the memory is freed."""
    return int(tensor.untyped_storage()._cdata)
