from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adagp.data import DATASETS
from adagp.data.byte_text import ByteBatches, read_bytes
from adagp.data.registry import find
from adagp.errors import DataError, OptionError

TEXT = torch.arange(100, dtype=torch.uint8)


def persuasion() -> Path:
    path = find(DATASETS["persuasion"], Path())
    assert path is not None
    return path


def test_the_novel_is_there_and_is_as_large_as_the_table_of_data_sets_says() -> None:
    path, info = persuasion(), DATASETS["persuasion"]
    assert path.read_text("ascii").split()[:4] == ["Persuasion", "by", "Jane", "Austen"]
    train, test = read_bytes(path)
    assert bytes(torch.cat([train, test]).tolist()) == path.read_bytes()
    assert ByteBatches(train, 128, 32, shuffle=True).pieces == info.train
    assert ByteBatches(test, 128, 32).pieces == info.test
    assert f"{len(train):,} bytes, are the training set" in path.with_name("PERSUASION.md").read_text()


@given(st.integers(3, 60), st.integers(1, 12), st.integers(1, 5), st.integers(0, 9))
def test_each_target_is_the_next_byte_and_pieces_do_not_overlap(size: int, length: int, batch: int, epoch: int) -> None:
    text = torch.arange(size, dtype=torch.uint8)
    for shuffle in (False, True):
        pieces = (size - length) // length if shuffle else (size - 1) // length
        if pieces < (batch if shuffle else 1):
            continue
        batches = ByteBatches(text, length, batch, shuffle=shuffle)
        found = list(batches.epoch(epoch))
        assert len(found) == len(batches)
        for tokens, targets in found:
            assert tokens.shape[1] == length
            assert tokens.dtype == targets.dtype == torch.int64
            assert torch.equal(targets, tokens + 1)
        seen = torch.cat([tokens.flatten() for tokens, _ in found]).tolist()
        assert len(set(seen)) == len(seen)
        if not shuffle:
            assert seen == list(range(pieces * length))


def test_an_epoch_begun_in_its_middle_is_the_rest_of_it() -> None:
    batches = ByteBatches(TEXT, 4, 3, seed=5, shuffle=True)
    for epoch in range(3):
        whole = list(batches.epoch(epoch))
        state = torch.get_rng_state()
        rest = list(ByteBatches(TEXT, 4, 3, seed=5, shuffle=True).epoch(epoch, 3))
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(one, other) for one, other in zip(sum(whole[3:], ()), sum(rest, ()), strict=True))
    first, second, other = (
        next(ByteBatches(TEXT, 4, 3, seed=seed, shuffle=True).epoch(epoch))[0]
        for seed, epoch in ((5, 0), (5, 1), (6, 0))
    )
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)


def test_what_does_not_fit_is_rejected() -> None:
    message = "^--sequence-length is 60, too long for the training set of 100 bytes; choose at most 50.$"
    with pytest.raises(OptionError, match=message):
        ByteBatches(TEXT, 60, 1, shuffle=True)
    assert len(ByteBatches(TEXT, 50, 1, shuffle=True)) == 1
    with pytest.raises(
        OptionError, match="^batch size 50 is larger than the training set of 24 samples; choose 1 to 24.$"
    ):
        ByteBatches(TEXT, 4, 50, shuffle=True)
    with pytest.raises(DataError, match="^cannot read nowhere.txt: No such file or directory.$"):
        read_bytes(Path("nowhere.txt"))
