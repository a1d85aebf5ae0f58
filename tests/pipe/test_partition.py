from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.errors import OptionError
from adagp.pipe import partition


def least_largest(weights: list[int], parts: int) -> int:
    """Try every cut."""
    best = sum(weights)
    for cuts in combinations(range(1, len(weights)), parts - 1):
        edges = [0, *cuts, len(weights)]
        best = min(best, max(sum(weights[low:high]) for low, high in pairwise(edges)))
    return best


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9), st.data())
def test_no_cut_is_better(weights: list[int], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(weights)))
    found = partition(weights, parts)
    assert len(found) == parts
    assert all(found)
    assert [place for part in found for place in part] == list(range(len(weights)))
    assert max(sum(weights[place] for place in part) for part in found) == least_largest(weights, parts)


@pytest.mark.parametrize("parts", [0, 4])
def test_stages_are_not_empty(parts: int) -> None:
    with pytest.raises(OptionError) as raised:
        partition([1, 2, 3], parts)
    assert str(raised.value) == f"3 layers cannot be cut into {parts} stages; give 1 to 3."
