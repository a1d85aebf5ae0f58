from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.program.figures.style import Box, place_boxes, save, spread_labels, style, subplots

INSIDE = (0.0, 0.0, 400.0, 300.0)


def overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@pytest.mark.medium
@given(st.lists(st.tuples(st.floats(60, 340), st.floats(40, 260)), min_size=1, max_size=16))
def test_labels_cover_neither_each_other_nor_a_point(points: list[tuple[float, float]]) -> None:
    boxes = place_boxes(points, [(45.0, 11.0)] * len(points), INSIDE)
    assert len(boxes) == len(points)
    for one, other in combinations(boxes, 2):
        assert not overlap(one, other)
    for box in boxes:
        assert not any(box[0] < x < box[2] and box[1] < y < box[3] for x, y in points)
        assert INSIDE[0] <= box[0] < box[2] <= INSIDE[2]
        assert INSIDE[1] <= box[1] < box[3] <= INSIDE[3]


def test_a_single_label_is_next_to_its_point_and_off_its_bars() -> None:
    (box,) = place_boxes([(200.0, 150.0)], [(40.0, 10.0)], INSIDE)
    assert 200 < box[0] < 210
    bars = [(150.0, 149.5, 250.0, 150.5), (199.5, 100.0, 200.5, 200.0)]
    (box,) = place_boxes([(200.0, 150.0)], [(40.0, 10.0)], INSIDE, bars)
    assert not any(overlap(box, bar) for bar in bars)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12))
def test_labels_are_apart_and_in_order(heights: list[float]) -> None:
    wanted = [(height, f"{place:02}") for place, height in enumerate(heights)]
    found = spread_labels(wanted, 11)
    placed = [found[name] for _, name in sorted(wanted)]
    assert all(upper - lower > 11 - 1e-6 for lower, upper in pairwise(placed))
    assert sum(placed) == pytest.approx(sum(heights), abs=1e-6)


def test_labels_that_do_not_collide_stay() -> None:
    assert spread_labels([(0, "a"), (50, "b"), (20, "c")], 11) == {"a": 0, "c": 20, "b": 50}
    assert spread_labels([(0, "a"), (0, "b")], 10) == {"a": -5, "b": 5}


@given(st.lists(st.floats(-50, 350), min_size=1, max_size=16))
def test_labels_stay_between_top_and_bottom(heights: list[float]) -> None:
    found = sorted(spread_labels([(height, f"{place:02}") for place, height in enumerate(heights)], 15, 300).values())
    assert all(7.5 - 1e-6 <= height <= 292.5 + 1e-6 for height in found)
    assert all(upper - lower > 15 - 1e-6 for lower, upper in pairwise(found))


@pytest.mark.parametrize("chosen", [True, False])
def test_ticks_chosen_for_a_logarithmic_axis_keep_their_labels(chosen: bool, tmp_path: Path) -> None:
    with style():
        figure, ((axes,),) = subplots(1, 1, (3, 2))
        axes.plot([32, 2048], [0, 1])
        axes.set_xscale("log")
        if chosen:
            axes.set_xticks([32, 2048], ["32", "2,048"])
        assert ("2,048" in save(figure, tmp_path / "figure.svg").read_text()) is chosen
