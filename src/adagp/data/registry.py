"""The data sets by name, and where each is looked for. No torch here."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from adagp.core.registry import Registry
from adagp.data import fetch, layouts
from adagp.models.registry import DETECTION, IMAGES, LANGUAGE, TRANSLATION


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
    reader: layouts.Reader | None = None
    fetch: Callable[[Path], None] | None = None
    size_varies: bool = False
    streamed: bool = False
    packaged: str | None = None


DATASETS: Registry[DatasetInfo] = Registry("data set")

for _info in (
    DatasetInfo(
        "digits",
        IMAGES,
        "UCI handwritten digits, 8x8 grey; part of the package",
        shape=(1, 8, 8),
        classes=10,
        train=1_437,
        test=360,
        files=(),
        packaged="digits.npz",
    ),
    DatasetInfo(
        "cifar10",
        IMAGES,
        "CIFAR-10, 32x32 colour photographs",
        shape=(3, 32, 32),
        classes=10,
        train=50_000,
        test=10_000,
        files=("cifar10.npz", "cifar-10-batches-py"),
        reader=layouts.read_cifar10,
        fetch=fetch.fetch_cifar10,
    ),
    DatasetInfo(
        "cifar100",
        IMAGES,
        "CIFAR-100 with its fine labels, 32x32 colour photographs",
        shape=(3, 32, 32),
        classes=100,
        train=50_000,
        test=10_000,
        files=("cifar100.npz", "cifar-100-python"),
        reader=layouts.read_cifar100,
        fetch=fetch.fetch_cifar100,
    ),
    DatasetInfo(
        "imagenette",
        IMAGES,
        "Imagenette v2, ten easy classes of ImageNet, brought to 64x64",
        shape=(3, 64, 64),
        classes=10,
        train=9_469,
        test=3_925,
        files=("imagenette.npz", "imagenette64.npz", "imagenette2-160", "imagenette2-320", "imagenette2"),
        reader=layouts.read_imagenette,
        fetch=fetch.fetch_imagenette,
        size_varies=True,
    ),
    DatasetInfo(
        "tinyimagenet",
        IMAGES,
        "Tiny-ImageNet, 200 classes of ImageNet at 64x64",
        shape=(3, 64, 64),
        classes=200,
        train=100_000,
        test=10_000,
        files=("tinyimagenet.npz", "tiny-imagenet-200"),
        reader=layouts.read_tinyimagenet,
        fetch=fetch.fetch_tinyimagenet,
    ),
    DatasetInfo(
        "tinyimagenet100",
        IMAGES,
        "Tiny-ImageNet reduced to every second class, 100 training images of each",
        shape=(3, 64, 64),
        classes=100,
        train=10_000,
        test=2_000,
        files=("tinyimagenet100.npz",),
    ),
    DatasetInfo(
        "imagenet",
        IMAGES,
        "ImageNet-1k (ILSVRC 2012) in folders train/CLASS and val/CLASS, read while training",
        shape=(3, 224, 224),
        classes=1_000,
        train=1_281_167,
        test=50_000,
        files=("imagenet", "ILSVRC/Data/CLS-LOC"),
        size_varies=True,
        streamed=True,
    ),
    DatasetInfo(
        "multi30k",
        TRANSLATION,
        "Multi30k, descriptions of photographs in English and German (29,000, 1,014 and 1,000 pairs)",
        shape=(),
        classes=0,
        train=29_000,
        test=1_000,
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
        shape=(3, 416, 416),
        classes=20,
        train=5_717,
        test=5_823,
        files=("VOCdevkit", "voc.zip", "voc2012.zip", "voc2012_subset_256.zip"),
        fetch=fetch.fetch_voc,
        size_varies=True,
    ),
):
    DATASETS.add(_info.name, _info)
