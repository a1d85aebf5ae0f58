"""The data sets by name: in which files each is searched, how to download it, and reading it into memory. No torch here.

torchvision downloads and checks the files.
"""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from adagp.core.registry import Registry
from adagp.data import image_files
from adagp.data.images import KEYS, NAMES_KEY, ImageSet, read_npz
from adagp.errors import DataError, OptionError
from adagp.models.registry import DETECTION, IMAGES, LANGUAGE, TRANSLATION

TINY_IMAGENET_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
TINY_IMAGENET_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"


Fetch = Callable[[Path], None]
"""Downloads a data set into a data folder."""


def _from_torchvision(name: str, **options: Any) -> Fetch:
    return lambda data_dir: getattr(_datasets(), name)(str(data_dir), download=True, **options)


def fetch_tinyimagenet(data_dir: Path) -> None:
    """Fetch Tiny-ImageNet (248 MB) into `tiny-imagenet-200`."""
    _datasets().utils.download_and_extract_archive(TINY_IMAGENET_URL, str(data_dir), md5=TINY_IMAGENET_MD5)


def _datasets() -> ModuleType:
    from adagp.models.vision import load_torchvision

    return load_torchvision("torchvision.datasets")


@dataclass(frozen=True)
class DatasetInfo:
    """The description of a data set, available without reading it.

    `shape` is channels, height, width; `train` and `test` count samples. `files` are searched in the data
    folder, in this order: an `.npz` file or a folder that `reader` reads. `size_varies` marks sets
    whose pictures are resized to `shape` when read from folders and may have another size in an `.npz` file.
    A `streamed` set is read batch by batch, never as a whole. `fetch` downloads the set into a data folder,
    if that is possible. `packaged` is the file of a set that comes with adagp. Text has the shape (),
    and 0 classes, or as many as there are bytes.
    A set whose task makes its data needs only a name, the task (see `program.tasks.base`) and a description.
    """

    name: str
    task: str
    description: str
    shape: tuple[int, ...] = ()
    classes: int = 0
    train: int = 0
    test: int = 0
    files: tuple[str, ...] = ()
    reader: image_files.Reader | None = None
    fetch: Fetch | None = None
    size_varies: bool = False
    streamed: bool = False
    packaged: str | None = None


DATASETS: Registry[DatasetInfo] = Registry("data set")


def _sizes(shape: tuple[int, ...], **counts: int) -> dict[str, Any]:
    return {"shape": shape, **counts}


for _info in (
    DatasetInfo(
        "digits",
        IMAGES,
        "UCI handwritten digits, 8x8 grey; part of the package",
        **_sizes((1, 8, 8), classes=10, train=1_437, test=360),
        packaged="digits.npz",
    ),
    DatasetInfo(
        "cifar10",
        IMAGES,
        "CIFAR-10, 32x32 colour photographs",
        **_sizes((3, 32, 32), classes=10, train=50_000, test=10_000),
        files=("cifar10.npz", "cifar-10-batches-py"),
        reader=image_files.read_cifar10,
        fetch=_from_torchvision("CIFAR10"),
    ),
    DatasetInfo(
        "cifar100",
        IMAGES,
        "CIFAR-100 with its fine labels, 32x32 colour photographs",
        **_sizes((3, 32, 32), classes=100, train=50_000, test=10_000),
        files=("cifar100.npz", "cifar-100-python"),
        reader=image_files.read_cifar100,
        fetch=_from_torchvision("CIFAR100"),
    ),
    DatasetInfo(
        "imagenette",
        IMAGES,
        "Imagenette v2, ten easy classes of ImageNet, resized to 64x64",
        **_sizes((3, 64, 64), classes=10, train=9_469, test=3_925),
        files=("imagenette.npz", "imagenette64.npz", "imagenette2-160", "imagenette2-320", "imagenette2"),
        reader=image_files.read_imagenette,
        fetch=_from_torchvision("Imagenette", size="160px"),
        size_varies=True,
    ),
    DatasetInfo(
        "tinyimagenet",
        IMAGES,
        "Tiny-ImageNet, 200 classes of ImageNet at 64x64",
        **_sizes((3, 64, 64), classes=200, train=100_000, test=10_000),
        files=("tinyimagenet.npz", "tiny-imagenet-200"),
        reader=image_files.read_tinyimagenet,
        fetch=fetch_tinyimagenet,
    ),
    DatasetInfo(
        "tinyimagenet100",
        IMAGES,
        "Tiny-ImageNet reduced to every second class, 100 training images of each",
        **_sizes((3, 64, 64), classes=100, train=10_000, test=2_000),
        files=("tinyimagenet100.npz",),
    ),
    DatasetInfo(
        "imagenet",
        IMAGES,
        "ImageNet-1k (ILSVRC 2012) in folders train/CLASS and val/CLASS, read while training",
        **_sizes((3, 224, 224), classes=1_000, train=1_281_167, test=50_000),
        files=("imagenet", "ILSVRC/Data/CLS-LOC"),
        size_varies=True,
        streamed=True,
    ),
    DatasetInfo(
        "multi30k",
        TRANSLATION,
        "Multi30k, descriptions of photographs in English and German (29,000, 1,014 and 1,000 pairs)",
        **_sizes((), classes=0, train=29_000, test=1_000),
        files=("multi30k", "train.en.gz", "train.en"),
    ),
    DatasetInfo(
        "persuasion",
        LANGUAGE,
        "Jane Austen's Persuasion, 466,854 bytes, in sequences of 128; part of the package",
        classes=256,
        train=3_281,
        test=364,
        packaged="persuasion.txt",
    ),
    DatasetInfo(
        "voc",
        DETECTION,
        "Pascal VOC 2012 with boxes, train and val, in the layout of its devkit; letterboxed into a square",
        **_sizes((3, 416, 416), classes=20, train=5_717, test=5_823),
        files=("VOCdevkit", "voc.zip", "voc2012.zip", "voc2012_subset_256.zip"),
        fetch=_from_torchvision("VOCDetection", year="2012", image_set="trainval"),
        size_varies=True,
    ),
):
    DATASETS.add(_info.name, _info)


DEFAULT_DATA_DIR = Path("data")


def load_images(
    name: str, data_dir: Path | str = DEFAULT_DATA_DIR, download: bool = False, size: int | None = None
) -> ImageSet:
    """Return the image set called `name`, or the one in the file `name` if that ends in `.npz`.

    `digits` comes with the package: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI
    Machine Learning Repository, 1998, CC BY 4.0 (details in DIGITS.md next to this file). Other sets are
    looked for in `data_dir` and, with `download`, fetched into it if they are missing. `size` in pixels is
    for sets whose pictures are resized when read from folders; None means the set's usual size.
    """
    if name.endswith(".npz"):
        return read_npz(Path(name), Path(name).stem)
    info = image_info(name)
    if info.streamed:
        raise OptionError(
            f"{name} is too large to hold in memory; adagp.data.loaders.image_loaders reads it batch by batch."
        )
    path = locate(info, Path(data_dir), download)
    if path.suffix == ".npz":
        images = read_npz(path, name, info.classes)
    else:
        assert info.reader is not None, f"{name} lists a folder but has no reader"
        images = info.reader(name, path, size or info.shape[-1])
    _check_expected_data(info, images, path, size)
    return images


def image_info(name: str) -> DatasetInfo:
    """Return the description of the image set `name`; raise if it is for another task."""
    info = DATASETS[name]
    if info.task != IMAGES:
        raise OptionError(f"data set '{name}' is for the task {info.task}, not {IMAGES}.")
    return info


def locate(info: DatasetInfo, data_dir: Path, download: bool = False) -> Path:
    """Return the first of a data set's files that exists; with `download`, a missing set is fetched."""
    path = find(info, data_dir)
    if path is None and download and info.fetch is not None:
        with redirect_stdout(sys.stderr):  # standard output belongs to results
            try:
                info.fetch(data_dir)
            except (OSError, RuntimeError) as fault:
                raise DataError(f"could not download {info.name}: {fault}. {ways_to_get(info, data_dir)}") from fault
        path = find(info, data_dir)
    if path is None:
        raise DataError(f"data set '{info.name}' is not in {data_dir}. {ways_to_get(info, data_dir)}")
    return path


def find(info: DatasetInfo, data_dir: Path) -> Path | None:
    """Return the first of a data set's files that exists, or None; what is packaged always exists."""
    if info.packaged is not None:
        return Path(__file__).parent / info.packaged
    return next((data_dir / file for file in info.files if (data_dir / file).exists()), None)


_WAYS = {
    ".npz": f"the file {{}} with the arrays {', '.join(KEYS)} (optionally {NAMES_KEY})",
    "": "the folder {} in its usual layout",
    ".zip": "a zip of that folder as {}",
}


def ways_to_get(info: DatasetInfo, data_dir: Path) -> str:
    """Return a sentence on the files to provide for a set, and whether it can be downloaded."""
    paths: dict[str, list[str]] = {suffix: [] for suffix in _WAYS}
    for file in info.files:
        suffix = file[-4:] if file.endswith((".npz", ".zip")) else ""
        paths[suffix].append(str(data_dir / file))
    ways = [_WAYS[suffix].format(" or ".join(names)) for suffix, names in paths.items() if names]
    offer = " Or let --download fetch it." if info.fetch else " It cannot be downloaded from here."
    return f"Provide {', or '.join(ways)}.{offer}"


def _check_expected_data(info: DatasetInfo, images: ImageSet, path: Path, size: int | None) -> None:
    """Raise if a valid file has another data set, or another image size than requested."""
    if images.classes != info.classes:
        raise DataError(f"{path}: it has {images.classes} classes; {info.name} has {info.classes}.")
    expected = (info.shape[0], size, size) if size else images.shape if info.size_varies else info.shape
    if images.shape != expected or images.shape[0] != info.shape[0]:
        raise DataError(
            f"{path}: its images are {_text(images.shape)} (channels x height x width); expected {_text(expected)}."
        )


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(str(length) for length in shape)


SHOWN = ("name", "task", "description", "shape", "classes", "train", "test")
"""The fields of a `DatasetInfo` that a row shows."""


@dataclass(frozen=True)
class DatasetRow:
    """A data set, the paths where it is searched, and the one where it was found (None: it is missing)."""

    info: DatasetInfo
    looked_for: tuple[str, ...]
    found: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain values."""
        known = {name: getattr(self.info, name) for name in SHOWN}
        return {**known, "looked_for": self.looked_for, "found": self.found, "downloadable": bool(self.info.fetch)}


def describe_datasets(data_dir: Path | str = DEFAULT_DATA_DIR) -> list[DatasetRow]:
    """Return a row for every data set, with where it was found in `data_dir`."""
    rows = []
    for info in (DATASETS[name] for name in DATASETS):
        path = find(info, Path(data_dir))
        looked_for = tuple(str(Path(data_dir) / file) for file in info.files)
        rows.append(DatasetRow(info, looked_for, None if path is None else str(path)))
    return rows
