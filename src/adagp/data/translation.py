"""Multi30k, English to German: its files, a vocabulary of word pieces, and batches of sentence pairs of similar length.

The vocabulary is a byte-pair encoding, learned from the training text. It works on bytes, so every text can be written with it
and read back unchanged: there is no unknown word. Learning takes seconds and depends on nothing but the text and the size, so a
vocabulary is learned again in each run and written nowhere. Batches are a pure function of seed, epoch and batch.
"""

import gzip
import importlib.util
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from adagp.errors import DataError, OptionError
from adagp.models.registry import BEGIN, END, PAD

if TYPE_CHECKING:
    from tokenizers import Tokenizer


LARGEST = 2**30
"""The most bytes of an unpacked text."""

SOURCE, TARGET = "en", "de"
PARTS = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
"""The file name of each part, without the language."""


@dataclass(frozen=True)
class Pairs:
    """Sentences and their translations: `target[n]` translates `source[n]`."""

    source: tuple[str, ...]
    target: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.source)

    def chosen(self, numbers: Sequence[int]) -> "Pairs":
        """Return the pairs with these numbers."""
        return Pairs(tuple(self.source[number] for number in numbers), tuple(self.target[number] for number in numbers))


@dataclass(frozen=True)
class TextSet:
    """A translation set in memory."""

    name: str
    train: Pairs
    validation: Pairs
    test: Pairs


def load_multi30k(data_dir: Path | str) -> TextSet:
    """Return the set in the folder `multi30k` of `data_dir`, or in `data_dir` itself; files may be gzipped or plain."""
    folder = Path(data_dir) / "multi30k"
    if not folder.is_dir():
        folder = Path(data_dir)
    names = [f"{part}.{language}" for part in PARTS.values() for language in (SOURCE, TARGET)]
    paths = {name: path for name in names if (path := _find(folder / name)) is not None}
    missing = [name for name in names if name not in paths]
    if missing:
        raise DataError(
            f"data set 'multi30k' is not in {data_dir}: missing in {folder}: {', '.join(missing)} (each may end in .gz). "
            f"Put the files there or into {Path(data_dir) / 'multi30k'}. They are in the folder data/task1/raw of the "
            "GitHub repository multi30k/dataset; adagp does not download them."
        )
    pairs = {part: _read_pairs(paths[f"{file}.{SOURCE}"], paths[f"{file}.{TARGET}"]) for part, file in PARTS.items()}
    return TextSet("multi30k", **pairs)


def _find(path: Path) -> Path | None:
    zipped = path.with_name(path.name + ".gz")
    return next((candidate for candidate in (zipped, path) if candidate.is_file()), None)


def _read_pairs(source: Path, target: Path) -> Pairs:
    lines, translations = _read_lines(source), _read_lines(target)
    if len(lines) != len(translations):
        raise DataError(
            f"{source} has {len(lines)} lines but {target} has {len(translations)}; line n of both must be a pair."
        )
    if not lines:
        raise DataError(f"{source} and {target} hold no line.")
    return Pairs(lines, translations)


def _read_lines(path: Path) -> tuple[str, ...]:
    """Return the lines, stripped of white space. Only a line feed ends a line, unlike in `splitlines`."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise DataError(f"cannot read {path}: it holds more than {LARGEST:,} bytes.")
        text = content.decode("utf-8")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}.") from None
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {path}: byte {error.start} is not UTF-8 text.") from None
    return tuple(line.strip() for line in text.removesuffix("\n").split("\n")) if text else ()


_MARKS = ("<pad>", "<s>", "</s>")
"""The pieces PAD, BEGIN and END of `adagp.models.registry`, in their order."""
SMALLEST = 256 + len(_MARKS)


class Vocabulary:
    """Word pieces by number. `learn` makes one."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer

    @classmethod
    def learn(cls, lines: Iterable[str], size: int) -> "Vocabulary":
        """Return a vocabulary of at most `size` pieces that encodes `lines` in few pieces."""
        if size < SMALLEST:
            raise OptionError(
                f"a vocabulary of {size} is too small: {SMALLEST - len(_MARKS)} bytes and {len(_MARKS)} marks are always "
                f"in it. Choose {SMALLEST} or more."
            )
        require("tokenizers")
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        # A space before the first word makes it the same piece as in the middle of a sentence.
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=list(_MARKS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(lines, trainer)
        tokenizer.encode_special_tokens = True  # "<s>" in a text is text, not a mark
        return cls(tokenizer)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the pieces of each line, without marks."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(lines))]

    def decode(self, sentences: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence of pieces, without marks and without white space around it."""
        return [text.strip() for text in self._tokenizer.decode_batch([list(sentence) for sentence in sentences])]


def require(package: str) -> None:
    """Raise if a package of the extra `text` is missing."""
    if importlib.util.find_spec(package) is None:
        raise DataError(f"{package} is needed here and is not installed: pip install '.[text]'.")


Pieces = Sequence[Sequence[int]]
SentenceBatch = tuple[tuple[Tensor, Tensor], Tensor]
"""`(source, target_in), target_out`: int64 `(N, T)` each, padded with PAD at the end."""


class SentenceBatches:
    """Sentence pairs in batches, for teacher forcing.

    A source ends with END. `target_in` is BEGIN and the target sentence, `target_out` the sentence and END: at each position,
    `target_out` has the piece that follows in `target_in`.

    With `shuffle`, the choice for training, each epoch leaves out a random surplus, sorts the rest by length with ties in
    random order, cuts it into batches of one size, and visits them in random order. So there is little padding, and no length
    comes first. Without it, all pairs come in their order.
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
        return batch_count(len(self.source), self.batch_size, drop_last=self.shuffle)

    def epoch(self, epoch: int, start: int = 0, share: Share = WHOLE) -> Iterator[SentenceBatch]:
        """Yield the batches of `epoch` from batch `start` on; a share is padded to the longest sentence of the whole batch."""
        groups = self._groups(epoch)
        for batch in range(start, len(self)):
            yield self._batch(groups[batch], share)

    def fix_lengths(self) -> None:
        """From now on pad every batch to the longest sentences of the set, not of the batch."""
        self._lengths = self._longest(range(len(self.source)))

    def _longest(self, chosen: Iterable[int]) -> tuple[int, int]:
        """Return the lengths of the longest source and target of the `chosen` pairs, with the mark that each gets."""
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
        indices = share.of(chosen)
        source = fill_up([[*self.source[pair], END] for pair in indices], lengths[0])
        target_in = fill_up([[BEGIN, *self.target[pair]] for pair in indices], lengths[1])
        target_out = fill_up([[*self.target[pair], END] for pair in indices], lengths[1])
        return (source, target_in), target_out


def fill_up(sentences: Pieces, length: int | None = None) -> Tensor:
    """Return sentences of different lengths as one tensor `(N, length)`, with PAD after the short ones.

    By default `length` is the length of the longest sentence.
    """
    longest = length or max(len(sentence) for sentence in sentences)
    return torch.tensor([[*sentence, *[PAD] * (longest - len(sentence))] for sentence in sentences])
