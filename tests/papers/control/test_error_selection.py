"""Sampling by the norm of the errors: the chances, the draw, and that the weighted mean is right on average."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from adagp.papers.control.error_selection import UNIFORM_SHARE, draw_by_norm, inclusion_chances, sample_norms

NORMS = st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=40)


@given(NORMS, st.floats(0, 1))
def test_the_chances_add_up_and_none_is_above_one(values: list[float], share: float) -> None:
    norms = torch.tensor(values, dtype=torch.float64)
    count = max(1, round(share * len(values)))
    chances = inclusion_chances(norms, count)
    assert abs(float(chances.sum()) - count) < 1e-6
    assert float(chances.max()) <= 1 + 1e-9
    assert float(chances.min()) >= UNIFORM_SHARE * count / len(values) * (1 - 1e-9), "so weights are bounded"
    order = norms.argsort()
    assert bool((chances[order].diff() >= -1e-9).all()), "larger errors have larger chances"


@given(NORMS, st.floats(0, 1), st.integers(0, 1000))
def test_a_draw_has_as_many_samples_as_asked_for(values: list[float], share: float, seed: int) -> None:
    count = max(1, round(share * len(values)))
    drawn, weights = draw_by_norm(torch.tensor(values), count, torch.Generator().manual_seed(seed))
    assert len(drawn) == len(set(drawn.tolist())) == len(weights) == count
    assert drawn.tolist() == sorted(drawn.tolist())


def test_the_mean_over_draws_is_the_mean_over_all() -> None:
    generator = torch.Generator().manual_seed(0)
    norms, values = torch.rand(20, generator=generator) ** 4, torch.randn(20, generator=generator)
    means = []
    for _ in range(4000):
        drawn, weights = draw_by_norm(norms, 5, generator)
        means.append(float((values[drawn] * weights).mean()))
    estimates = torch.tensor(means)
    error = float(estimates.std()) / len(means) ** 0.5
    assert abs(float(estimates.mean() - values.mean())) < 4 * error


def test_norms_are_over_all_outputs_of_a_sample() -> None:
    errors = [torch.tensor([[3.0], [0.0]]), None, torch.tensor([[[4.0, 0.0]], [[0.0, 2.0]]])]
    assert sample_norms(errors).tolist() == [5.0, 2.0]
