"""`--tune`: what it reads, and what it refuses."""

from typing import Any

import pytest

from adagp.errors import OptionError
from adagp.program.compare.comparison import Comparison
from adagp.program.compare.contenders import read_entries
from adagp.program.compare.tuning_choice import Tuning, read_tuning

FORM = "the form is option=value,value,..., for example lr=0.003,0.01,0.03,0.1"


def test_the_text_form() -> None:
    assert read_tuning("lr=0.003, 0.01") == Tuning("lr", (0.003, 0.01))
    assert read_tuning("predictor-lr=1e-4,1e-3", 50, 2) == Tuning("predictor_lr", (1e-4, 1e-3), 50, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", f"cannot read --tune 'lr'; {FORM}."),
        ("lr=0.1,x", f"cannot read 'x' in --tune 'lr=0.1,x' as a number; {FORM}."),
        ("features=0.5,2", "--tune: option 'features' is 0.5; it must be of type int."),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_tuning(text)
    assert str(caught.value) == message
    with pytest.raises(OptionError, match="^unknown option in --tune 'batch_size'"):
        read_tuning("batch_size=1,2")


@pytest.mark.parametrize(
    ("tuning", "more", "message"),
    [
        (Tuning("lr", (0.1,)), {}, f"--tune lr needs two values or more, each named once; {FORM}."),
        (Tuning("lr", (0.1, 0.1)), {}, f"--tune lr needs two values or more, each named once; {FORM}."),
        (Tuning("lr", (0.1, -1.0)), {}, "--lr is -1.0; it must be above 0."),
        (Tuning("lr", (0.1, 0.2), 0), {}, "--tune-batches is 0; it must be 1 or more."),
        (Tuning("lr", (0.1, 0.2), seeds=0), {}, "--tune-seeds is 0; it must be 1 or more."),
        (
            Tuning("lr", (0.1, 0.2)),
            {"options": {"lr": 0.1}},
            "--tune chooses lr, and --lr gives it; leave one of them out.",
        ),
        (
            Tuning("lr", (0.1, 0.2)),
            {"settings": {"skip": {"lr": 0.1}}},
            "--tune chooses lr, and --set skip.lr gives it; leave one of them out.",
        ),
    ],
)
def test_choices_that_are_none_are_refused(tuning: Tuning, more: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"seeds": 1, "options": {}, "settings": {}, "batches": 10, **more}
    with pytest.raises(OptionError) as caught:
        Comparison(read_entries("bp,skip"), tuning=tuning, **given)
    assert str(caught.value) == message
