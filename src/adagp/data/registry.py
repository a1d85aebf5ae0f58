"""The data sets by name: where each is looked for, and how to download it. No torch here.

torchvision downloads and checks the files.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from adagp.core.registry import Registry
from adagp.data import image_files
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
    """What is known of a data set without reading it.

    `shape` is channels, height, width; `train` and `test` count samples. `files` are looked for in the data
    folder, in this order: an `.npz` file or a folder that `reader` understands. `size_varies` marks sets
    whose pictures are resized to `shape` when read from folders and may have another size in an `.npz` file.
    A `streamed` set is read batch by batch, never as a whole. `fetch` downloads the set into a data folder,
    where that is possible. `packaged` is the file of a set that comes with adagp. Text has the shape (),
    and 0 classes, or as many as there are bytes.
    A set whose task makes its data itself needs no more than a name, the task (see `program.tasks.base`) and a description.
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
        "Imagenette v2, ten easy classes of ImageNet, brought to 64x64",
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
        "Pascal VOC 2012 with boxes, train and val, in the layout of its devkit; pictures put whole into a square",
        **_sizes((3, 416, 416), classes=20, train=5_717, test=5_823),
        files=("VOCdevkit", "voc.zip", "voc2012.zip", "voc2012_subset_256.zip"),
        fetch=_from_torchvision("VOCDetection", year="2012", image_set="trainval"),
        size_varies=True,
    ),
):
    DATASETS.add(_info.name, _info)
