"""From a data set's name to its training and test batches."""

from dataclasses import dataclass
from pathlib import Path

from adagp.data.batches import Batches, ImageBatches, channel_statistics
from adagp.data.images import ImageSet
from adagp.data.load import DEFAULT_DATA_DIR, image_info, load_images, locate
from adagp.data.registry import DatasetInfo
from adagp.data.stream import FolderBatches, open_folders


@dataclass(frozen=True)
class ImageLoaders:
    """Training batches (shuffled, all of one size) and test batches (in order, every image) of an image set.

    `shape` is channels, height, width.
    """

    name: str
    train: Batches
    test: Batches
    shape: tuple[int, int, int]
    classes: int


def image_loaders(
    name: str,
    batch_size: int,
    *,
    seed: int = 0,
    data_dir: Path | str = DEFAULT_DATA_DIR,
    download: bool = False,
    size: int | None = None,
    augment: bool | None = None,
    channels_last: bool = False,
    workers: int = 2,
) -> ImageLoaders:
    """Return the batches of the image set `name`; `load_images` explains `data_dir`, `download` and `size`.

    `augment` None means what suits the set: crop and mirroring for colour images, nothing for grey ones,
    since signs such as digits lose their meaning in a mirror. `workers` processes decode the pictures of sets
    that are streamed.
    """
    if not name.endswith(".npz") and (info := image_info(name)).streamed:
        folder = locate(info, Path(data_dir), download)
        return _streamed(info, folder, batch_size, size or info.shape[-1], seed, augment, channels_last, workers)
    images = load_images(name, data_dir, download, size)
    return loaders_of(images, batch_size, seed=seed, augment=augment, channels_last=channels_last)


def loaders_of(
    images: ImageSet,
    batch_size: int,
    *,
    seed: int = 0,
    augment: bool | None = None,
    channels_last: bool = False,
) -> ImageLoaders:
    """Return the batches of a set in memory, normalised with the training images' mean and deviation."""
    mean, std = channel_statistics(images.x_train)
    train = ImageBatches(
        images.x_train,
        images.y_train,
        batch_size,
        mean=mean,
        std=std,
        seed=seed,
        shuffle=True,
        augment=images.shape[0] == 3 if augment is None else augment,
        channels_last=channels_last,
    )
    test = ImageBatches(
        images.x_test,
        images.y_test,
        batch_size,
        mean=mean,
        std=std,
        drop_last=False,
        channels_last=channels_last,
        part="test set",
    )
    return ImageLoaders(images.name, train, test, images.shape, images.classes)


def _streamed(
    info: DatasetInfo,
    folder: Path,
    batch_size: int,
    size: int,
    seed: int,
    augment: bool | None,
    channels_last: bool,
    workers: int,
) -> ImageLoaders:
    samples = dict(zip(("train", "test"), open_folders(folder, info.classes), strict=True))
    train, test = (
        FolderBatches(
            samples[part],
            batch_size,
            size=size,
            seed=seed,
            train=part == "train",
            augment=part == "train" and augment is not False,
            workers=workers,
            channels_last=channels_last,
        )
        for part in ("train", "test")
    )
    return ImageLoaders(info.name, train, test, (3, size, size), info.classes)
