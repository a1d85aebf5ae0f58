"""Pictures of any shape in a square, whole and undistorted, with their boxes. No torch here."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np

from adagp.data.images import Pixels
from adagp.data.pictures import open_picture
from adagp.data.voc import Annotated, Objects, read_file
from adagp.errors import DataError

FILL = (124, 116, 104)
"""The colour beside a picture: ImageNet's mean, which is zero to the model."""


def read_letterboxed(samples: Sequence[Annotated], size: int) -> Pixels:
    """Return the pictures, decoded by several threads, as `(N, size, size, 3)`."""
    with ThreadPoolExecutor() as pool:  # decoding releases the interpreter lock
        return np.stack(list(pool.map(lambda sample: read_one(sample, size), samples)))


def read_one(sample: Annotated, size: int) -> Pixels:
    """Return the picture with its longer side brought to `size` pixels, centred in a square of `FILL`."""
    from PIL import Image

    picture = open_picture(BytesIO(read_file(sample.picture)), sample.picture)
    if picture.size != (sample.width, sample.height):
        raise DataError(
            f"{sample.picture}: it is {picture.width}x{picture.height} pixels, "
            f"but its annotation says {sample.width}x{sample.height}."
        )
    left, top, width, height = _place(sample, size)
    square = Image.new("RGB", (size, size), FILL)
    square.paste(picture.resize((width, height), Image.Resampling.BILINEAR), (left, top))
    return np.asarray(square)


def letterboxed(sample: Annotated, size: int) -> Objects:
    """Return the picture's objects with their corners in units of the square's side."""
    left, top, width, height = _place(sample, size)
    scale = np.array([width / sample.width, height / sample.height] * 2, np.float32)
    shift = np.array([left, top] * 2, np.float32)
    corners = ((sample.objects.corners * scale + shift) / size).astype(np.float32)
    return Objects(corners, sample.objects.labels, sample.objects.difficult)


def _place(sample: Annotated, size: int) -> tuple[int, int, int, int]:
    """Return left, top, width and height of the picture in its square, in pixels."""
    longer = max(sample.width, sample.height)
    width, height = (max(1, round(length * size / longer)) for length in (sample.width, sample.height))
    return (size - width) // 2, (size - height) // 2, width, height
