"""Resizing against doing it in two steps."""

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from adagp.data.image_files import (
    IMAGENETTE_NAMES,
    read_cifar10,
    read_cifar100,
    read_imagenette,
    read_tinyimagenet,
    resized,
)
from adagp.errors import DataError
from adagp.models.vision import load_torchvision


@pytest.mark.parametrize("size", [(60, 40), (40, 60), (40, 40)])
def test_the_centre_is_taken_after_resizing(size: tuple[int, int]) -> None:
    pixels = np.linspace(0, 255, size[0] * size[1] * 3).reshape(size[1], size[0], 3).astype(np.uint8)
    picture = Image.fromarray(pixels)
    scale = 20 / min(size)
    whole = picture.resize((round(size[0] * scale), round(size[1] * scale)), Image.Resampling.BILINEAR)
    left, top = (whole.width - 16) // 2, (whole.height - 16) // 2
    expected = np.asarray(whole.crop((left, top, left + 16, top + 16))).astype(int)
    assert np.abs(resized(picture, 20, 16).astype(int) - expected).max() <= 2


def picture(path: Path, size: tuple[int, int], colour: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def dump(path: Path, content: dict[str, Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content))
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(("kind", "label_key"), [("CIFAR10", "labels"), ("CIFAR100", "fine_labels")])
def test_cifar_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, label_key: str) -> None:
    reader: Any = getattr(load_torchvision("torchvision.datasets"), kind)
    folder = tmp_path / reader.base_folder
    rows = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
    train = dump(folder / "first", {"data": rows[:3], label_key: [2, 0, 1]})
    test = dump(folder / "last", {"data": rows[3:], label_key: [1]})
    meta = dump(folder / "names", {reader.meta["key"]: ["cat", "dog", "eel"]})
    monkeypatch.setattr(reader, "train_list", [["first", train]])
    monkeypatch.setattr(reader, "test_list", [["last", test]])
    monkeypatch.setattr(reader, "meta", reader.meta | {"filename": "names", "md5": meta})
    read = read_cifar10 if kind == "CIFAR10" else read_cifar100
    images = read("some", folder, 32)
    # a row of the batches is the red plane, then green, then blue
    np.testing.assert_array_equal(images.x_train, rows[:3].reshape(3, 3, 32, 32).transpose(0, 2, 3, 1))
    assert images.y_train.tolist() == [2, 0, 1]
    assert (images.y_test.tolist(), images.class_names) == ([1], ("cat", "dog", "eel"))

    (folder / "first").write_bytes(b"changed")
    with pytest.raises(DataError) as caught:
        read("some", folder, 32)
    expected = f"{folder}: these are not the original files of some (one is missing or its md5 differs)."
    assert str(caught.value) == expected


def test_imagenette(tmp_path: Path) -> None:
    first, second = sorted(IMAGENETTE_NAMES)[:2]
    picture(tmp_path / "train" / first / "a.png", (40, 20), (200, 0, 0))
    picture(tmp_path / "train" / second / "b.png", (20, 30), (0, 200, 0))
    (tmp_path / "train" / second / "notes.txt").write_text("not a picture")
    picture(tmp_path / "val" / second / "c.png", (16, 16), (0, 0, 200))
    images = read_imagenette("imagenette", tmp_path, 16)
    assert images.shape == (3, 16, 16)
    assert images.class_names == ("tench", "English springer")
    assert (images.y_train.tolist(), images.y_test.tolist()) == ([0, 1], [1])
    assert images.x_train[:, 8, 8].tolist() == [[200, 0, 0], [0, 200, 0]]


@pytest.mark.parametrize("annotated", [True, False])
def test_tinyimagenet(tmp_path: Path, annotated: bool) -> None:
    for label, wnid in enumerate(("n1", "n2")):
        picture(tmp_path / "train" / wnid / "images" / f"{wnid}_0.png", (64, 64), (label, 0, 0))
    if annotated:
        for number in (0, 1):
            picture(tmp_path / "val" / "images" / f"val_{number}.png", (64, 64), (9, 9, 9))
        lines = "val_0.png\tn2\t0\t0\t1\t1\nval_1.png\tn1\t0\t0\t1\t1\n"
        (tmp_path / "val" / "val_annotations.txt").write_text(lines)
    else:
        picture(tmp_path / "val" / "n2" / "val_0.png", (64, 64), (9, 9, 9))
    images = read_tinyimagenet("tinyimagenet", tmp_path, 64)
    assert images.y_train.tolist() == [0, 1]
    assert images.y_test.tolist() == ([1, 0] if annotated else [1])
    assert images.class_names == ("n1", "n2")


def test_annotation_of_an_unknown_class(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "n1" / "images" / "a.png", (8, 8), (0, 0, 0))
    annotations = tmp_path / "val" / "val_annotations.txt"
    annotations.parent.mkdir()
    annotations.write_text("v.png\tn7\t0\t0\t1\t1\n")
    with pytest.raises(DataError) as caught:
        read_tinyimagenet("tinyimagenet", tmp_path, 64)
    assert str(caught.value) == f"{annotations}: v.png is of class n7, which has no folder below train."


def test_faults_of_folders(tmp_path: Path) -> None:
    def message() -> str:
        with pytest.raises(DataError) as caught:
            read_imagenette("imagenette", tmp_path, 8)
        return str(caught.value).replace(str(tmp_path), "ROOT")

    assert message() == "ROOT/train: no such folder; it should hold a folder of pictures for each class."
    (tmp_path / "train" / "n1").mkdir(parents=True)
    assert message() == "ROOT/train: no pictures found; it should hold a folder of pictures for each class."
    picture(tmp_path / "train" / "n1" / "a.png", (8, 8), (0, 0, 0))
    picture(tmp_path / "val" / "n2" / "a.png", (8, 8), (0, 0, 0))
    assert message() == "ROOT/val: the class n2 is not among the training classes."
    (tmp_path / "val" / "n2").rename(tmp_path / "val" / "n1")
    (tmp_path / "val" / "n1" / "b.jpg").write_bytes(b"broken")
    assert message() == ("ROOT/val/n1/b.jpg: not a readable picture (cannot identify image file 'ROOT/val/n1/b.jpg').")
