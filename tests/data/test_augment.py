"""Crop and mirroring against a loop over pixels."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from adagp.data.augment import crop, draw_places, flip


def slow_crop(images: torch.Tensor, padding: int, top: list[int], left: list[int]) -> torch.Tensor:
    result = torch.zeros_like(images)
    count, channels, height, width = images.shape
    for n in range(count):
        for y in range(height):
            for x in range(width):
                source_y, source_x = y + top[n] - padding, x + left[n] - padding
                if 0 <= source_y < height and 0 <= source_x < width:
                    for c in range(channels):
                        result[n, c, y, x] = images[n, c, source_y, source_x]
    return result


@given(
    shape=st.tuples(*(st.integers(1, top) for top in (4, 3, 5, 6))),
    padding=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_crop_is_the_slow_crop(shape: tuple[int, ...], padding: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(1, 256, shape, generator=generator).byte()
    top, left = torch.randint(0, 2 * padding + 1, (2, shape[0]), generator=generator)
    expected = slow_crop(images, padding, top.tolist(), left.tolist())
    assert torch.equal(crop(images, padding, top, left), expected)


def test_flip_mirrors_the_chosen_images_only() -> None:
    images = torch.arange(3 * 2 * 2 * 3).byte().view(3, 2, 2, 3)
    flipped = flip(images.clone(), torch.tensor([True, False, True]))
    assert torch.equal(flipped[1], images[1])
    for chosen in (0, 2):
        for x in range(3):
            assert torch.equal(flipped[chosen, :, :, x], images[chosen, :, :, 2 - x])


def test_all_shifts_and_both_mirrorings_come_equally_often() -> None:
    marked = torch.zeros(1, 1, 5, 5).byte()
    marked[0, 0, 2, 2] = 1  # after a crop with padding 2 the mark may be anywhere
    marked[0, 0, 2, 3] = 2  # tells whether the image was mirrored
    generator = torch.Generator().manual_seed(0)
    corners, mirrored = draw_places(5000, 2, generator)
    batch = flip(crop(marked.repeat(5000, 1, 1, 1), 2, *corners), mirrored)
    frequency = (batch[:, 0] == 1).float().mean(0)
    assert frequency.sum() == 1
    assert ((frequency - 1 / 25).abs() < 0.015).all()
    share = ((batch[:, 0, :, 1:] == 1) & (batch[:, 0, :, :-1] == 2)).any(2).any(1).float().mean()
    assert abs(share - 0.4) < 0.03  # half of them, less the fifth whose second mark was cut off
