"""Multi30k, English to German: paired lines of text, checked once where they enter. No torch here."""

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adagp.errors import DataError

LARGEST = 2**30
"""Bytes of a text at most, unpacked."""

SOURCE, TARGET = "en", "de"
PARTS = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
"""The file name of each part, without the language."""


@dataclass(frozen=True)
class Pairs:
    """Sentences and their translations: `target[n]` says what `source[n]` says."""

    source: tuple[str, ...]
    target: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.source)

    def chosen(self, numbers: Sequence[int]) -> "Pairs":
        """Return the pairs of these numbers."""
        return Pairs(tuple(self.source[one] for one in numbers), tuple(self.target[one] for one in numbers))


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
    found = {name: _find(folder / name) for name in names}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise DataError(
            f"data set 'multi30k' is not in {data_dir}: missing in {folder}: {', '.join(missing)} (each may end in .gz). "
            f"Put the files there or into {Path(data_dir) / 'multi30k'}. They are in the folder data/task1/raw of the "
            "GitHub repository multi30k/dataset; adagp does not download them."
        )
    paths = {name: path for name, path in found.items() if path is not None}
    pairs = {part: _read_pairs(paths[f"{file}.{SOURCE}"], paths[f"{file}.{TARGET}"]) for part, file in PARTS.items()}
    return TextSet("multi30k", **pairs)


def _find(path: Path) -> Path | None:
    zipped = path.with_name(path.name + ".gz")
    return next((one for one in (zipped, path) if one.is_file()), None)


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
    """Return the lines without the white space around them. Only a line feed ends a line, unlike in `splitlines`."""
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
