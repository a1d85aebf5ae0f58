"""A vocabulary of word pieces: byte-pair encoding, learned from the training text. No torch here.

It works on bytes, so every text can be written with it and read back unchanged: there is no unknown word. Learning takes
seconds and depends on nothing but the text and the size, so a vocabulary is learned again in each run and written nowhere.
"""

import importlib.util
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from adagp.errors import DataError, OptionError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MARKS = ("<pad>", "<s>", "</s>")
"""The pieces PAD, BEGIN and END of `adagp.models.tokens`, in their order."""
SMALLEST = 256 + len(_MARKS)


class Vocabulary:
    """Word pieces by number. `learn` makes one."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer

    @classmethod
    def learn(cls, lines: Iterable[str], size: int) -> "Vocabulary":
        """Return the vocabulary of at most `size` pieces that writes `lines` with few of them."""
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
        """Return the number of pieces, marks included."""
        return self._tokenizer.get_vocab_size()

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the pieces of each line, without marks."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(lines))]

    def decode(self, sentences: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence of pieces; marks are left out, and white space around the text."""
        return [text.strip() for text in self._tokenizer.decode_batch([list(one) for one in sentences])]


def require(package: str) -> None:
    """Refuse to begin without a package of the extra `text`."""
    if importlib.util.find_spec(package) is None:
        raise DataError(f"{package} is needed here and is not installed: pip install 'adagp[text]'.")
