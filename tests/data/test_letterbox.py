from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adagp.data.letterbox import FILL, letterboxed, read_letterboxed, read_one
from adagp.data.voc import read_voc
from adagp.errors import DataError

WriteDevkit = Callable[..., Path]


@pytest.mark.parametrize(("size", "shape"), [(32, (64, 48)), (96, (64, 48)), (32, (40, 64)), (32, (64, 64))])
def test_boxes_go_where_the_pixels_go(write_devkit: WriteDevkit, size: int, shape: tuple[int, int]) -> None:
    box = (shape[0] // 2 + 1, shape[1] // 4 + 1, shape[0], shape[1] // 2)
    train, _ = read_voc(write_devkit({"one": [("dog", box, False)]}, {"two": []}, shape))
    pixels, objects = read_one(train[0], size), letterboxed(train[0], size)
    colour = np.array([ord(letter) * 2 % 256 for letter in "dog"])
    painted = np.abs(pixels.astype(int) - colour).max(2) < 40
    rows, columns = painted.any(1).nonzero()[0], painted.any(0).nonzero()[0]
    found = np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]) / size
    np.testing.assert_allclose(objects.corners[0], found, atol=1.5 / size)
    assert objects.labels.tolist() == [11]


def test_a_wide_picture_has_bars_above_and_below(write_devkit: WriteDevkit) -> None:
    train, _ = read_voc(write_devkit({"one": [], "two": []}, {"three": []}))
    pixels = read_letterboxed(train, 32)
    assert pixels.shape == (2, 32, 32, 3)
    assert (pixels[:, :4] == FILL).all()
    assert (pixels[:, 28:] == FILL).all()
    assert np.abs(pixels[:, 4:28].astype(int) - [30, 60, 90]).max() < 10


def test_a_picture_of_another_size_than_annotated_is_refused(write_devkit: WriteDevkit) -> None:
    devkit = write_devkit({"one": []}, {"two": []})
    annotation = devkit / "VOC2012" / "Annotations" / "one.xml"
    annotation.write_text(annotation.read_text().replace("<width>64", "<width>60"))
    with pytest.raises(DataError) as caught:
        read_one(read_voc(devkit)[0][0], 32)
    picture = devkit / "VOC2012" / "JPEGImages" / "one.jpg"
    assert str(caught.value) == f"{picture}: it is 64x48 pixels, but its annotation says 60x48."


def test_a_broken_picture_is_refused(write_devkit: WriteDevkit) -> None:
    devkit = write_devkit({"one": []}, {"two": []})
    picture = devkit / "VOC2012" / "JPEGImages" / "one.jpg"
    picture.write_bytes(picture.read_bytes()[:200])
    with pytest.raises(DataError, match=r"one\.jpg: not a readable picture \(.+\)\.$"):
        read_one(read_voc(devkit)[0][0], 32)
