"""Noise on weight gradients: as much of it whether its variance is fixed or decreases."""

from itertools import pairwise
from statistics import mean

import pytest

from adagp.papers.lecture.noise_experiment import DECREASING, EXPONENT, FIXED, deviations


@pytest.mark.parametrize("kind", [FIXED, DECREASING])
def test_both_kinds_have_the_same_mean_variance(kind: str) -> None:
    assert mean(size**2 for size in deviations(kind, 0.03, 50)) == pytest.approx(0.03**2)


def test_the_variance_decreases_with_the_steps() -> None:
    sizes = deviations(DECREASING, 0.01, 100)
    assert all(later < earlier for earlier, later in pairwise(sizes))
    assert (sizes[99] / sizes[0]) ** 2 == pytest.approx(100**-EXPONENT)
