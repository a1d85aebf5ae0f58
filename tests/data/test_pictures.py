"""Resizing against doing it in two steps."""

import numpy as np
import pytest
from PIL import Image

from adagp.data.pictures import resized


@pytest.mark.parametrize("size", [(60, 40), (40, 60), (40, 40)])
def test_the_centre_is_taken_after_resizing(size: tuple[int, int]) -> None:
    pixels = np.linspace(0, 255, size[0] * size[1] * 3).reshape(size[1], size[0], 3).astype(np.uint8)
    picture = Image.fromarray(pixels)
    scale = 20 / min(size)
    whole = picture.resize((round(size[0] * scale), round(size[1] * scale)), Image.Resampling.BILINEAR)
    left, top = (whole.width - 16) // 2, (whole.height - 16) // 2
    expected = np.asarray(whole.crop((left, top, left + 16, top + 16))).astype(int)
    assert np.abs(resized(picture, 20, 16).astype(int) - expected).max() <= 2
