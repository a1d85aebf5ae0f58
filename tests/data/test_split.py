"""What is held out of the training data, and what is left out of the test set."""

import numpy as np
import pytest
import torch

from adagp.data.loaders import image_loaders
from adagp.data.split import evaluated_on, held_out
from adagp.errors import OptionError
from adagp.program.run import TrainConfig
from adagp.program.tasks.base import build_task


def test_the_parts_are_disjoint_whole_and_the_same_each_time() -> None:
    train, held = held_out(100, 0.1)
    assert len(held) == 10
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(100))
    assert held_out(100, 0.1)[1].tolist() == held.tolist() != list(range(10))


@pytest.mark.parametrize(("samples", "share", "count"), [(10, 0.01, 0), (10, 0.99, 10)])
def test_a_part_without_samples_is_refused(samples: int, share: float, count: int) -> None:
    with pytest.raises(OptionError) as caught:
        held_out(samples, share)
    assert str(caught.value) == (
        f"--validation is {share:g}, which holds out {count} of {samples} training samples; both parts need one at least."
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
