"""Batches: what they hold, that they are repeatable from anywhere, and that nothing else is disturbed."""

import numpy as np
import pytest
import torch

from adagp.data import ImageSet
from adagp.data.batches import ImageBatches, batch_count, channel_statistics, seed_for
from adagp.data.loaders import loaders_of
from adagp.errors import OptionError


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
