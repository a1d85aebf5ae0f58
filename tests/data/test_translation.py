"""Reading Multi30k from files made here, its vocabulary, and its batches."""

import gzip
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adagp.data.translation import PARTS, SMALLEST, Pairs, SentenceBatches, Vocabulary, fill_up, load_multi30k
from adagp.errors import DataError, OptionError
from adagp.models.registry import BEGIN, END, PAD

ENGLISH = ["A dog runs.", "Two men sit on a bench.", "A girl in a red dress.", "The dog sees the men."]
GERMAN = ["Ein Hund läuft.", "Zwei Männer sitzen auf einer Bank.", "Ein Mädchen im roten Kleid.", "Der Hund sieht sie."]
VOCABULARY = Vocabulary.learn(ENGLISH, 270)


def write(folder: Path, *, zipped: bool = True, without: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS.values():
        for language, lines in (("en", ENGLISH), ("de", GERMAN)):
            content = ("\n".join(lines) + "\n").encode()
            name = f"{part}.{language}"
            if name != without:
                path = folder / (f"{name}.gz" if zipped else name)
                path.write_bytes(gzip.compress(content, mtime=0) if zipped else content)
    return folder


@pytest.mark.parametrize("folder", ["multi30k", "."])
@pytest.mark.parametrize("zipped", [True, False])
def test_reads_both_places_zipped_or_plain(tmp_path: Path, folder: str, zipped: bool) -> None:
    write(tmp_path / folder, zipped=zipped)
    texts = load_multi30k(tmp_path)
    assert texts.train == texts.validation == texts.test == Pairs(tuple(ENGLISH), tuple(GERMAN))


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    write(tmp_path, zipped=False)
    (tmp_path / "train.en").write_bytes("one\u2028half \r\n\ntwo\x0bthree\nfour".encode())
    assert load_multi30k(tmp_path).train.source == ("one\u2028half", "", "two\x0bthree", "four")


def test_missing_files_are_named(tmp_path: Path) -> None:
    write(tmp_path / "multi30k", without="val.de")
    with pytest.raises(DataError) as error:
        load_multi30k(tmp_path)
    assert str(error.value) == (
        f"data set 'multi30k' is not in {tmp_path}: missing in {tmp_path}/multi30k: val.de (each may end in .gz). "
        f"Put the files there or into {tmp_path}/multi30k. They are in the folder data/task1/raw of the GitHub "
        "repository multi30k/dataset; adagp does not download them."
    )


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"missing in .*: train\.en, train\.de, val\.en, val\.de, test_2016_flickr\.en, "
    ):
        load_multi30k(tmp_path / "nowhere")


def test_unpaired_files_say_both_counts(tmp_path: Path) -> None:
    write(tmp_path, zipped=False)
    (tmp_path / "train.de").write_text("eins\nzwei\n", encoding="utf-8")
    with pytest.raises(DataError) as error:
        load_multi30k(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}/train.en has 4 lines but {tmp_path}/train.de has 2; line n of both must be a pair."
    )


def test_empty_files(tmp_path: Path) -> None:
    write(tmp_path, zipped=False)
    for language in ("en", "de"):
        (tmp_path / f"val.{language}").write_bytes(b"")
    with pytest.raises(DataError) as error:
        load_multi30k(tmp_path)
    assert str(error.value) == f"{tmp_path}/val.en and {tmp_path}/val.de hold no line."


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("train.en.gz", b"no gzip", "Not a gzipped file (b'no')"),
        (
            "train.en.gz",
            gzip.compress(b"cut off", mtime=0)[:-4],
            "Compressed file ended before the end-of-stream marker was reached",
        ),
        ("train.en", "Mädchen".encode("latin-1"), "byte 1 is not UTF-8 text"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    write(tmp_path, zipped=False)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        load_multi30k(tmp_path)
    assert str(error.value) == f"cannot read {tmp_path}/{name}: {reason}."


def test_vocabulary_is_the_same_each_time() -> None:
    one, other = (Vocabulary.learn([*ENGLISH, *GERMAN], 300) for _ in range(2))
    assert len(one) == len(other) == 300
    assert one.encode(ENGLISH) == other.encode(ENGLISH)
    assert len(one.encode(["the men"])[0]) < len("the men")


@pytest.mark.medium
@settings(deadline=None)
@given(st.text())
def test_every_text_survives(text: str) -> None:
    (pieces,) = VOCABULARY.encode([text])
    assert not {PAD, BEGIN, END} & set(pieces)
    assert VOCABULARY.decode([[BEGIN, *pieces, END, PAD]]) == [text.strip()]


def test_marks_in_a_text_are_text() -> None:
    (pieces,) = VOCABULARY.encode(["</s> <pad>"])
    assert min(pieces) > END
    assert VOCABULARY.decode([pieces]) == ["</s> <pad>"]


def test_too_small_a_vocabulary() -> None:
    with pytest.raises(OptionError) as error:
        Vocabulary.learn(ENGLISH, SMALLEST - 1)
    assert str(error.value) == (
        "a vocabulary of 258 is too small: 256 bytes and 3 marks are always in it. Choose 259 or more."
    )


def sentences(count: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return pairs of many lengths, each with a number of its own as first piece."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(0, 9, (count, 2), generator=generator).tolist()
    return [[10 + n, *[4] * a] for n, (a, _) in enumerate(lengths)], [
        [10 + n, *[5] * b] for n, (_, b) in enumerate(lengths)
    ]


def test_teacher_forcing_shifts_by_one() -> None:
    batches = SentenceBatches([[7, 8], [9]], [[4], [5, 6]], 2)
    (((source, target_in), target_out),) = batches.epoch(0)
    assert source.tolist() == [[7, 8, END], [9, END, PAD]]
    assert target_in.tolist() == [[BEGIN, 4, PAD], [BEGIN, 5, 6]]
    assert target_out.tolist() == [[4, END, PAD], [5, 6, END]]


def test_lengths_can_be_fixed() -> None:
    batches = SentenceBatches([[7, 8], [9], [9]], [[4], [5, 6], [5]], 1)
    assert [source.shape[1] for (source, _), _ in batches.epoch(0)] == [3, 2, 2]
    batches.fix_lengths()
    shapes = {(source.shape, target_in.shape, target_out.shape) for (source, target_in), target_out in batches.epoch(0)}
    assert shapes == {((1, 3), (1, 3), (1, 3))}


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 3))
def test_an_epoch_visits_pairs_once_and_together(count: int, batch_size: int, epoch: int) -> None:
    batch_size = min(count, batch_size)
    batches = SentenceBatches(*sentences(count), batch_size, shuffle=True)
    seen = [(source[:, 0].tolist(), target_out[:, 0].tolist()) for (source, _), target_out in batches.epoch(epoch)]
    assert len(seen) == len(batches) == count // batch_size
    assert all(source == target and len(source) == batch_size for source, target in seen)
    visited = [pair for source, _ in seen for pair in source]
    assert len(set(visited)) == len(visited)


def test_batches_hold_neighbours_in_length() -> None:
    source, target = sentences(200)
    batches = SentenceBatches(source, target, 10, shuffle=True)
    spans = [(int((a != PAD).sum(1).min()), a.shape[1]) for (a, _), _ in batches.epoch(0)]
    assert all(low >= high for (_, high), (low, _) in pairwise(sorted(spans)))
    assert spans != sorted(spans)  # no length comes first


def test_every_pair_is_left_out_sometimes() -> None:
    batches = SentenceBatches(*sentences(11), 10, shuffle=True)
    missing = {
        frozenset(range(10, 21)) - {n for (source, _), _ in batches.epoch(epoch) for n in source[:, 0].tolist()}
        for epoch in range(40)
    }
    assert len(missing) > 5


@given(st.integers(0, 5), st.integers(0, 5))
def test_an_epoch_goes_on_from_its_middle(epoch: int, start: int) -> None:
    batches = SentenceBatches(*sentences(50), 10, seed=3, shuffle=True)
    whole = list(batches.epoch(epoch))[start:]
    rest = list(SentenceBatches(*sentences(50), 10, seed=3, shuffle=True).epoch(epoch, start))
    assert len(whole) == len(rest)
    for ((a, b), c), ((d, e), f) in zip(whole, rest, strict=True):
        assert torch.equal(a, d)
        assert torch.equal(b, e)
        assert torch.equal(c, f)


def test_epochs_and_seeds_differ() -> None:
    orders = [
        str(
            [
                source[:, 0].tolist()
                for (source, _), _ in SentenceBatches(*sentences(50), 10, seed=seed, shuffle=True).epoch(epoch)
            ]
        )
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    assert len(set(orders)) == 3


def test_held_out_pairs_come_in_order_and_all() -> None:
    batches = SentenceBatches(*sentences(11), 4, part="test set")
    assert [n for (source, _), _ in batches.epoch(0) for n in source[:, 0].tolist()] == list(range(10, 21))
    assert len(batches) == 3


def test_too_large_a_batch() -> None:
    with pytest.raises(OptionError) as error:
        SentenceBatches(*sentences(3), 4, shuffle=True)
    assert str(error.value) == "batch size 4 is larger than the training set of 3 samples; choose 1 to 3."


def test_fill_up() -> None:
    assert fill_up([[3], [4, 5, 6], []]).tolist() == [[3, PAD, PAD], [4, 5, 6], [PAD, PAD, PAD]]
