"""Attaching and validating: what is said before training starts."""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import adagp
from adagp.core.plan import Epochs, Phase, Step, divided_run, shortened_run
from adagp.engine.arguments import MethodChoice, read_schedule
from adagp.engine.attach import attach_run
from adagp.errors import ModelError, OptionError
from adagp.schedules import BackpropOnly, Ladder

SOURCES = ", ".join(sorted(adagp.METHODS[name].source for name in adagp.METHODS if name != "bp"))


def model() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Embedding(7, 2), nn.Flatten(), nn.Linear(8, 2))


def attach(one: nn.Module, optimizer: torch.optim.Optimizer | None = None, **options: Any) -> adagp.Trainer:
    given = {"length": adagp.Epochs(9, 10), **options}
    return adagp.attach(one, optimizer or torch.optim.SGD(one.parameters(), lr=0.1), **given)


def test_validate_tells_it_all() -> None:
    one = model()
    foreign = nn.Parameter(torch.zeros(3))
    report = adagp.validate(one, torch.optim.SGD([*one.parameters(), foreign], lr=0.1))
    assert str(report) == "\n".join(
        [
            "2 sites, 124 weights: predicted in GP batches",
            "  0                                Conv2d          4 x 27 weights",
            "  4                                Linear          2 x 8 weights",
            "5 other parameters, 28 values: frozen in GP batches",
            "  0.bias                           bias",
            "  1.weight                         normalisation",
            "  1.bias                           normalisation",
            "  2.weight                         no rule for layer type Embedding",
            "  4.bias                           bias",
            "note: 1 parameters of the optimizer do not belong to the model; GP batches freeze them.",
            "note: no rule for Embedding; adagp.register_rule makes such layers sites.",
        ]
    )
    report.raise_problems()


def test_a_notebook_shows_the_same_and_escapes_names() -> None:
    hostile = type("<script>", (nn.Linear,), {})
    one = nn.ModuleDict({"<b>": hostile(2, 2), "<i>": nn.Embedding(2, 2)})
    page = adagp.validate(one, torch.optim.SGD(one.parameters(), lr=0.1))._repr_html_()
    assert "<strong>1 sites, 4 weights: predicted in GP batches</strong>" in page
    assert '<td style="text-align: left">&lt;b&gt;</td><td style="text-align: left">&lt;script&gt;</td>' in page
    assert '<td style="text-align: left">&lt;i&gt;.weight</td>' in page
    assert "<p>note: no rule for Embedding; adagp.register_rule makes such layers sites.</p>" in page
    assert re.findall("<(?:script|b|i)>", page) == []


@pytest.mark.parametrize("batches", [80, 91, 0])
def test_batches_must_end_in_the_last_epoch(batches: int) -> None:
    message = f"^{batches} batches do not end in epoch 9 of a run with 10 batches per epoch.$"
    with pytest.raises(OptionError, match=message):
        shortened_run(Epochs(9, 10), batches)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    length = shortened_run(Epochs(9, 10), 81)
    trainer = attach_run(net, optimizer, length, BackpropOnly(), {}, engine=adagp.EngineOptions())
    assert [trainer.epoch_length(epoch) for epoch in (0, 7, 8)] == [10, 10, 1]


def test_closures_are_rejected() -> None:
    one = model()
    with pytest.raises(
        ModelError, match="^LBFGS calls a closure several times per step, each with a loss and a backward pass"
    ):
        attach(one, torch.optim.LBFGS(one.parameters()))

    class Own(torch.optim.SGD):
        def step(self, closure: Callable[[], float]) -> float:  # type: ignore[override]
            return closure()

    with pytest.raises(ModelError, match="^Own calls a closure several times per step"):
        attach(one, Own(one.parameters(), lr=0.1))


def test_a_model_without_sites_is_rejected() -> None:
    with pytest.raises(ModelError) as caught:
        attach(nn.BatchNorm2d(3))
    assert str(caught.value) == (
        "the model has no layer whose gradient can be predicted: no trainable weight of a convolution, transposed "
        "convolution or linear layer in the optimizer, nor a layer with a rule of your own (adagp.register_rule)."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "0:0"}, "ratio 0:0 is not allowed: K:M needs whole numbers of at least 0 that are not both 0, "),
        (
            {"schedule": "ladder", "warmup": 9},
            "warm-up of 9 epochs does not fit a run of 9: nothing would be predicted. ",
        ),
        (
            {"schedule": Ladder(), "warmup": 1},
            "warmup needs a schedule in text form; wrap a Schedule object in a WarmUp instead.",
        ),
        ({"exclude": ["head*"]}, "the pattern 'head*' matches no layer of the model. Its layers are: 0, 1, 2, 3, 4."),
        (
            {"schedule": Ladder(source="predicte")},
            f"unknown source 'predicte'. Did you mean 'predicted'? Choose from: {SOURCES}.",
        ),
        (
            {"sources": {"remapped": adagp.RemappedSource()}},
            "source 'remapped' was given, but the schedule names only: predicted.",
        ),
    ],
)
def test_wrong_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match="^" + re.escape(message)):
        attach(model(), **options)


def test_excluded_layers_are_held() -> None:
    trainer = attach(model(), exclude=["4"])
    assert [site.name for site in trainer.survey.sites] == ["0"]
    assert {one.name: one.reason for one in trainer.survey.rest}["4.weight"] == "excluded"


def test_a_run_of_one_epoch_warms_up_for_a_ninth_of_its_batches() -> None:
    short = attach(model(), length=Epochs(1, 45)).schedule
    phases = [short.phase(Step(0, batch)) for batch in range(45)]
    assert phases[:5] == [Phase.WARMUP] * 5
    assert set(phases[5:]) == {Phase.BP, Phase.GP}
    with pytest.raises(OptionError, match="warm-up of 1 epoch does not fit a run of 1"):
        attach(model(), length=Epochs(1, 45), warmup=1)


@given(st.integers(1, 100_000))
def test_a_run_without_epochs_has_all_of_its_steps(steps: int) -> None:
    length = divided_run(steps)
    assert (length.epochs - 1) * length.batches_per_epoch < steps <= length.epochs * length.batches_per_epoch


@pytest.mark.parametrize("steps", [50, 61, 539, 4001])
@pytest.mark.parametrize("ratio", ["1:1", "2:1", "1:3", "4:1"])
def test_alternations_go_on_where_there_are_no_epochs(steps: int, ratio: str) -> None:
    length = divided_run(steps)
    schedule = read_schedule(MethodChoice(), ratio, length, 10)
    phases = [schedule.phase(Step(*divmod(step, length.batches_per_epoch))) for step in range(10, steps)]
    predicted, true = map(int, ratio.split(":"))
    changes = [place for place, (before, after) in enumerate(pairwise(phases), 1) if before is Phase.BP is not after]
    assert all(later - earlier == predicted + true for earlier, later in pairwise(changes))
    assert phases.count(Phase.GP) == pytest.approx(len(phases) * predicted / (predicted + true), abs=predicted + true)


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (lambda: {"length": None, "steps": 0}, "a run needs at least 1 step; got 0."),
        (lambda: {"length": None, "steps": 1e3}, "steps is 1000.0; it must be a whole number."),
        (
            lambda: {"length": None},
            "the length of the run is missing: give length=adagp.Epochs(90, len(loader)), or steps=.",
        ),
        (lambda: {"steps": 9}, "steps is the length of a run without epochs; leave out steps, or the epochs."),
        (
            lambda: {"length": 90},
            "length is 90; it must be epochs and their batches, as adagp.Epochs(90, len(loader)). A number of batches is "
            "given as steps=.",
        ),
        (
            lambda: {"length": Epochs(0, 10)},
            "a run needs at least 1 epoch and 1 batch per epoch; got 0 epochs, 10 batches.",
        ),
        (lambda: {"length": Epochs(1, 2.5)}, "batches_per_epoch is 2.5; it must be a whole number."),  # type: ignore[arg-type]
    ],
)
def test_a_run_needs_a_length(length: Callable[[], dict[str, Any]], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        attach(model(), **length())
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("old", "advice"),
    [
        ({"metrics_every": 3}, "engine=adagp.EngineOptions(metrics_every=...)"),
        ({"guard": adagp.Guard(5.0)}, "engine=adagp.EngineOptions(guard=...)"),
        ({"scaler": None}, "engine=adagp.EngineOptions(scaler=...)"),
        ({"compile": False}, "engine=adagp.EngineOptions(compile=...)"),
        ({"precision": "bfp4"}, "engine=adagp.EngineOptions(precision=...)"),
        ({"warmup_batches": 7}, "warmup='300 batches'"),
        ({"epochs": 9, "batches_per_epoch": 10}, "length=adagp.Epochs(epochs, batches_per_epoch)"),
        ({"batches": 85, "epochs": 9, "batches_per_epoch": 10}, "steps=..."),
        ({"synchronize": False}, "adagp.engine.attach.attach_run"),
        ({"staged": False}, "adagp.engine.attach.attach_run"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_keywords_of_earlier_versions_still_work_and_warn(old: dict[str, Any], advice: str) -> None:
    (name, value) = next(iter(old.items()))
    with pytest.warns(DeprecationWarning, match=r"^attach\(") as caught:
        trainer = attach(model(), **old, **({"length": None} if "epochs" in old else {}))
    assert [str(one.message) for one in caught] == [f"attach({name}=...) is deprecated: use {advice}."]
    found = {
        "metrics_every": trainer.quality.interval,
        "guard": trainer.setup.guard,
        "precision": trainer.arithmetic and "bfp4",
        "warmup_batches": getattr(trainer.schedule, "batches", None),
        "batches": trainer.batches,
        "epochs": trainer.length.epochs,
    }
    assert name not in found or found[name] == value
