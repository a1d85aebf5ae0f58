import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adagp.data import detection
from adagp.data.detection import (
    CLASSES,
    FILL,
    Annotated,
    BoxedBatches,
    jitter,
    letterboxed,
    move_boxes,
    move_images,
    read_letterboxed,
    read_one,
    read_voc,
)
from adagp.data.registry import DATASETS, locate
from adagp.errors import DataError, OptionError

WriteDevkit = Callable[..., Path]
TRAIN = {"one": [("dog", (1, 1, 64, 48), False), ("cat", (11, 5, 20.5, 24), True)], "two": []}
VAL = {"three": [("tvmonitor", (33, 17, 33, 48), False)]}


def zipped(devkit: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(devkit.rglob("*")):
            archive.write(file, file.relative_to(devkit.parent))
    return path


@pytest.mark.parametrize("as_zip", [False, True])
def test_a_devkit_is_read_from_folder_and_zip(write_devkit: WriteDevkit, tmp_path: Path, as_zip: bool) -> None:
    devkit = write_devkit(TRAIN, VAL)
    train, val = read_voc(zipped(devkit, tmp_path / "voc.zip") if as_zip else devkit)
    assert [sample.picture.name for sample in train + val] == ["one.jpg", "two.jpg", "three.jpg"]
    assert {(sample.width, sample.height) for sample in train + val} == {(64, 48)}
    first = train[0].objects
    np.testing.assert_array_equal(first.corners, [[0, 0, 64, 48], [10, 4, 20.5, 24]])  # from 0, the end not inside
    assert [CLASSES[label] for label in first.labels] == ["dog", "cat"]
    assert first.difficult.tolist() == [False, True]
    assert train[1].objects.corners.shape == (0, 4)
    np.testing.assert_array_equal(val[0].objects.corners, [[32, 16, 33, 48]])
    assert val[0].picture.read_bytes().startswith(b"\xff\xd8")


def broken(devkit: Path, message: str) -> None:
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        read_voc(devkit)


def test_an_annotation_without_its_image_is_rejected(write_devkit: WriteDevkit) -> None:
    devkit = write_devkit(TRAIN, VAL)
    picture = devkit / "VOC2012" / "JPEGImages" / "two.jpg"
    picture.unlink()
    broken(devkit, f"{devkit}/VOC2012/Annotations/two.xml: its image {picture} is missing.")


def test_a_listed_picture_without_annotation_is_rejected(write_devkit: WriteDevkit) -> None:
    devkit = write_devkit(TRAIN, VAL)
    annotation = devkit / "VOC2012" / "Annotations" / "three.xml"
    annotation.unlink()
    broken(devkit, f"{annotation}: no such file; the picture 'three' is listed but has no annotation.")


@pytest.mark.parametrize(
    ("box", "shown"),
    [
        ((0, 1, 5, 5), "0, 1, 5, 5"),
        ((1, 0.5, 5, 5), "1, 0.5, 5, 5"),
        ((1, 1, 65, 5), "1, 1, 65, 5"),
        ((1, 1, 5, 48.5), "1, 1, 5, 48.5"),
    ],
)
def test_a_box_outside_its_image_is_rejected(write_devkit: WriteDevkit, box: tuple[float, ...], shown: str) -> None:
    devkit = write_devkit({"one": [("dog", (1, 1, 5, 5), False), ("cow", box, False)]}, VAL)
    broken(
        devkit,
        f"{devkit}/VOC2012/Annotations/one.xml: the box ({shown}) of a cow lies outside its image; "
        "allowed are xmin and ymin from 1, xmax to 64 and ymax to 48.",
    )


def test_an_empty_box_is_rejected(write_devkit: WriteDevkit) -> None:
    devkit = write_devkit({"one": []}, VAL)
    annotation = devkit / "VOC2012" / "Annotations" / "three.xml"
    annotation.write_text(annotation.read_text().replace("<ymax>48</ymax>", "<ymax>3</ymax>"))
    broken(
        devkit,
        f"{annotation}: the box (33, 17, 33, 3) of a tvmonitor is empty; xmax and ymax must not be below the others.",
    )


def test_an_unknown_class_is_rejected(write_devkit: WriteDevkit) -> None:
    devkit = write_devkit(TRAIN, {"three": [("unicorn", (1, 1, 5, 5), False)]})
    broken(
        devkit,
        f"{devkit}/VOC2012/Annotations/three.xml: unknown class 'unicorn'. Choose from: aeroplane, bicycle, bird, boat, "
        "bottle, bus, car, cat, chair, cow, diningtable, dog, horse, motorbike, person, pottedplant, sheep, sofa, "
        "train, tvmonitor.",
    )


def test_missing_and_empty_splits_are_rejected(write_devkit: WriteDevkit) -> None:
    devkit = write_devkit(TRAIN, VAL)
    listing = devkit / "VOC2012" / "ImageSets" / "Main" / "val.txt"
    listing.write_text("\n")
    broken(devkit, f"{listing}: it lists no pictures.")
    listing.unlink()
    broken(devkit, f"{listing}: no such file; it should list the pictures of the val split.")


def test_what_is_not_xml_is_rejected(write_devkit: WriteDevkit) -> None:
    devkit = write_devkit(TRAIN, VAL)
    annotation = devkit / "VOC2012" / "Annotations" / "one.xml"
    annotation.write_text("<annotation><size><width>3</width></size></annotation>")
    broken(devkit, f"{annotation}: not a readable annotation (size/height is missing).")
    annotation.write_text("<annotation>")
    broken(devkit, f"{annotation}: not a readable annotation (no element found: line 1, column 12).")


def test_other_files_and_folders_are_rejected(tmp_path: Path) -> None:
    broken(tmp_path, f"{tmp_path}: it holds no VOCdevkit/VOC2012/ImageSets/Main; expected the layout of VOC's devkit.")
    fake = tmp_path / "voc.zip"
    fake.write_text("not a zip")
    broken(fake, f"{fake}: not a readable zip of VOCdevkit (File is not a zip file).")
    with zipfile.ZipFile(fake, "w") as archive:
        archive.writestr("other.txt", "")
    broken(fake, f"{fake}: it holds no VOCdevkit/VOC2012/ImageSets/Main; expected the layout of VOC's devkit.")


def test_a_missing_set_says_where_it_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        locate(DATASETS["voc"], tmp_path)
    zips = " or ".join(f"{tmp_path}/{name}" for name in ("voc.zip", "voc2012.zip", "voc2012_subset_256.zip"))
    assert str(caught.value) == (
        f"data set 'voc' is not in {tmp_path}. Provide the folder {tmp_path}/VOCdevkit in its usual layout, "
        f"or a zip of that folder as {zips}. Or let --download fetch it."
    )


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


def test_a_picture_of_another_size_than_annotated_is_rejected(write_devkit: WriteDevkit) -> None:
    devkit = write_devkit({"one": []}, {"two": []})
    annotation = devkit / "VOC2012" / "Annotations" / "one.xml"
    annotation.write_text(annotation.read_text().replace("<width>64", "<width>60"))
    with pytest.raises(DataError) as caught:
        read_one(read_voc(devkit)[0][0], 32)
    picture = devkit / "VOC2012" / "JPEGImages" / "one.jpg"
    assert str(caught.value) == f"{picture}: it is 64x48 pixels, but its annotation says 60x48."


def test_a_broken_picture_is_rejected(write_devkit: WriteDevkit) -> None:
    devkit = write_devkit({"one": []}, {"two": []})
    picture = devkit / "VOC2012" / "JPEGImages" / "one.jpg"
    picture.write_bytes(picture.read_bytes()[:200])
    with pytest.raises(DataError, match=r"one\.jpg: not a readable picture \(.+\)\.$"):
        read_one(read_voc(devkit)[0][0], 32)


@pytest.fixture
def samples(write_devkit: WriteDevkit) -> list[Annotated]:
    dogs = [("dog", (1 + 4 * place, 5, 20 + 4 * place, 30), False) for place in range(7)]
    pictures = {f"p{number}": [*dogs[: number % 3], ("cat", (3, 3, 30, 40), True)] for number in range(7)}
    return read_voc(write_devkit(pictures, pictures))[0]


def batches(samples: list[Annotated], train: bool = True, seed: int = 0) -> BoxedBatches:
    return BoxedBatches(samples, 3, size=32, seed=seed, train=train)


def test_test_batches_hold_every_picture_in_order_without_difficult_objects(samples: list[Annotated]) -> None:
    found = list(batches(samples, train=False).epoch(0))
    assert [len(images) for images, _ in found] == [3, 3, 1]
    assert all(images.shape[1:] == (3, 32, 32) for images, _ in found)
    labels = [row.tolist() for _, (_, labels) in found for row in labels]
    assert labels == [[-1, -1], [11, -1], [11, 11], [-1, -1], [11, -1], [11, 11], [-1]]
    boxes = found[0][1][0]
    torch.testing.assert_close(boxes[1, 0], torch.tensor([10 / 64, 25 / 64, 20 / 64, 26 / 64]))  # 8 pixels of bar above


def test_the_colour_of_the_bars_is_zero_to_the_model(samples: list[Annotated]) -> None:
    images, _ = next(iter(batches(samples, train=False).epoch(0)))
    assert images[:, :, :4].abs().max() < 0.01


def same(one: detection.BoxedBatch, other: detection.BoxedBatch) -> bool:
    return torch.equal(one[0], other[0]) and all(map(torch.equal, one[1], other[1]))


def test_training_batches_depend_on_seed_epoch_and_batch_alone(samples: list[Annotated]) -> None:
    whole = list(batches(samples).epoch(2))
    assert len(whole) == len(batches(samples)) == 2
    torch.manual_seed(7)
    before = torch.get_rng_state()
    rest = list(batches(samples).epoch(2, start=1))
    assert torch.equal(before, torch.get_rng_state())
    assert len(rest) == 1
    assert same(whole[1], rest[0])
    for other in (batches(samples).epoch(3), batches(samples, seed=1).epoch(2)):
        assert not torch.equal(whole[0][0], next(other)[0])


def test_pictures_too_large_for_memory_are_read_batch_by_batch(
    samples: list[Annotated], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = batches(samples)
    monkeypatch.setattr(detection, "MEMORY", 7 * 32 * 32 * 3 - 1)
    streamed = batches(samples)
    assert held._pixels is not None
    assert streamed._pixels is None
    assert all(map(same, held.epoch(1), streamed.epoch(1)))


def test_a_batch_larger_than_the_set_is_rejected(samples: list[Annotated]) -> None:
    with pytest.raises(OptionError) as caught:
        BoxedBatches(samples, 8, size=32, train=True)
    assert str(caught.value) == "batch size 8 is larger than the training set of 7 samples; choose 1 to 7."


@pytest.mark.medium
@given(
    st.sampled_from([-1.0, 1.0]),
    st.floats(0.6, 1.8),
    st.floats(0.6, 1.8),
    st.floats(-0.3, 0.3),
    st.floats(-0.3, 0.3),
)
def test_boxes_move_with_the_image(mirror: float, across: float, down: float, right: float, below: float) -> None:
    image = torch.zeros(1, 1, 64, 64)
    image[0, 0, 24:40, 20:36] = 1
    boxes, labels = torch.tensor([[[28 / 64, 32 / 64, 16 / 64, 16 / 64]]]), torch.tensor([[4]])
    scale, shift = torch.tensor([[mirror * across, down]]), torch.tensor([[right, below]])
    moved, seen = move_boxes(boxes, labels, scale, shift)
    painted = move_images(image, scale, shift)[0, 0] > 0.5
    if seen.item() < 0:
        assert painted.sum() <= 0.45 * 256 * across * down
        return
    rows, columns = painted.any(1).nonzero(), painted.any(0).nonzero()
    corners = torch.tensor([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]) / 64
    found = torch.cat([(corners[:2] + corners[2:]) / 2, corners[2:] - corners[:2]])
    torch.testing.assert_close(moved[0, 0], found, atol=2 / 64, rtol=0)


def test_objects_that_leave_the_image_are_dropped() -> None:
    boxes = torch.tensor([[[0.1, 0.5, 0.2, 0.2], [0.5, 0.5, 0.2, 0.2], [0.9, 0.5, 0.2, 0.005]]])
    moved, labels = move_boxes(boxes, torch.tensor([[0, 1, 2]]), torch.tensor([[1.0, 1.0]]), torch.tensor([[-0.15, 0]]))
    assert labels.tolist() == [[-1, 1, -1]]  # a quarter left; whole; too thin
    torch.testing.assert_close(moved[0, 1], torch.tensor([0.35, 0.5, 0.2, 0.2]))


def test_jitter_keeps_its_bounds() -> None:
    boxes, labels = torch.tensor([0.5, 0.5, 0.1, 0.1]).expand(500, 1, 4), torch.zeros(500, 1, dtype=torch.long)
    draws = torch.rand(5, 500, generator=torch.Generator().manual_seed(0))
    _, moved, kept = jitter(torch.zeros(500, 1, 2, 2), boxes, labels, draws)
    assert (kept == 0).all()
    assert (moved[..., :2] - 0.5).abs().max() <= 0.2
    low, high = moved[..., 2:].amin((0, 1)), moved[..., 2:].amax((0, 1))
    assert (low >= 0.07 * 0.89).all()
    assert (low < 0.07).all()
    assert (high <= 0.15 * 1.12).all()
    assert (high > 0.15).all()
