"""The options that are tuned and their values: text form, grid, and the results of earlier versions."""

from typing import Any

import pytest

from adagp.errors import OptionError
from adagp.program.compare.comparison import Comparison
from adagp.program.compare.grid import Tuning, grid_text, read_tuning, upgraded_tuning
from adagp.program.compare.methods import read_candidates
from adagp.program.run import TrainConfig

FORM = "the form is option=value,value,..., for example lr=0.003,0.01,0.03,0.1 or lr=0.01,0.03,batch_size=32,64"


def test_the_text_form() -> None:
    assert read_tuning("lr=0.003, 0.01") == Tuning({"lr": (0.003, 0.01)})
    assert read_tuning("predictor-lr=1e-4,1e-3", 50, 2) == Tuning({"predictor_lr": (1e-4, 1e-3)}, 50, 2)
    assert read_tuning("lr=0.01,0.03, batch-size = 32,64,128") == Tuning(
        {"lr": (0.01, 0.03), "batch_size": (32, 64, 128)}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", f"cannot read --tune 'lr'; {FORM}."),
        ("lr=", f"cannot read --tune 'lr='; {FORM}."),
        ("0.1,lr=0.1", f"cannot read --tune '0.1,lr=0.1'; {FORM}."),
        ("lr=0.1,x", f"cannot read 'x' in --tune 'lr=0.1,x' as a number; {FORM}."),
        ("lr=0.1,0.2,lr=0.3,0.4", f"--tune 'lr=0.1,0.2,lr=0.3,0.4' names lr twice; {FORM}."),
        ("features=0.5,2", "--tune: option 'features' is 0.5; it must be of type int."),
        ("lr=0.1,0.2,batch_size=32,0.5", "--tune: option 'batch_size' is 0.5; it must be of type int."),
    ],
)
def test_unreadable_text_is_rejected(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_tuning(text)
    assert str(caught.value) == message
    assert read_tuning("lr_warmup=0.1,0.2").options == {"lr_warmup": (0.1, 0.2)}
    with pytest.raises(OptionError, match="^unknown option in --tune 'width'"):
        read_tuning("width=1,2")


@pytest.mark.parametrize(
    ("tuning", "more", "message"),
    [
        (Tuning({"lr": (0.1,)}), {}, f"--tune lr needs two values or more, each named once; {FORM}."),
        (Tuning({"lr": (0.1, 0.1)}), {}, f"--tune lr needs two values or more, each named once; {FORM}."),
        (Tuning({"lr": (0.1, -1.0)}), {}, "--lr is -1.0; it must be above 0."),
        (Tuning({"lr": (0.1, 0.2), "batch_size": (0, 32)}), {}, "--batch-size is 0; it must be 1 or more."),
        (Tuning({"lr": (0.1, 0.2)}, 0), {}, "--tune-batches is 0; it must be 1 or more."),
        (Tuning({"lr": (0.1, 0.2)}, seeds=0), {}, "--tune-seeds is 0; it must be 1 or more."),
        (
            Tuning({"lr": (0.1, 0.2)}),
            {"options": {"lr": 0.1}},
            "--tune chooses lr, but --lr sets it; remove one of them.",
        ),
        (
            Tuning({"lr": (0.1, 0.2)}),
            {"settings": {"skip": {"lr": 0.1}}},
            "--tune chooses lr, but --set skip.lr sets it; remove one of them.",
        ),
        (
            Tuning({"batch_size": (16, 32)}),
            {"settings": {"skip": {"batch_size": 16}}},
            "--tune chooses batch_size, but --set skip.batch_size sets it; remove one of them.",
        ),
    ],
)
def test_bad_tunings_are_rejected(tuning: Tuning, more: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"seeds": 1, "options": {}, "settings": {}, "batches": 10, **more}
    with pytest.raises(OptionError) as caught:
        Comparison(read_candidates("bp,skip"), tuning=tuning, **options)
    assert str(caught.value) == message


def test_all_combinations_of_the_options_that_a_method_has() -> None:
    tuning = Tuning({"lr": (0.1, 0.2), "features": (4, 8)})
    plain, feedback = (TrainConfig.from_dict({"method": method}, "test") for method in ("bp", "feedback"))
    assert tuning.grid(plain) == [{"lr": 0.1}, {"lr": 0.2}]
    assert [grid_text(values) for values in tuning.grid(feedback)] == [
        "lr 0.1, features 4",
        "lr 0.1, features 8",
        "lr 0.2, features 4",
        "lr 0.2, features 8",
    ]
    assert Tuning({"features": (4, 8)}).grid(plain) == []


def test_each_option_has_its_own_edges() -> None:
    tuning = Tuning({"lr": (0.1, 0.3, 0.2), "batch_size": (32, 64, 128)})
    assert tuning.at_the_edge({"lr": 0.2, "batch_size": 64}) == []
    assert tuning.at_the_edge({"lr": 0.3, "batch_size": 64}) == ["lr"]
    assert tuning.at_the_edge({"lr": 0.1, "batch_size": 128}) == ["lr", "batch_size"]


def test_a_single_option_is_stored_as_in_earlier_versions() -> None:
    rest = {"batches": None, "seeds": 1, "share": 0.1}
    assert Tuning({"lr": (0.1, 0.2)}).as_dict() == {"option": "lr", "values": [0.1, 0.2], **rest}
    assert Tuning({"lr": (0.1, 0.2), "batch_size": (32, 64)}).as_dict() == {
        "options": {"lr": [0.1, 0.2], "batch_size": [32, 64]},
        **rest,
    }


def test_results_of_earlier_versions() -> None:
    method = {"batches": 50, "accuracy": {"0.01": 0.5, "0.1": None}, "picked": 0.01, "at_the_edge": True}
    former = {"option": "lr", "values": [0.01, 0.1], "regime": "seconds", "methods": {"bp": method}}
    now = upgraded_tuning(former, "accuracy")
    assert now == {
        "options": {"lr": [0.01, 0.1]},
        "regime": "seconds",
        "methods": {
            "bp": {
                "trials": [
                    {"values": {"lr": 0.01}, "batches": 50, "accuracy": 0.5},
                    {"values": {"lr": 0.1}, "batches": 50, "accuracy": None},
                ],
                "picked": {"lr": 0.01},
                "at_the_edge": ["lr"],
            }
        },
    }
    assert upgraded_tuning(now, "accuracy") == now
