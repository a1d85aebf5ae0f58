"""Streamed batches of pictures in folders."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from adagp.data import DATASETS
from adagp.data.loaders import IMAGENET_MEAN, IMAGENET_STD, FolderBatches, image_loaders, open_folders, random_box
from adagp.errors import DataError, OptionError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for part, count in (("train", 5), ("val", 2)):
        for name in ("cat", "dog"):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (20 + number, 24, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / name / f"{number}.png")
    return tmp_path


def training(folder: Path, workers: int = 0, batch_size: int = 4) -> FolderBatches:
    samples, _ = open_folders(folder, 2)
    return FolderBatches(samples, batch_size, size=8, seed=3, train=True, augment=True, workers=workers)


def test_resuming_gives_the_same_bits_with_any_number_of_workers(folder: Path) -> None:
    before = torch.get_rng_state()
    whole = list(training(folder).epoch(1))
    resumed = list(training(folder, workers=2).epoch(1, start=1))
    assert torch.equal(torch.get_rng_state(), before)
    assert (len(whole), len(resumed), len(training(folder))) == (2, 1, 2)
    assert torch.equal(whole[1][0], resumed[0][0])
    assert torch.equal(whole[1][1], resumed[0][1])
    assert whole[0][0].shape == (4, 3, 8, 8)
    assert not torch.equal(whole[0][0], next(iter(training(folder).epoch(2)))[0])


def test_test_batches_are_the_centres_in_order(folder: Path) -> None:
    _, samples = open_folders(folder, 2)
    data = FolderBatches(samples, 3, size=14, train=False, augment=False, workers=0)
    seen = list(data.epoch(0))
    assert [y.tolist() for _, y in seen] == [[0, 0, 1], [1]]
    picture = Image.open(samples[3][0]).resize((14, 14), Image.Resampling.BILINEAR, box=_centre(24, 21))
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    torch.testing.assert_close(seen[1][0][0], (pixels - mean) / std)


def _centre(width: int, height: int) -> tuple[float, float, float, float]:
    side = min(width, height) * 7 / 8
    return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2


def test_random_boxes_keep_their_limits() -> None:
    generator = torch.Generator().manual_seed(0)
    for width, height in ((100, 80), (80, 100), (500, 3)):
        for _ in range(200):
            left, top, right, bottom = random_box(width, height, generator)
            assert left >= 0
            assert top >= 0
            assert right <= width + 1e-9
            assert bottom <= height + 1e-9
            if height > 3:
                area, aspect = (right - left) * (bottom - top), (right - left) / (bottom - top)
                assert 0.08 - 1e-9 <= area / (width * height) <= 1 + 1e-9
                assert 3 / 4 - 1e-9 <= aspect <= 4 / 3 + 1e-9


def test_by_name(folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    data_dir = tmp_path_factory.mktemp("data")
    (data_dir / "imagenet").symlink_to(folder)
    with pytest.raises(DataError) as caught:
        image_loaders("imagenet", 2, data_dir=data_dir)
    assert str(caught.value) == f"{data_dir}/imagenet/train: it has 2 class folders; expected 1000."
    monkeypatch.setitem(DATASETS._things, "imagenet", replace(DATASETS["imagenet"], classes=2))
    loaders = image_loaders("imagenet", 2, data_dir=data_dir, size=8, workers=0)
    assert (loaders.shape, len(loaders.train), len(loaders.test)) == ((3, 8, 8), 5, 2)


def test_batch_size_above_the_set(folder: Path) -> None:
    with pytest.raises(OptionError) as caught:
        training(folder, batch_size=11)
    assert str(caught.value) == "batch size 11 is larger than the training set of 10 samples; choose 1 to 10."
