"""The text forms of the options."""

import pytest

from adagp.errors import OptionError
from adagp.papers.control.options import check_share, parse_predictor, read_share


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
        ("feedback:features=x", "predictor is 'feedback:features=x'; 'x' is not of type int."),
        ("feedback:features=0", "--features is 0; it must be 1 or more."),
        (
            "dni:features=3",
            "predictor is 'dni:features=3'; 'features=3' is not an option=value of method 'dni', which has: predictor_lr, "
            "predictor_scheduler, normalize, hold_norm.",
        ),
    ],
)
def test_predictors_that_cannot_be_used(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_predictor(text)
    assert str(caught.value) == message
