"""Precision schedules: pure functions of the batch and the site."""

from dataclasses import replace

import pytest

from adagp.errors import OptionError
from adagp.papers.fast.precision import ByLayer, Fast, Fixed, RandomChoice, Temporal, TensorPlace, Width

PLACE = TensorPlace(0, 101, 0, 11)


def test_fixed_precision_is_the_same_everywhere() -> None:
    assert Fixed("bfp4", bits=4).width(PLACE) == Width(4, 4)
    assert Fixed("bfp2", bits=2).width(replace(PLACE, batch=100, site=10)) == Width(2, 2)


@pytest.mark.parametrize(
    ("batch", "site", "threshold"),
    [(0, 0, 0.6), (50, 0, 0.45), (100, 0, 0.3), (0, 5, 0.45), (0, 10, 0.3), (50, 5, 0.3), (100, 10, 0.0)],
)
def test_the_threshold_of_fast(batch: int, site: int, threshold: float) -> None:
    place = replace(PLACE, batch=batch, site=site)
    assert Fast("fast").threshold(place) == pytest.approx(threshold)
    assert Fast("fast").width(place) == Width(2, 4, Fast("fast").threshold(place))


def test_the_threshold_falls_with_time_and_depth_to_alpha_less_twice_beta() -> None:
    fast = Fast("fast", alpha=0.9, beta=0.2)
    over_time = [fast.threshold(replace(PLACE, batch=batch, site=3)) for batch in range(101)]
    over_depth = [fast.threshold(replace(PLACE, batch=3, site=site)) for site in range(11)]
    for found in (over_time, over_depth):
        assert found == sorted(found, reverse=True)
        assert len(set(found)) == len(found)
    assert fast.threshold(replace(PLACE, batch=100, site=10)) == pytest.approx(0.5)


def test_one_batch_and_one_site_are_the_first() -> None:
    assert Fast("fast").threshold(TensorPlace(0, 1, 0, 1)) == 0.6


def test_temporal_precision_changes_at_its_share_of_the_run() -> None:
    low_first = Temporal("temporal:2-4@0.5", first=2, second=4, share=0.5)
    widths = [low_first.width(TensorPlace(batch, 10, 0, 1)) for batch in range(10)]
    assert widths == [Width(2, 2)] * 5 + [Width(4, 4)] * 5
    float_first = Temporal("temporal:fp32-4@0.3", first=None, second=4, share=0.3)
    assert [float_first.width(TensorPlace(batch, 10, 0, 1)) for batch in (0, 2, 3)] == [None, None, Width(4, 4)]


def test_precision_by_layer_counts_the_first_ones() -> None:
    layers = ByLayer("layers:2-4@3", first=2, second=4, count=3)
    assert [layers.width(replace(PLACE, site=site)) for site in (0, 2, 3)] == [Width(2, 2), Width(2, 2), Width(4, 4)]
    layers.check(4)
    with pytest.raises(OptionError) as refused:
        layers.check(3)
    assert str(refused.value) == (
        "the precision 'layers:2-4@3' cuts the model after layer 3; it has 3 layers, so that it must be 1 to 2."
    )


def test_a_random_choice_has_its_share_and_no_memory() -> None:
    precision = RandomChoice("random:2-4@0.3", share=0.3)
    places = [replace(PLACE, batch=batch, site=site) for batch in range(101) for site in range(11)]
    found = [precision.width(place) for place in places]
    assert found == [precision.width(place) for place in places]
    assert found.count(Width(4, 4)) / len(found) == pytest.approx(0.3, abs=0.05)
    assert found != [precision.width(replace(place, seed=1)) for place in places]
    assert found != [precision.width(replace(place, tensor="gradients")) for place in places]
