"""Every fault of an .npz file, by its message."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adagp.data import read_npz
from adagp.errors import DataError


def arrays(**changed: Any) -> dict[str, Any]:
    good: dict[str, Any] = {
        "x_train": np.arange(6 * 4 * 4 * 3, dtype=np.uint8).reshape(6, 4, 4, 3),
        "y_train": np.array([0, 1, 2, 0, 1, 2], np.uint8),
        "x_test": np.zeros((2, 4, 4, 3), np.uint8),
        "y_test": np.array([2, 1], np.int32),
    }
    return {key: value for key, value in (good | changed).items() if value is not None}


def write(folder: Path, **changed: Any) -> Path:
    path = folder / "some.npz"
    np.savez(path, **arrays(**changed))
    return path


def message(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_npz(path, "some")
    return str(caught.value).replace(str(path), "FILE")


def test_reads_what_was_written(tmp_path: Path) -> None:
    images = read_npz(write(tmp_path, class_names=np.array(["cat", "dog", "eel"])), "some")
    np.testing.assert_array_equal(images.x_train, arrays()["x_train"])
    assert images.y_train.tolist() == [0, 1, 2, 0, 1, 2]
    assert images.y_test.tolist() == [2, 1]
    assert images.class_names == ("cat", "dog", "eel")
    assert (images.shape, images.classes) == ((3, 4, 4), 3)
    assert images.y_train.dtype == np.int64


def test_classes_without_names_are_counted_or_given(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert read_npz(path, "some").class_names == ("0", "1", "2")
    assert read_npz(path, "some", classes=5).classes == 5


def test_grey_images_may_lack_the_channel_axis(tmp_path: Path) -> None:
    path = write(tmp_path, x_train=np.zeros((6, 5, 4), np.uint8), x_test=np.zeros((2, 5, 4), np.uint8))
    assert read_npz(path, "some").shape == (1, 5, 4)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"x_test": None, "y_test": None},
            "FILE: x_test, y_test missing; it holds x_train, y_train. "
            "Needed: x_train, y_train, x_test, y_test; class_names may be there too.",
        ),
        (
            {"x_train": np.zeros((6, 4, 4, 3), np.float32)},
            "FILE: x_train has dtype float32; images must be uint8 (0 to 255).",
        ),
        (
            {"x_train": np.zeros((6, 3, 4, 4), np.uint8)},
            "FILE: x_train has shape (6, 3, 4, 4); images must be (N, height, width, channels) "
            "with 1 or 3 channels, or (N, height, width) for grey ones.",
        ),
        (
            {"x_test": np.zeros((2, 48), np.uint8)},
            "FILE: x_test has shape (2, 48); images must be (N, height, width, channels) "
            "with 1 or 3 channels, or (N, height, width) for grey ones.",
        ),
        (
            {"x_test": np.zeros((0, 4, 4, 3), np.uint8), "y_test": np.zeros(0, np.uint8)},
            "FILE: x_test has shape (0, 4, 4, 3), which holds no image.",
        ),
        (
            {"y_train": np.zeros(6)},
            "FILE: y_train has dtype float64; labels must be whole numbers (an integer dtype).",
        ),
        (
            {"y_train": np.zeros((6, 1), np.uint8)},
            "FILE: y_train has shape (6, 1); labels must be (N,), one number per image.",
        ),
        ({"y_test": np.zeros(3, np.uint8)}, "FILE: x_test has 2 images but y_test has 3 labels."),
        (
            {"x_test": np.zeros((2, 8, 4, 3), np.uint8)},
            "FILE: training images are 4x4x3 but test images are 8x4x3; both must be alike.",
        ),
        (
            {"y_test": np.array([0, -1])},
            "FILE: y_test holds the label -1; with 3 classes labels run from 0 to 2.",
        ),
        (
            {"class_names": np.array(["cat", "dog"])},
            "FILE: y_train holds the label 2; with 2 classes labels run from 0 to 1.",
        ),
        (
            {"class_names": np.array([1, 2, 3])},
            "FILE: class_names has shape (3,) and dtype int64; it must be a list of strings, one per class.",
        ),
        (
            {"y_test": np.array([{}, {}], dtype=object)},
            "FILE: y_test is pickled, which could run code; save it as a plain array.",
        ),
    ],
)
def test_wrong_arrays(tmp_path: Path, changed: dict[str, Any], expected: str) -> None:
    assert message(write(tmp_path, **changed)) == expected


def test_no_such_file(tmp_path: Path) -> None:
    assert message(tmp_path / "none.npz") == "FILE: no such file."


@pytest.mark.parametrize("content", [b"", b"not an archive", b"\x80\x04N."])
def test_not_an_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.npz"
    path.write_bytes(content)
    assert message(path) == "FILE: not a .npz archive, or cut off before its end."


def test_truncated_anywhere_is_rejected(tmp_path: Path) -> None:
    whole = write(tmp_path).read_bytes()
    path = tmp_path / "cut.npz"
    for length in range(0, len(whole) - 1, 97):
        path.write_bytes(whole[:length])
        assert message(path) == "FILE: not a .npz archive, or cut off before its end."


def test_a_flipped_byte_in_the_pixels_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path)
    content = bytearray(path.read_bytes())
    content[content.index(b"\x00\x01\x02\x03\x04\x05")] ^= 0xFF
    path.write_bytes(bytes(content))
    assert message(path) == "FILE: damaged archive (Bad CRC-32 for file 'x_train.npy')."


def test_damaged_header_inside_the_archive(tmp_path: Path) -> None:
    path = write(tmp_path, y_test=None)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("y_test.npy", b"\x93NUMPY\x01\x00\x0e\x00{'descr': |zz}\n")
    assert message(path).startswith("FILE: y_test is damaged (")


def test_member_that_is_not_an_array(tmp_path: Path) -> None:
    path = write(tmp_path, y_test=None)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("y_test", b"text")
    assert message(path) == "FILE: y_test is not a numpy array."
