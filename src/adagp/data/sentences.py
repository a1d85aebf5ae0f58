"""Batches of sentence pairs of about the same length.

Which pairs are in a batch is a pure function of seed, epoch and batch, as in `adagp.data.batches`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from adagp.data.batches import (
    WHOLE,
    Share,
    batch_count,
    check_batch_size,
    check_seed,
    epoch_order,
    fingerprint,
    generator_for,
)
from adagp.models.tokens import BEGIN, END, PAD

Pieces = Sequence[Sequence[int]]
SentenceBatch = tuple[tuple[Tensor, Tensor], Tensor]
"""`(source, target_in), target_out`: int64 `(N, T)` each, filled up with PAD at the end."""


class SentenceBatches:
    """Sentence pairs in batches, for teacher forcing.

    A source ends with END. The target is given shifted by one: `target_in` is BEGIN and the sentence, `target_out` the
    sentence and END, so that position t of the answer is the piece after those up to t.

    With `shuffle`, the choice for training, each epoch leaves out a random surplus, sorts the rest by length with ties in
    random order, cuts it into batches of one size, and visits them in random order: there is little to fill up, and no
    length comes first. Without it, all pairs come in their order.
    """

    def __init__(
        self,
        source: Pieces,
        target: Pieces,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = False,
        part: str = "training set",
    ) -> None:
        check_batch_size(batch_size, len(source), shuffle, part)
        check_seed(seed)
        self.source, self.target = source, target
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self._lengths: tuple[int, int] | None = None

    def __len__(self) -> int:
        """Return the batches in an epoch."""
        return batch_count(len(self.source), self.batch_size, drop_last=self.shuffle)

    def epoch(self, epoch: int, start: int = 0, share: Share = WHOLE) -> Iterator[SentenceBatch]:
        """Yield the batches of `epoch` from batch `start` on; a share is filled up to the longest of the whole batch."""
        groups = self._groups(epoch)
        for batch in range(start, len(self)):
            yield self._batch(groups[batch], share)

    def fix_lengths(self) -> None:
        """From now on fill up every batch to the longest sentences of all, not to its own longest."""
        self._lengths = self._longest(range(len(self.source)))

    def _longest(self, chosen: Iterable[int]) -> tuple[int, int]:
        """Return the pieces of the longest source and target of `chosen` pairs, with the one more that all get."""
        pairs = list(chosen)
        source, target = (1 + max(len(side[pair]) for pair in pairs) for side in (self.source, self.target))
        return source, target

    @property
    def facts(self) -> dict[str, Any]:
        """How many pairs there are, and a digest of their pieces."""
        return {"samples": len(self.source), "digest": fingerprint([*self.source, *self.target])}

    def _groups(self, epoch: int) -> list[list[int]]:
        order: list[int] = epoch_order(len(self.source), self.seed, epoch, self.shuffle).tolist()
        if self.shuffle:
            order = order[: len(self) * self.batch_size]
            order.sort(key=lambda pair: (len(self.source[pair]), len(self.target[pair])))
        groups = [order[first : first + self.batch_size] for first in range(0, len(order), self.batch_size)]
        if self.shuffle:
            visits = torch.randperm(len(groups), generator=generator_for(self.seed, epoch, -1)).tolist()
            groups = [groups[visit] for visit in visits]
        return groups

    def _batch(self, chosen: list[int], share: Share) -> SentenceBatch:
        lengths = self._lengths or self._longest(chosen)
        mine = share.of(chosen)
        source = fill_up([[*self.source[pair], END] for pair in mine], lengths[0])
        target_in = fill_up([[BEGIN, *self.target[pair]] for pair in mine], lengths[1])
        target_out = fill_up([[*self.target[pair], END] for pair in mine], lengths[1])
        return (source, target_in), target_out


def fill_up(sentences: Pieces, length: int | None = None) -> Tensor:
    """Return sentences of different lengths as one tensor `(N, length)`, with PAD after the short ones.

    Without a `length`, it is that of the longest.
    """
    longest = length or max(len(one) for one in sentences)
    return torch.tensor([[*one, *[PAD] * (longest - len(one))] for one in sentences])
