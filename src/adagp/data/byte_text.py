"""Batches of byte sequences cut from one text, for learning to predict the next byte.

The sequences of a batch and their order are a pure function of seed, epoch and batch, as in `adagp.data.batches`.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adagp.data.batches import WHOLE, Share, batch_count, check_batch_size, check_seed, epoch_order, generator_for
from adagp.errors import DataError, OptionError

TRAINED = 0.9
"""The share of a text, from its beginning, that is trained on; the rest is the test set."""


def read_bytes(path: Path) -> tuple[Tensor, Tensor]:
    """Return the training and the test part of a file, as uint8 tensors."""
    try:
        content = torch.from_numpy(np.fromfile(path, np.uint8))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}.") from None
    cut = int(len(content) * TRAINED)
    return content[:cut], content[cut:]


class ByteBatches:
    """Sequences of `length` bytes in batches: inputs and targets are int64 `(N, length)`, and a target is the next byte.

    With `shuffle`, the choice for training, each epoch cuts the text again, starting at a random one of its first `length`
    bytes, and visits the pieces in random order; all batches have one size, and a surplus is left out. Without it, the pieces
    follow each other from the first byte on. A last piece that is too short is left out.
    """

    def __init__(
        self,
        text: Tensor,
        length: int,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = False,
        part: str = "training set",
    ) -> None:
        self.pieces = (len(text) - length if shuffle else len(text) - 1) // length
        if self.pieces < 1:
            raise OptionError(
                f"--sequence-length is {length}, too long for the {part} of {len(text)} bytes; choose at most "
                f"{len(text) // 2}."
            )
        check_batch_size(batch_size, self.pieces, shuffle, part)
        check_seed(seed)
        self.text, self.length, self.batch_size = text, length, batch_size
        self.seed, self.shuffle = seed, shuffle

    def __len__(self) -> int:
        return batch_count(self.pieces, self.batch_size, drop_last=self.shuffle)

    def epoch(self, epoch: int, start: int = 0, share: Share = WHOLE) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of `epoch` from batch `start` on."""
        order = epoch_order(self.pieces, self.seed, epoch, self.shuffle)
        first = 0
        if self.shuffle:
            first = int(torch.randint(self.length, (), generator=generator_for(self.seed, epoch, -1)))
        # a view of all pieces, each with the byte after it
        pieces = self.text[first:].unfold(0, self.length + 1, self.length)
        for batch in range(start, len(self)):
            indices = share.of(order[batch * self.batch_size : (batch + 1) * self.batch_size])
            chosen = pieces[indices].long()
            yield chosen[:, :-1].contiguous(), chosen[:, 1:].contiguous()
