"""From a data set's name to its training and test batches."""

from dataclasses import dataclass, replace
from pathlib import Path

from adagp.data.batches import Batches, ImageBatches, channel_statistics
from adagp.data.images import ImageSet
from adagp.data.load import DEFAULT_DATA_DIR, image_info, load_images, locate
from adagp.data.registry import DatasetInfo
from adagp.data.split import evaluated_on, held_out
from adagp.data.stream import FolderBatches, Sample, open_folders


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
    validation: float = 0.0,
    test_samples: int | None = None,
) -> ImageLoaders:
    """Return the batches of the image set `name`; `load_images` explains `data_dir`, `download` and `size`.

    `augment` None means what suits the set: crop and mirroring for colour images, nothing for grey ones,
    since signs such as digits lose their meaning in a mirror. `workers` processes decode the pictures of sets
    that are streamed. Where `validation` is above 0, that share of the training images takes the place of the test images.
    Of the test images `test_samples` are taken, or all.
    """
    if not name.endswith(".npz") and (info := image_info(name)).streamed:
        folder = locate(info, Path(data_dir), download)
        samples = open_folders(folder, info.classes)
        if validation:
            parts = held_out(len(samples[0]), validation)
            samples = ([samples[0][one] for one in parts[0]], [samples[0][one] for one in parts[1]])
        samples = (samples[0], [samples[1][one] for one in evaluated_on(len(samples[1]), test_samples)])
        return _streamed(info, samples, batch_size, size or info.shape[-1], seed, augment, channels_last, workers)
    images = load_images(name, data_dir, download, size)
    if validation:
        images = _with_validation(images, validation)
    if test_samples is not None:
        chosen = evaluated_on(len(images.x_test), test_samples)
        images = replace(images, x_test=images.x_test[chosen], y_test=images.y_test[chosen])
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


def _with_validation(images: ImageSet, share: float) -> ImageSet:
    """Return the set with a part of its training images in place of its test images."""
    train, test = (part.numpy() for part in held_out(len(images.x_train), share))
    x, y = images.x_train, images.y_train
    return replace(images, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])


def _streamed(
    info: DatasetInfo,
    samples: tuple[list[Sample], list[Sample]],
    batch_size: int,
    size: int,
    seed: int,
    augment: bool | None,
    channels_last: bool,
    workers: int,
) -> ImageLoaders:
    train, test = (
        FolderBatches(
            own,
            batch_size,
            size=size,
            seed=seed,
            train=part == "train",
            augment=part == "train" and augment is not False,
            workers=workers,
            channels_last=channels_last,
        )
        for part, own in zip(("train", "test"), samples, strict=True)
    )
    return ImageLoaders(info.name, train, test, (3, size, size), info.classes)
