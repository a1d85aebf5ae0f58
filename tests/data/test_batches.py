"""Batches: what they hold, that they are repeatable from anywhere, and that nothing else is disturbed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from adagp.data import ImageSet
from adagp.data.batches import (
    WHOLE,
    ImageBatches,
    Share,
    batch_count,
    channel_statistics,
    crop,
    draw_places,
    evaluated_on,
    flip,
    held_out,
    seed_for,
)
from adagp.data.byte_text import ByteBatches
from adagp.data.detection import BoxedBatches, read_voc
from adagp.data.loaders import FolderBatches, image_loaders, loaders_of, open_folders
from adagp.data.translation import SentenceBatches
from adagp.errors import OptionError
from adagp.program.run import TrainConfig
from adagp.program.tasks.base import build_task, take_share


def some_images(count: int = 50, channels: int = 3, size: int = 8) -> ImageSet:
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (count, size, size, channels), dtype=np.uint8)
    y = np.arange(count) % 7
    return ImageSet("some", x, y, x[:11], y[:11], tuple("abcdefg"))


def batches(images: ImageSet, batch_size: int = 8, **options: object) -> ImageBatches:
    given: dict[str, object] = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "seed": 5, "shuffle": True} | options
    return ImageBatches(images.x_train, images.y_train, batch_size, **given)  # type: ignore[arg-type]


def test_plain_batches_are_the_images_in_order() -> None:
    images = some_images()
    seen = list(batches(images, shuffle=False, drop_last=False).epoch(0))
    x, y = (torch.cat(parts) for parts in zip(*seen, strict=True))
    assert [len(labels) for _, labels in seen] == [8] * 6 + [2]
    assert torch.equal(x, torch.from_numpy(images.x_train).permute(0, 3, 1, 2).float())
    assert torch.equal(y, torch.from_numpy(images.y_train))
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)


def test_a_shuffled_epoch_holds_every_image_once_with_its_label() -> None:
    images = some_images()
    x, y = (torch.cat(parts) for parts in zip(*batches(images, drop_last=False).epoch(3), strict=True))
    order = [
        int((torch.from_numpy(images.x_train).permute(0, 3, 1, 2) == image).flatten(1).all(1).nonzero()) for image in x
    ]
    assert sorted(order) == list(range(50))
    assert order != list(range(50))
    assert y.tolist() == images.y_train[order].tolist()


def test_training_batches_have_one_size() -> None:
    data = batches(some_images())
    assert len(data) == 6
    assert {len(y) for _, y in data.epoch(0)} == {8}


@pytest.mark.parametrize("start", [0, 1, 4, 6])
def test_resuming_at_a_batch_gives_the_same_bits(start: int) -> None:
    images = some_images()
    whole = list(batches(images, augment=True).epoch(2))
    resumed = list(batches(images, augment=True).epoch(2, start))
    assert len(resumed) == 6 - start
    for (x, y), (expected_x, expected_y) in zip(resumed, whole[start:], strict=True):
        assert torch.equal(x, expected_x)
        assert torch.equal(y, expected_y)


def test_epochs_and_seeds_differ() -> None:
    images = some_images()
    data = batches(images, augment=True)
    first, second = next(data.epoch(0))[0], next(data.epoch(1))[0]
    other = next(batches(images, augment=True, seed=6).epoch(0))[0]
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)


def test_augmentation_changes_images_but_not_the_order() -> None:
    images = some_images()
    plain, changed = next(batches(images).epoch(0)), next(batches(images, augment=True).epoch(0))
    assert torch.equal(plain[1], changed[1])
    assert not torch.equal(plain[0], changed[0])


def test_the_source_images_stay_as_they_are() -> None:
    images = some_images()
    data = batches(images, augment=True)
    before = data.images.clone()
    list(data.epoch(0))
    assert torch.equal(data.images, before)


def test_global_random_state_is_neither_read_nor_moved() -> None:
    data = batches(some_images(), augment=True)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = next(data.epoch(0))[0]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(next(data.epoch(0))[0], first)


def test_channels_last_changes_the_layout_only() -> None:
    images = some_images()
    plain = next(batches(images, augment=True).epoch(0))[0]
    other = next(batches(images, augment=True, channels_last=True).epoch(0))[0]
    assert torch.equal(plain, other)
    assert plain.is_contiguous()
    assert other.is_contiguous(memory_format=torch.channels_last)


def test_statistics_are_those_of_numpy() -> None:
    x = some_images(20, 3, 5).x_train
    mean, std = channel_statistics(x)
    np.testing.assert_allclose(mean, x.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(std, x.std((0, 1, 2)), rtol=1e-12)


def test_read_only_arrays_do() -> None:
    images = some_images(channels=1)
    images.x_train.flags.writeable = False
    assert len(loaders_of(images, 8).train) == 6


def test_a_constant_channel_has_deviation_one() -> None:
    assert channel_statistics(np.full((2, 3, 3, 1), 9, np.uint8)) == ((9.0,), (1.0,))


def test_loaders_normalise_test_images_with_the_training_statistics() -> None:
    loaders = loaders_of(some_images(), 50, augment=False)
    x, _ = next(iter(loaders.train.epoch(0)))
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3))
    test = torch.cat([x for x, _ in loaders.test.epoch(0)])
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in channel_statistics(some_images().x_train))
    raw = torch.from_numpy(some_images().x_test).permute(0, 3, 1, 2)
    torch.testing.assert_close(test, (raw - mean) / std)
    assert (loaders.shape, loaders.classes) == ((3, 8, 8), 7)


@pytest.mark.parametrize(("channels", "changed"), [(3, True), (1, False)])
def test_colour_images_are_augmented_and_grey_ones_not(channels: int, changed: bool) -> None:
    images = some_images(channels=channels)
    plain = next(iter(loaders_of(images, 8, augment=False).train.epoch(0)))[0]
    usual = next(iter(loaders_of(images, 8).train.epoch(0)))[0]
    assert torch.equal(plain, usual) is not changed


def test_batch_sizes_that_cannot_be() -> None:
    images = some_images()
    with pytest.raises(OptionError) as caught:
        batches(images, 51)
    assert str(caught.value) == "batch size 51 is larger than the training set of 50 samples; choose 1 to 50."
    with pytest.raises(OptionError) as caught:
        batches(images, 0)
    assert str(caught.value) == "batch size 0 is not allowed; choose 1 to 50."
    assert len(batches(images, 51, drop_last=False)) == 1


def test_negative_seed() -> None:
    with pytest.raises(OptionError) as caught:
        batches(some_images(), seed=-1)
    assert str(caught.value) == "seed -1 is not allowed; it must be 0 or more."


def test_places_have_seeds_of_their_own() -> None:
    places = [(s, e, b) for s in range(5) for e in range(5) for b in range(5)]
    seeds = {seed_for(*place) & 0xFFFFFFFF for place in places}  # torch's CPU generator takes 32 bits
    assert len(seeds) == 125
    assert seed_for(1, 2) != seed_for(1, 2, 0)


def test_batch_count() -> None:
    assert [batch_count(n, 8, True) for n in (7, 8, 9, 16)] == [0, 1, 1, 2]
    assert [batch_count(n, 8, False) for n in (7, 8, 9, 16)] == [1, 1, 2, 2]


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


def test_the_parts_are_disjoint_whole_and_the_same_each_time() -> None:
    train, held = held_out(100, 0.1)
    assert len(held) == 10
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(100))
    assert held_out(100, 0.1)[1].tolist() == held.tolist() != list(range(10))


@pytest.mark.parametrize(("samples", "share", "count"), [(10, 0.01, 0), (10, 0.99, 10)])
def test_a_part_without_samples_is_rejected(samples: int, share: float, count: int) -> None:
    with pytest.raises(OptionError) as caught:
        held_out(samples, share)
    assert str(caught.value) == (
        f"--validation is {share:g}, which holds out {count} of {samples} training samples; each part needs at least one."
    )


def test_held_out_images_take_the_place_of_the_test_set() -> None:
    whole = image_loaders("digits", 50)
    for seed in (0, 1):
        parted = image_loaders("digits", 50, seed=seed, validation=0.2)
        images, count = whole.train.images.numpy(), len(whole.train.images)  # type: ignore[attr-defined]
        train, held = (one.images.numpy() for one in (parted.train, parted.test))  # type: ignore[attr-defined]
        assert len(held) == round(0.2 * count)
        numbers = held_out(count, 0.2)[1].numpy()
        np.testing.assert_array_equal(held, images[numbers])
        np.testing.assert_array_equal(train, np.delete(images, numbers, 0))


def test_the_end_of_a_text_is_held_out() -> None:
    config = TrainConfig.from_dict({"dataset": "persuasion", "batch_size": 8}, "test")
    whole = build_task(config)
    parted = build_task(TrainConfig.from_dict({"dataset": "persuasion", "batch_size": 8, "validation": 0.1}, "test"))
    text, kept, held = whole.train.text, parted.train.text, parted.test.text  # type: ignore[attr-defined]
    assert len(held) == round(0.1 * len(text))
    assert kept.tolist() + held.tolist() == text.tolist()


def test_an_evaluation_limit_draws_the_same_samples_for_every_run() -> None:
    assert evaluated_on(5, None) == evaluated_on(5, 9) == [0, 1, 2, 3, 4]
    chosen = evaluated_on(360, 40)
    assert chosen == evaluated_on(360, 40) == sorted(set(chosen))
    assert len(chosen) == 40
    assert chosen != list(range(40)), "test sets may be sorted by class"
    whole, some = (image_loaders("digits", 50, test_samples=most) for most in (None, 40))
    images, labels = whole.test.images, whole.test.labels  # type: ignore[attr-defined]
    np.testing.assert_array_equal(some.test.images, images[chosen])  # type: ignore[attr-defined]
    np.testing.assert_array_equal(some.test.labels, labels[chosen])  # type: ignore[attr-defined]
    assert len(some.train) == len(whole.train)


def test_an_evaluation_limit_of_a_text_takes_its_first_sequences() -> None:
    given = {"dataset": "persuasion", "batch_size": 8, "sequence_length": 32}
    whole, some = (build_task(TrainConfig.from_dict({**given, **more}, "test")) for more in ({}, {"test_samples": 3}))
    inputs, targets = (torch.cat(parts) for parts in zip(*some.test.epoch(0), strict=True))  # type: ignore[attr-defined]
    text = whole.test.text  # type: ignore[attr-defined]
    assert inputs.flatten().tolist() == text[: 3 * 32].tolist()
    assert targets.flatten().tolist() == text[1 : 3 * 32 + 1].tolist()


Epoch = Callable[..., Iterator[Any]]
BATCH, SHARES = 6, 3


@pytest.fixture(params=["images", "sentences", "bytes", "boxes", "folders"])
def epoch(request: pytest.FixtureRequest, tmp_path: Path, write_devkit: Any) -> Epoch:
    random = np.random.default_rng(0)
    pixels, labels = random.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8), np.arange(20) % 7
    if request.param == "images":
        options: Any = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "shuffle": True, "augment": True}
        return ImageBatches(pixels, labels, BATCH, **options).epoch
    if request.param == "sentences":
        sentences = [[7] * (1 + number % 5) for number in range(20)]
        return SentenceBatches(sentences, sentences[::-1], BATCH, shuffle=True).epoch
    if request.param == "bytes":
        return ByteBatches(torch.arange(250, dtype=torch.uint8), 10, BATCH, shuffle=True).epoch
    if request.param == "boxes":
        things = [("dog", (3, 5, 30, 40), False), ("cow", (20, 10, 60, 48), False)]
        found = {f"p{number}": things[number % 2 :] for number in range(14)}
        return BoxedBatches(read_voc(write_devkit(found, found))[0], BATCH, size=32, train=True).epoch
    for part, name in (("train", "cat"), ("train", "dog"), ("val", "cat"), ("val", "dog")):
        (tmp_path / part / name).mkdir(parents=True)
        for number in range(7):
            Image.fromarray(pixels[number]).save(tmp_path / part / name / f"{number}.png")
    return FolderBatches(open_folders(tmp_path, 2)[0], BATCH, size=8, train=True, augment=True, workers=0).epoch


def tensors(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [one for inner in value for one in tensors(inner)]


def test_shares_of_a_batch_are_the_batch(epoch: Epoch) -> None:
    whole = list(epoch(1, 1))
    assert whole
    for index in range(SHARES):
        share = Share(index, SHARES)
        for batch, part in zip(whole, epoch(1, 1, share), strict=True):
            for expected, found in zip(tensors(take_share(share, batch)), tensors(part), strict=True):
                assert torch.equal(found, expected[:, : found.shape[1]] if found.dim() > 1 else expected)
                if not found.is_floating_point() and found.dim() > 1:
                    assert expected[:, found.shape[1] :].eq(-1).all()  # places for objects that this share has not


def test_the_whole_is_a_share() -> None:
    assert WHOLE.of(list(range(5))) == [0, 1, 2, 3, 4]
    assert [Share(index, 2).of(list(range(6))) for index in range(2)] == [[0, 1, 2], [3, 4, 5]]
