from hypothesis import given
from hypothesis import strategies as st

from adagp.hw.pareto import pareto_front

Row = list[float]


def brute_force(rows: list[Row]) -> list[bool]:
    """Compare each with each."""

    def beats(one: Row, other: Row) -> bool:
        return all(a <= b for a, b in zip(one, other, strict=True)) and one != other

    return [not any(beats(other, row) for other in rows) for row in rows]


@given(
    st.integers(1, 4).flatmap(
        lambda size: st.lists(st.lists(st.integers(0, 6).map(float), min_size=size, max_size=size), max_size=40)
    )
)
def test_the_front_is_what_comparing_each_with_each_gives(rows: list[Row]) -> None:
    assert pareto_front(rows) == brute_force(rows)


def test_equal_points_stay_together() -> None:
    assert pareto_front([[1, 2], [2, 1], [1, 2], [2, 2]]) == [True, True, True, False]
    assert pareto_front([]) == []
