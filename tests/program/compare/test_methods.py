"""Parsing of --methods, --set and --tune; configurations and plans of the runs."""

from collections.abc import Callable
from typing import Any

import pytest

from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.program.compare.methods import (
    Candidate,
    candidate_config,
    check_user_options,
    planned_batches,
    read_candidates,
    read_settings,
)
from adagp.program.run import TrainConfig
from adagp.schedules import Layout


def error(function: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(OptionError) as caught:
        function(*arguments)
    return str(caught.value)


def test_methods_schedules_and_names() -> None:
    assert read_candidates("bp, skip,feedback@2:1, quick:feedback@1:1") == (
        Candidate("bp", "bp"),
        Candidate("skip", "skip"),
        Candidate("feedback@2:1", "feedback", "2:1"),
        Candidate("quick", "feedback", "1:1"),
    )
    assert [candidate.folder for candidate in read_candidates("bp,feedback@epochs:2:1")] == [
        "bp",
        "feedback-epochs-2-1",
    ]


def test_commas_inside_a_schedule() -> None:
    text = "bp,adagp@4:1x4,2:1x8,1:1,zero@sites=2nd conv, fc; batches=1:1,skip"
    assert [(candidate.method, candidate.ratio) for candidate in read_candidates(text)] == [
        ("bp", None),
        ("adagp", "4:1x4,2:1x8,1:1"),
        ("zero", "sites=2nd conv,fc; batches=1:1"),
        ("skip", None),
    ]


FORM = "the form is METHOD, METHOD@SCHEDULE or NAME:METHOD@SCHEDULE, NAME in letters, digits, _, + and -."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adagp,skip", "--methods must name bp, which the others are compared with."),
        ("", "--methods must name bp, which the others are compared with."),
        ("bp,skip,skip", "--methods names 'skip' twice; rename one of them, for example other:skip."),
        (
            "bp,skip@1:1,skip@1-1",
            "--methods: 'skip@1:1' and 'skip@1-1' would share a folder; rename one of them, for example "
            "other:skip@1-1.",
        ),
        ("bp,skip@", f"cannot read 'skip@' in --methods; {FORM}"),
        ("bp,a b:skip", f"cannot read 'a b:skip' in --methods; {FORM}"),
    ],
)
def test_bad_methods_are_rejected(text: str, message: str) -> None:
    assert error(read_candidates, text) == message


def test_unknown_methods() -> None:
    for text in ("bp,skp", "bp,feedback@1:1,skp", "bp,x:skp@1:1"):
        assert error(read_candidates, text).startswith(
            "unknown method 'skp'. Did you mean 'skip'? Choose from: adagp, "
        )


CANDIDATES = read_candidates("bp,dni,feedback@1:1,quick:feedback")


def test_settings_for_all_and_for_some() -> None:
    texts = [
        "momentum=0.5",
        "dni.predictor-lr=1e-3",
        "quick.features = 4",
        "feedback@1:1.optimizer=adam",
        "dni.ratio=2:1",
    ]
    common, own = read_settings([*texts, "normalize=true", "dataset='x.npz'"], CANDIDATES)
    assert common == {"momentum": 0.5, "normalize": True, "dataset": "x.npz"}
    assert own == {
        "dni": {"predictor_lr": 1e-3, "ratio": "2:1"},
        "quick": {"features": 4},
        "feedback@1:1": {"optimizer": "adam"},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "cannot read --set 'lr'; the form is option=value or method.option=value."),
        ("lr=", "cannot read --set 'lr='; the form is option=value or method.option=value."),
        ("batch_size=many", "--set: option 'batch_size' is 'many'; it must be of type int."),
        (
            "skip.lr=1",
            "unknown method in --set 'skip'. Choose from: bp, dni, feedback, feedback@1:1, quick.",
        ),
        ("dni.model=vgg11", "--set dni.model: this option is the same for all methods; give it without 'dni.'."),
        ("dni.seed=1", "--set dni.seed: this option is the same for all methods; give it without 'dni.'."),
    ],
)
def test_bad_settings_are_rejected(text: str, message: str) -> None:
    assert error(read_settings, [text], CANDIDATES) == message


def test_unknown_options() -> None:
    for text in ("learning=1", "dni.learning=1"):
        assert error(read_settings, [text], CANDIDATES).startswith("--set: unknown option 'learning'.")


@pytest.mark.parametrize("name", ["method", "seed", "parallel", "micro_batches", "check_every"])
def test_options_that_the_comparison_sets(name: str) -> None:
    assert error(check_user_options, {name: 1}) == (
        f"option '{name}' cannot be set here: the comparison chooses it for each run."
    )
    check_user_options({"lr": 1.0})


def test_the_nearest_setting_wins() -> None:
    options = {"ratio": "4:1", "warmup": 1, "lr": 0.5}
    settings = {"feedback": {"lr": 0.1, "warmup_batches": 9}, "quick": {"lr": 0.2, "features": 4}}
    bp, dni, feedback, quick = (candidate_config(candidate, options, settings, 600, 3) for candidate in CANDIDATES)
    shared: dict[str, Any] = {"batches": 600, "seed": 3, "lr_scheduler": "cosine", "metrics_every": 0}
    assert bp == TrainConfig(method="bp", lr=0.5, **shared)
    assert dni == TrainConfig(method="dni", lr=0.5, ratio="4:1", warmup=1, **shared)
    assert feedback == TrainConfig(method="feedback", lr=0.1, ratio="1:1", warmup_batches=9, **shared)
    assert quick == TrainConfig(
        method="feedback", lr=0.2, ratio="4:1", warmup_batches=9, own_options={"features": 4}, **shared
    )
    linear = candidate_config(CANDIDATES[0], {"lr_scheduler": "linear", "epochs": 5}, {}, 600, 0)
    assert (linear.lr_scheduler, linear.batches) == ("linear", 600)


def test_each_candidate_may_have_its_own_precision() -> None:
    candidates = read_candidates("bp,low:bp,fast:feedback@1:1")
    _, own = read_settings(["low.precision=bfp2", "fast.precision=fast:alpha=0.5,beta=0.2"], candidates)
    found = {candidate.name: candidate_config(candidate, {}, own, 600, 0).precision for candidate in candidates}
    assert found == {"bp": "fp32", "low": "bfp2", "fast": "fast:alpha=0.5,beta=0.2"}


def test_plans_come_in_the_order_of_the_batches() -> None:
    config = TrainConfig.from_dict({"method": "skip", "batches": 10, "ratio": "1:1", "warmup_batches": 4}, "test")
    found = [(plan.phase, count) for plan, count in planned_batches(config, 7, Layout(()))]
    wanted = [(Phase.WARMUP, 4), (Phase.GP, 1), (Phase.BP, 1), (Phase.GP, 2), (Phase.BP, 1), (Phase.GP, 1)]
    assert found == wanted  # the second epoch begins with GP
    adapted = [(plan.phase, count) for plan, count in planned_batches(config, 7, Layout(()), share=0.3)]
    assert adapted == [(Phase.BP, 7), (Phase.GP, 3)]
