"""Shares of batches, for processes that train on one each: together they are the batch."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from adagp.data.batches import WHOLE, ImageBatches, Share
from adagp.data.boxed import BoxedBatches
from adagp.data.bytes import ByteBatches
from adagp.data.sentences import SentenceBatches
from adagp.data.stream import FolderBatches, open_folders
from adagp.data.voc import read_voc
from adagp.program.tasks.base import taken

Epoch = Callable[..., Iterator[Any]]
BATCH, SHARES = 6, 3


@pytest.fixture(params=["images", "sentences", "bytes", "boxes", "folders"])
def epoch(request: pytest.FixtureRequest, tmp_path: Path, write_devkit: Any) -> Epoch:
    random = np.random.default_rng(0)
    pixels, labels = random.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8), np.arange(20) % 7
    if request.param == "images":
        options: Any = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "shuffle": True, "augment": True}
        return ImageBatches(pixels, labels, BATCH, **options).epoch
    if request.param == "sentences":
        sentences = [[7] * (1 + number % 5) for number in range(20)]
        return SentenceBatches(sentences, sentences[::-1], BATCH, shuffle=True).epoch
    if request.param == "bytes":
        return ByteBatches(torch.arange(250, dtype=torch.uint8), 10, BATCH, shuffle=True).epoch
    if request.param == "boxes":
        things = [("dog", (3, 5, 30, 40), False), ("cow", (20, 10, 60, 48), False)]
        found = {f"p{number}": things[number % 2 :] for number in range(14)}
        return BoxedBatches(read_voc(write_devkit(found, found))[0], BATCH, size=32, train=True).epoch
    for part, name in (("train", "cat"), ("train", "dog"), ("val", "cat"), ("val", "dog")):
        (tmp_path / part / name).mkdir(parents=True)
        for number in range(7):
            Image.fromarray(pixels[number]).save(tmp_path / part / name / f"{number}.png")
    return FolderBatches(open_folders(tmp_path, 2)[0], BATCH, size=8, train=True, augment=True, workers=0).epoch


def tensors(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [one for inner in value for one in tensors(inner)]


def test_shares_of_a_batch_are_the_batch(epoch: Epoch) -> None:
    whole = list(epoch(1, 1))
    assert whole
    for index in range(SHARES):
        share = Share(index, SHARES)
        for batch, part in zip(whole, epoch(1, 1, share), strict=True):
            for expected, found in zip(tensors(taken(share, batch)), tensors(part), strict=True):
                assert torch.equal(found, expected[:, : found.shape[1]] if found.dim() > 1 else expected)
                if not found.is_floating_point() and found.dim() > 1:
                    assert expected[:, found.shape[1] :].eq(-1).all()  # places for objects that this share has not


def test_the_whole_is_a_share() -> None:
    assert WHOLE.of(list(range(5))) == [0, 1, 2, 3, 4]
    assert [Share(index, 2).of(list(range(6))) for index in range(2)] == [[0, 1, 2], [3, 4, 5]]
