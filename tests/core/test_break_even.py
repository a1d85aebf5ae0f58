"""The two limits: the published example, monotonicity, and the variance by simulation."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from adagp.core.break_even import (
    best_share,
    break_even_rho_squared,
    least_noise_limited_cost,
    noise_limited_cost,
    relative_variance,
)
from adagp.errors import OptionError

unit = st.floats(0, 1)
inner = st.floats(0.01, 0.99)


def test_by_hand() -> None:
    """Half of the gradients, a price of 0.42: (2 - 1 / 0.71) / 1."""
    assert break_even_rho_squared(0.42, 0.5) == pytest.approx(2 - 1 / 0.71)
    assert noise_limited_cost(0.3, 0.4, 0.5) == pytest.approx((0.3 + 0.7 / 0.5) * (0.5 + 0.5 * 0.4))
    assert best_share(0.8, 0.2) == pytest.approx(0.25)
    assert least_noise_limited_cost(0.8, 0.2) == pytest.approx((0.4 + 0.4) ** 2)
    assert best_share(0.3, 0.4) == least_noise_limited_cost(0.3, 0.4) == 1
    assert least_noise_limited_cost(0.75, 0.0) == pytest.approx(0.25)
    assert least_noise_limited_cost(1.0, 0.3) == pytest.approx(0.3)


@given(rho=unit, price=st.floats(0, 2))
def test_true_gradients_alone_are_backprop(rho: float, price: float) -> None:
    assert noise_limited_cost(rho, price, 1.0) == pytest.approx(1)


@given(rho=unit, better=unit, price=unit, dearer=unit, share=inner)
def test_better_predictions_cost_less_and_dearer_ones_more(
    rho: float, better: float, price: float, dearer: float, share: float
) -> None:
    rho, better = sorted((rho, better))
    price, dearer = sorted((price, dearer))
    slack = 1 + 1e-12
    assert noise_limited_cost(better, price, share) <= noise_limited_cost(rho, price, share) * slack
    assert noise_limited_cost(rho, price, share) <= noise_limited_cost(rho, dearer, share) * slack
    assert break_even_rho_squared(price, share) <= break_even_rho_squared(dearer, share) + 1e-9


@given(price=inner, share=inner)
def test_nothing_is_gained_at_the_break_even(price: float, share: float) -> None:
    limit = break_even_rho_squared(price, share)
    assume(limit <= 1)
    assert noise_limited_cost(limit, price, share) == pytest.approx(1)
    assert limit >= price - 1e-9, "the best share needs the least"


@given(rho=inner, price=inner)
def test_no_share_is_better_than_the_best(rho: float, price: float) -> None:
    least = least_noise_limited_cost(rho, price)
    assert least <= min(noise_limited_cost(rho, price, step / 100) for step in range(1, 101)) + 1e-9
    assert (least < 1 - 1e-12) == (best_share(rho, price) < 1) or abs(rho - price) < 1e-5


@pytest.mark.parametrize(("rho_squared", "samples", "true"), [(0.3, 16, 8), (0.8, 16, 4), (0.6, 12, 9)])
def test_the_variance_by_simulation(rho_squared: float, samples: int, true: int) -> None:
    """Gradients of samples are drawn with the correlation; predictions, with their best scale, are control variates."""
    generator = torch.Generator().manual_seed(samples)
    truth, other = torch.randn(2, 200_000, samples, generator=generator).double()
    # A prediction that is scaled best has the covariance of its own variance: p = rho^2 t + rho sqrt(1 - rho^2) z.
    predicted = rho_squared * truth + (rho_squared * (1 - rho_squared)) ** 0.5 * other
    estimate = (truth - predicted)[:, :true].mean(1) + predicted.mean(1)
    variance = estimate.var() / truth.mean(1).var()
    assert float(variance) == pytest.approx(relative_variance(rho_squared, true / samples), rel=0.02)


def test_what_is_no_share_or_correlation_is_rejected() -> None:
    with pytest.raises(OptionError) as caught:
        noise_limited_cost(1.5, 0.5, 0.5)
    assert str(caught.value) == "rho^2 is 1.5; it must be 0 to 1."
    with pytest.raises(OptionError) as caught:
        break_even_rho_squared(0.5, 0.0)
    assert str(caught.value) == "the share of true gradients is 0.0; it must be above 0 and at most 1."
