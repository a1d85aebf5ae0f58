from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adagp.data import boxed
from adagp.data.boxed import BoxedBatches, jitter, move_boxes, move_images
from adagp.data.voc import Annotated, read_voc
from adagp.errors import OptionError

WriteDevkit = Callable[..., Path]


@pytest.fixture
def samples(write_devkit: WriteDevkit) -> list[Annotated]:
    dogs = [("dog", (1 + 4 * place, 5, 20 + 4 * place, 30), False) for place in range(7)]
    pictures = {f"p{number}": [*dogs[: number % 3], ("cat", (3, 3, 30, 40), True)] for number in range(7)}
    return read_voc(write_devkit(pictures, pictures))[0]


def batches(samples: list[Annotated], train: bool = True, seed: int = 0) -> BoxedBatches:
    return BoxedBatches(samples, 3, size=32, seed=seed, train=train)


def test_test_batches_hold_every_picture_in_order_without_difficult_objects(samples: list[Annotated]) -> None:
    found = list(batches(samples, train=False).epoch(0))
    assert [len(images) for images, _ in found] == [3, 3, 1]
    assert all(images.shape[1:] == (3, 32, 32) for images, _ in found)
    labels = [row.tolist() for _, (_, labels) in found for row in labels]
    assert labels == [[-1, -1], [11, -1], [11, 11], [-1, -1], [11, -1], [11, 11], [-1]]
    boxes = found[0][1][0]
    torch.testing.assert_close(boxes[1, 0], torch.tensor([10 / 64, 25 / 64, 20 / 64, 26 / 64]))  # 8 pixels of bar above


def test_the_colour_of_the_bars_is_zero_to_the_model(samples: list[Annotated]) -> None:
    images, _ = next(iter(batches(samples, train=False).epoch(0)))
    assert images[:, :, :4].abs().max() < 0.01


def same(one: boxed.BoxedBatch, other: boxed.BoxedBatch) -> bool:
    return torch.equal(one[0], other[0]) and all(map(torch.equal, one[1], other[1]))


def test_training_batches_depend_on_seed_epoch_and_batch_alone(samples: list[Annotated]) -> None:
    whole = list(batches(samples).epoch(2))
    assert len(whole) == len(batches(samples)) == 2
    torch.manual_seed(7)
    before = torch.get_rng_state()
    rest = list(batches(samples).epoch(2, start=1))
    assert torch.equal(before, torch.get_rng_state())
    assert len(rest) == 1
    assert same(whole[1], rest[0])
    for other in (batches(samples).epoch(3), batches(samples, seed=1).epoch(2)):
        assert not torch.equal(whole[0][0], next(other)[0])


def test_pictures_too_large_for_memory_are_read_batch_by_batch(
    samples: list[Annotated], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = batches(samples)
    monkeypatch.setattr(boxed, "MEMORY", 7 * 32 * 32 * 3 - 1)
    streamed = batches(samples)
    assert held._pixels is not None
    assert streamed._pixels is None
    assert all(map(same, held.epoch(1), streamed.epoch(1)))


def test_a_batch_larger_than_the_set_is_refused(samples: list[Annotated]) -> None:
    with pytest.raises(OptionError) as caught:
        BoxedBatches(samples, 8, size=32, train=True)
    assert str(caught.value) == "batch size 8 is larger than the training set of 7 samples; choose 1 to 7."


@pytest.mark.medium
@given(
    st.sampled_from([-1.0, 1.0]),
    st.floats(0.6, 1.8),
    st.floats(0.6, 1.8),
    st.floats(-0.3, 0.3),
    st.floats(-0.3, 0.3),
)
def test_boxes_move_with_the_image(mirror: float, across: float, down: float, right: float, below: float) -> None:
    image = torch.zeros(1, 1, 64, 64)
    image[0, 0, 24:40, 20:36] = 1
    boxes, labels = torch.tensor([[[28 / 64, 32 / 64, 16 / 64, 16 / 64]]]), torch.tensor([[4]])
    scale, shift = torch.tensor([[mirror * across, down]]), torch.tensor([[right, below]])
    moved, seen = move_boxes(boxes, labels, scale, shift)
    painted = move_images(image, scale, shift)[0, 0] > 0.5
    if seen.item() < 0:
        assert painted.sum() <= 0.45 * 256 * across * down
        return
    rows, columns = painted.any(1).nonzero(), painted.any(0).nonzero()
    corners = torch.tensor([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]) / 64
    found = torch.cat([(corners[:2] + corners[2:]) / 2, corners[2:] - corners[:2]])
    torch.testing.assert_close(moved[0, 0], found, atol=2 / 64, rtol=0)


def test_objects_that_leave_the_image_are_dropped() -> None:
    boxes = torch.tensor([[[0.1, 0.5, 0.2, 0.2], [0.5, 0.5, 0.2, 0.2], [0.9, 0.5, 0.2, 0.005]]])
    moved, labels = move_boxes(boxes, torch.tensor([[0, 1, 2]]), torch.tensor([[1.0, 1.0]]), torch.tensor([[-0.15, 0]]))
    assert labels.tolist() == [[-1, 1, -1]]  # a quarter left; whole; too thin
    torch.testing.assert_close(moved[0, 1], torch.tensor([0.35, 0.5, 0.2, 0.2]))


def test_jitter_keeps_its_bounds() -> None:
    boxes, labels = torch.tensor([0.5, 0.5, 0.1, 0.1]).expand(500, 1, 4), torch.zeros(500, 1, dtype=torch.long)
    draws = torch.rand(5, 500, generator=torch.Generator().manual_seed(0))
    _, moved, kept = jitter(torch.zeros(500, 1, 2, 2), boxes, labels, draws)
    assert (kept == 0).all()
    assert (moved[..., :2] - 0.5).abs().max() <= 0.2
    low, high = moved[..., 2:].amin((0, 1)), moved[..., 2:].amax((0, 1))
    assert (low >= 0.07 * 0.89).all()
    assert (low < 0.07).all()
    assert (high <= 0.15 * 1.12).all()
    assert (high > 0.15).all()
