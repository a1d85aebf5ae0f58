import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from adagp.layers.sites import survey
from adagp.sources.support.norms import RunningNorms

SITES = survey(nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))).sites


def running_mean(values: list[float], decay: float) -> float:
    """Average plainly while the share of the newest value is above 1 - decay, exponentially after that."""
    mean = 0.0
    for count, value in enumerate(values, start=1):
        share = 1 / count if 1 / count > 1 - decay else 1 - decay
        mean = (1 - share) * mean + share * value
    return mean


BATCHES = st.lists(st.dictionaries(st.integers(0, 2), st.floats(0, 100), min_size=1), max_size=40)


@given(BATCHES, st.sampled_from([0.5, 0.9, 0.95]))
def test_equals_a_slow_average(batches: list[dict[int, float]], decay: float) -> None:
    """Each batch has the norms of some sites, in any order."""
    norms = RunningNorms(SITES, decay)
    for batch in batches:
        norms.update([SITES[index] for index in batch], torch.tensor(list(batch.values())))
    for site in SITES:
        seen = [batch[site.index] for batch in batches if site.index in batch]
        assert norms.of([site]).item() == pytest.approx(running_mean(seen, decay), rel=1e-4, abs=1e-5)


def test_is_a_plain_mean_at_first() -> None:
    norms = RunningNorms(SITES, decay=0.95)
    for value in range(20):
        norms.update(SITES[:1], torch.tensor([float(value)]))
    assert norms.of(SITES[:1]).item() == pytest.approx(9.5)
    assert norms.of(SITES[1:]).tolist() == [0.0, 0.0]


def test_answers_in_the_order_asked_for() -> None:
    norms = RunningNorms(SITES)
    norms.update([SITES[2], SITES[0]], torch.tensor([3.0, 1.0]))
    assert norms.of(SITES).tolist() == [1.0, 0.0, 3.0]
    assert norms.of([SITES[2], SITES[1]]).tolist() == [3.0, 0.0]


def test_knows_the_newest_as_they_were() -> None:
    norms = RunningNorms(SITES)
    norms.update([SITES[2], SITES[0]], torch.tensor([3.0, 1.0]))
    norms.update([SITES[0]], torch.tensor([5.0]))
    assert norms.newest([SITES[0], SITES[2], SITES[1]]).tolist() == [5.0, 3.0, 0.0]


def test_the_state_is_a_copy_and_goes_on_exactly() -> None:
    norms, other = RunningNorms(SITES), RunningNorms(SITES)
    norms.update(SITES, torch.tensor([1.0, 2.0, 3.0]))
    state = norms.state_dict()
    norms.update(SITES, torch.tensor([5.0, 5.0, 5.0]))
    other.load_state_dict(state)
    assert other.of(SITES).tolist() == [1.0, 2.0, 3.0]
    other.update(SITES, torch.tensor([5.0, 5.0, 5.0]))
    assert torch.equal(other.of(SITES), norms.of(SITES))
