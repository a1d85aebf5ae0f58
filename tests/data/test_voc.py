import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adagp.data.load import locate
from adagp.data.registry import DATASETS
from adagp.data.voc import CLASSES, read_voc
from adagp.errors import DataError

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


def test_an_annotation_without_its_image_is_refused(write_devkit: WriteDevkit) -> None:
    devkit = write_devkit(TRAIN, VAL)
    picture = devkit / "VOC2012" / "JPEGImages" / "two.jpg"
    picture.unlink()
    broken(devkit, f"{devkit}/VOC2012/Annotations/two.xml: its image {picture} is missing.")


def test_a_listed_picture_without_annotation_is_refused(write_devkit: WriteDevkit) -> None:
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
def test_a_box_outside_its_image_is_refused(write_devkit: WriteDevkit, box: tuple[float, ...], shown: str) -> None:
    devkit = write_devkit({"one": [("dog", (1, 1, 5, 5), False), ("cow", box, False)]}, VAL)
    broken(
        devkit,
        f"{devkit}/VOC2012/Annotations/one.xml: the box ({shown}) of a cow lies outside its image; "
        "allowed are xmin and ymin from 1, xmax to 64 and ymax to 48.",
    )


def test_an_empty_box_is_refused(write_devkit: WriteDevkit) -> None:
    devkit = write_devkit({"one": []}, VAL)
    annotation = devkit / "VOC2012" / "Annotations" / "three.xml"
    annotation.write_text(annotation.read_text().replace("<ymax>48</ymax>", "<ymax>3</ymax>"))
    broken(
        devkit,
        f"{annotation}: the box (33, 17, 33, 3) of a tvmonitor is empty; xmax and ymax must not be below the others.",
    )


def test_an_unknown_class_is_refused(write_devkit: WriteDevkit) -> None:
    devkit = write_devkit(TRAIN, {"three": [("unicorn", (1, 1, 5, 5), False)]})
    broken(
        devkit,
        f"{devkit}/VOC2012/Annotations/three.xml: unknown class 'unicorn'. Choose from: aeroplane, bicycle, bird, boat, "
        "bottle, bus, car, cat, chair, cow, diningtable, dog, horse, motorbike, person, pottedplant, sheep, sofa, "
        "train, tvmonitor.",
    )


def test_missing_and_empty_splits_are_refused(write_devkit: WriteDevkit) -> None:
    devkit = write_devkit(TRAIN, VAL)
    listing = devkit / "VOC2012" / "ImageSets" / "Main" / "val.txt"
    listing.write_text("\n")
    broken(devkit, f"{listing}: it lists no pictures.")
    listing.unlink()
    broken(devkit, f"{listing}: no such file; it should list the pictures of the val split.")


def test_what_is_not_xml_is_refused(write_devkit: WriteDevkit) -> None:
    devkit = write_devkit(TRAIN, VAL)
    annotation = devkit / "VOC2012" / "Annotations" / "one.xml"
    annotation.write_text("<annotation><size><width>3</width></size></annotation>")
    broken(devkit, f"{annotation}: not a readable annotation (size/height is missing).")
    annotation.write_text("<annotation>")
    broken(devkit, f"{annotation}: not a readable annotation (no element found: line 1, column 12).")


def test_other_files_and_folders_are_refused(tmp_path: Path) -> None:
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
        f"data set 'voc' is not in {tmp_path}. Put there the folder {tmp_path}/VOCdevkit in its usual layout, "
        f"or a zip of that folder as {zips}. Or let --download fetch it."
    )
