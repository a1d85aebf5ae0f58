"""An image set in memory: numpy arrays, checked once where they enter. No torch here."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagp.errors import DataError

MOST_CLASSES = 100_000
"""Classes that are numbered by their labels: a model has a score for each. ImageNet-21k has 21,841."""
Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images of shape (N, height, width, channels), uint8, with whole-number labels from 0 to `classes` - 1.

    `image_set` makes one from arrays of unknown quality.
    """

    name: str
    x_train: Pixels
    y_train: Labels
    x_test: Pixels
    y_test: Labels
    class_names: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image, in torch's order."""
        _, height, width, channels = self.x_train.shape
        return channels, height, width

    @property
    def classes(self) -> int:
        """The number of classes, those without a picture included."""
        return len(self.class_names)


def image_set(
    name: str, arrays: dict[str, NDArray[Any]], where: str, class_names: tuple[str, ...] | None = None
) -> ImageSet:
    """Check `arrays` (x_train, y_train, x_test, y_test) and return them as an `ImageSet`.

    `where` names their origin in errors. Without `class_names` there are as many classes as the labels count
    up to. Grey images may leave out the channel axis.
    """
    pixels = {part: _checked_images(f"x_{part}", arrays[f"x_{part}"], where) for part in ("train", "test")}
    labels = {part: _checked_labels(part, arrays, where) for part in ("train", "test")}
    _refuse_unequal_sizes(pixels["train"], pixels["test"], where)
    if class_names is None:
        highest = max(int(values.max()) for values in labels.values())
        if highest >= MOST_CLASSES:
            raise DataError(
                f"{where}: a label is {highest}; without class names labels run to {MOST_CLASSES - 1} at most."
            )
        class_names = tuple(str(label) for label in range(highest + 1))
    for part, values in labels.items():
        _refuse_foreign_labels(f"y_{part}", values, len(class_names), where)
    return ImageSet(name, pixels["train"], labels["train"], pixels["test"], labels["test"], class_names)


def _checked_images(key: str, images: NDArray[Any], where: str) -> Pixels:
    if images.dtype != np.uint8:
        raise DataError(f"{where}: {key} has dtype {images.dtype}; images must be uint8 (0 to 255).")
    if images.ndim == 3:
        images = images[..., np.newaxis]
    if images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise DataError(
            f"{where}: {key} has shape {images.shape}; images must be (N, height, width, channels) "
            "with 1 or 3 channels, or (N, height, width) for grey ones."
        )
    if 0 in images.shape:
        raise DataError(f"{where}: {key} has shape {images.shape}, which holds no image.")
    return images


def _checked_labels(part: str, arrays: dict[str, NDArray[Any]], where: str) -> Labels:
    labels, images = arrays[f"y_{part}"], arrays[f"x_{part}"]
    if labels.dtype.kind not in "iu":
        raise DataError(f"{where}: y_{part} has dtype {labels.dtype}; labels must be whole numbers (an integer dtype).")
    if labels.ndim != 1:
        raise DataError(f"{where}: y_{part} has shape {labels.shape}; labels must be (N,), one number per image.")
    if len(labels) != len(images):
        raise DataError(f"{where}: x_{part} has {len(images)} images but y_{part} has {len(labels)} labels.")
    return labels.astype(np.int64)


def _refuse_unequal_sizes(train: Pixels, test: Pixels, where: str) -> None:
    if train.shape[1:] != test.shape[1:]:
        raise DataError(
            f"{where}: training images are {_size(train)} but test images are {_size(test)}; both must be alike."
        )


def _size(images: Pixels) -> str:
    return "x".join(str(length) for length in images.shape[1:])


def _refuse_foreign_labels(key: str, labels: Labels, classes: int, where: str) -> None:
    foreign = labels[(labels < 0) | (labels >= classes)]
    if len(foreign):
        raise DataError(
            f"{where}: {key} holds the label {foreign[0]}; with {classes} classes labels run from 0 to {classes - 1}."
        )
