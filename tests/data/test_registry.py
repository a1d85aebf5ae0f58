"""Image sets by name: the embedded one, those in a data folder, and those that are not there."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adagp.data import DATASETS, DatasetInfo, describe_datasets, load_images
from adagp.data.registry import image_info, locate
from adagp.errors import DataError, OptionError


def write(path: Path, shape: tuple[int, int, int], classes: int | None = None) -> None:
    x, y = np.zeros((3, *shape), np.uint8), np.arange(3)
    arrays: dict[str, Any] = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    if classes is not None:
        arrays["class_names"] = np.array([f"c{n}" for n in range(classes)])
    np.savez(path, **arrays)


def test_digits_are_the_uci_digits() -> None:
    digits = load_images("digits")
    info = DATASETS["digits"]
    assert (digits.shape, digits.classes) == (info.shape, info.classes) == ((1, 8, 8), 10)
    assert (len(digits.x_train), len(digits.x_test)) == (info.train, info.test) == (1437, 360)
    assert digits.x_train.max() == 16
    labels = np.concatenate([digits.y_train, digits.y_test])
    # the class counts of optdigits.tes, as its documentation states them
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_split_is_stratified_and_without_overlap() -> None:
    digits = load_images("digits")
    shares = np.bincount(digits.y_test) / (np.bincount(digits.y_train) + np.bincount(digits.y_test))
    assert np.abs(shares - 360 / 1797).max() < 0.004
    train = {image.tobytes() for image in digits.x_train}
    assert not any(image.tobytes() in train for image in digits.x_test)


def test_npz_in_the_data_folder(tmp_path: Path) -> None:
    write(tmp_path / "cifar10.npz", (32, 32, 3))
    assert load_images("cifar10", tmp_path).classes == 10


def test_npz_by_its_own_path(tmp_path: Path) -> None:
    write(tmp_path / "mine.npz", (5, 6, 1))
    images = load_images(str(tmp_path / "mine.npz"))
    assert (images.name, images.shape, images.classes) == ("mine", (1, 5, 6), 3)


def test_imagenette_may_have_any_size_but_not_another_than_asked(tmp_path: Path) -> None:
    write(tmp_path / "imagenette64.npz", (64, 64, 3))
    assert load_images("imagenette", tmp_path).shape == (3, 64, 64)
    with pytest.raises(DataError) as caught:
        load_images("imagenette", tmp_path, size=32)
    path = tmp_path / "imagenette64.npz"
    expected = f"{path}: its images are 3x64x64 (channels x height x width); expected 3x32x32."
    assert str(caught.value) == expected


def test_file_of_another_data_set(tmp_path: Path) -> None:
    path = tmp_path / "cifar10.npz"
    write(path, (28, 28, 1))
    with pytest.raises(DataError) as caught:
        load_images("cifar10", tmp_path)
    expected = f"{path}: its images are 1x28x28 (channels x height x width); expected 3x32x32."
    assert str(caught.value) == expected
    write(path, (32, 32, 3), classes=100)
    with pytest.raises(DataError) as caught:
        load_images("cifar10", tmp_path)
    assert str(caught.value) == f"{path}: it has 100 classes; cifar10 has 10."


def test_missing_set_says_both_ways() -> None:
    with pytest.raises(DataError) as caught:
        load_images("cifar10", Path("somewhere"))
    assert str(caught.value) == (
        "data set 'cifar10' is not in somewhere. Provide the file somewhere/cifar10.npz with the arrays "
        "x_train, y_train, x_test, y_test (optionally class_names), or the folder "
        "somewhere/cifar-10-batches-py in its usual layout. Or let --download fetch it."
    )


def test_missing_set_that_cannot_be_fetched() -> None:
    with pytest.raises(DataError) as caught:
        locate(DATASETS["imagenet"], Path("data"), download=True)
    assert str(caught.value) == (
        "data set 'imagenet' is not in data. Provide the folder data/imagenet or data/ILSVRC/Data/CLS-LOC "
        "in its usual layout. It cannot be downloaded from here."
    )


def test_streamed_set_is_not_loaded_whole() -> None:
    with pytest.raises(OptionError) as caught:
        load_images("imagenet")
    assert str(caught.value) == (
        "imagenet is too large to hold in memory; adagp.data.loaders.image_loaders reads it batch by batch."
    )


def test_unknown_name() -> None:
    with pytest.raises(OptionError) as caught:
        load_images("cifar-10")
    assert str(caught.value) == (
        "unknown data set 'cifar-10'. Did you mean 'cifar10'? Choose from: " + ", ".join(sorted(DATASETS)) + "."
    )


def test_set_of_another_task(monkeypatch: pytest.MonkeyPatch) -> None:
    info = DatasetInfo("a-text", "translation", "", (), 0, 1, 1, ())
    monkeypatch.setitem(DATASETS._things, info.name, info)
    with pytest.raises(OptionError) as caught:
        image_info("a-text")
    assert str(caught.value) == "data set 'a-text' is for the task translation, not images."


def test_download_happens_only_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fetch(folder: Path) -> None:
        print("fetching")  # noqa: T201
        write(folder / "cifar10.npz", (32, 32, 3))

    info = replace(DATASETS["cifar10"], fetch=fetch)
    with pytest.raises(DataError):
        locate(info, tmp_path)
    assert locate(info, tmp_path, download=True) == tmp_path / "cifar10.npz"
    assert capsys.readouterr() == ("", "fetching\n")


def test_failed_download(tmp_path: Path) -> None:
    def fetch(folder: Path) -> None:
        raise OSError("no route to host")

    with pytest.raises(DataError) as caught:
        locate(replace(DATASETS["cifar10"], fetch=fetch), tmp_path, download=True)
    assert str(caught.value).startswith("could not download cifar10: no route to host. Provide the file ")


def test_rows(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    rows = {row.info.name: row for row in describe_datasets(tmp_path)}
    assert list(rows) == list(DATASETS)
    assert rows["digits"].found is not None
    assert Path(rows["digits"].found).name == "digits.npz"
    assert rows["cifar10"].found is None
    assert rows["cifar10"].looked_for == (f"{tmp_path}/cifar10.npz", f"{tmp_path}/cifar-10-batches-py")
    assert rows["cifar100"].found == f"{tmp_path}/cifar-100-python"
    cifar100, imagenet = (rows[name].as_dict() for name in ("cifar100", "imagenet"))
    assert (cifar100["downloadable"], imagenet["downloadable"]) == (True, False)
    assert (imagenet["shape"], imagenet["classes"]) == ((3, 224, 224), 1000)
