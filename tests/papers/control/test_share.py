"""The best share against a search, and the text forms of the options."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.errors import OptionError
from adagp.papers.control.options import check_share, parse_predictor, read_share
from adagp.papers.control.share import SMALLEST_SHARE, best_share, noise_times_cost


@given(st.floats(0, 1), st.floats(0.01, 0.99))
def test_no_other_share_is_better(rho_squared: float, price: float) -> None:
    shares = [SMALLEST_SHARE * step for step in range(1, 9)]
    share = best_share(rho_squared, price)
    assert share in shares
    least = min(noise_times_cost(other, rho_squared, price) for other in shares)
    assert noise_times_cost(share, rho_squared, price) <= least + 1e-12


def test_backprop_is_the_unit_and_prediction_pays_where_the_correlation_exceeds_the_price() -> None:
    assert noise_times_cost(1.0, 0.3, 0.4) == 1
    assert noise_times_cost(0.5, 0.59, 0.42) == pytest.approx(1, abs=0.01)  # half of the samples, rho^2 of 0.59
    assert best_share(0.39, 0.4) == 1
    assert best_share(0.8, 0.4) < 1
    assert best_share(1.0, 0.4) == SMALLEST_SHARE


@pytest.mark.parametrize("text", ["0", "1.5", "-0.5", "half", "nan", ""])
def test_shares_that_are_not_allowed(text: str) -> None:
    with pytest.raises(OptionError, match=f"^true_share is '{text}'; it must be above 0 and at most 1, or auto.$"):
        check_share(text)


def test_shares_and_predictors_in_text_form() -> None:
    assert (read_share("auto"), read_share("0.25"), read_share("1")) == (None, 0.25, 1.0)
    method, options = parse_predictor("feedback:correction=0,class-features=true,features=32")
    assert method.name == "feedback"
    assert options == {"correction": 0.0, "class_features": True, "features": 32}
    assert parse_predictor("dni")[1] == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bp", "predictor is 'bp'; method 'bp' predicts nothing that control could use."),
        ("control", "predictor is 'control'; method 'control' predicts nothing that control could use."),
        ("feedback:features=x", "predictor is 'feedback:features=x'; 'x' is no int."),
        ("feedback:features=0", "--features is 0; it must be 1 or more."),
        (
            "dni:features=3",
            "predictor is 'dni:features=3'; 'features=3' is no option=value of method 'dni', which has: predictor_lr, "
            "predictor_scheduler, normalize, hold_norm.",
        ),
    ],
)
def test_predictors_that_cannot_be_used(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_predictor(text)
    assert str(caught.value) == message
