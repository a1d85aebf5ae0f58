"""The interface that type checkers and people see: few parameters, methods with typed options, a trainer to be printed."""

import inspect
import re
from pathlib import Path
from typing import Any, get_args

import mypy.api
import pytest
import torch
from torch import nn

import adagp
from adagp.core.methods import METHODS, Method, method_option
from adagp.engine.attach import AttachOptions
from adagp.errors import OptionError
from adagp.sources.controls import ZeroSource


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(8, 2))


def attach(**options: Any) -> adagp.Trainer:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return adagp.attach(model, optimizer, **{"length": adagp.Epochs(9, 10), **options})


def test_attach_has_few_parameters() -> None:
    parameters = inspect.signature(adagp.attach).parameters
    assert len(parameters) <= 14
    assert not {"batches", "staged", "synchronize"} & parameters.keys()
    assert all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    assert list(AttachOptions.__annotations__) == [name for name in parameters if name not in ("model", "optimizer")]


@pytest.mark.parametrize("name", adagp.METHODS)
def test_every_method_has_a_class_with_its_options(name: str) -> None:
    method = adagp.METHODS[name]
    assert method.typed is not None
    assert method.typed.name == name
    assert getattr(adagp, method.typed.__name__) is method.typed
    assert method.typed().values == method.defaults
    assert attach(method=method.typed()).method == name


def test_the_names_that_type_checkers_know_are_those_of_the_table() -> None:
    assert get_args(adagp.MethodName) == tuple(adagp.METHODS)


def test_options_of_an_object_reach_the_source() -> None:
    trainer = attach(method=adagp.Feedback(features=3))
    assert trainer.sources["feedback"]._errors.most == 3  # type: ignore[attr-defined]
    named = attach(method=adagp.NamedMethod("adagp.papers.approximation.source:TopKSource", topk=5))
    assert named.sources["topk"].k == 5  # type: ignore[attr-defined]
    assert repr(adagp.NamedMethod("topk", topk=5)) == "NamedMethod('topk', topk=5)"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: adagp.Feedback(features=0), "features is 0; it must be 1 or more."),
        (lambda: adagp.NamedMethod("feedback", features=0), "features is 0; it must be 1 or more."),
        (
            lambda: adagp.Feedback(features="2"),  # type: ignore[arg-type]
            "Feedback: option 'features' is '2'; it must be of type int.",
        ),
        (
            lambda: adagp.AdaGP(predictor_scheduler="cosine"),  # type: ignore[arg-type]
            "unknown predictor scheduler 'cosine'. Did you mean 'none'? Choose from: multistep, none, plateau.",
        ),
        (
            lambda: adagp.Feedback,
            "method is the class Feedback; it must be a name, for example 'feedback', or a method with options, for example "
            "adagp.Feedback(features=32).",
        ),
    ],
)
def test_wrong_options_name_the_keyword(wrong: Any, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        attach(method=wrong())
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("method", "options", "advice"),
    [
        ("feedback", {"features": 3}, "method=adagp.Feedback(features=3)"),
        ("sign", {"strength": 3.0}, "method=adagp.NamedMethod('sign', strength=3.0)"),
    ],
)
def test_options_of_a_method_by_keyword_still_work_and_warn(
    method: str, options: dict[str, Any], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(METHODS, "_things", dict(METHODS._things))
    strength = method_option("strength", float, 1.0, "How much.")
    METHODS.add("sign", Method("sign", "", "adagp.sources.controls:ZeroSource", options=(strength,)))
    built: list[dict[str, Any]] = []

    def build(declared: Method, run: object, given: dict[str, Any]) -> ZeroSource:
        built.append(given)
        return ZeroSource()

    monkeypatch.setattr("adagp.engine.arguments.build_source", build)
    with pytest.warns(DeprecationWarning, match=r"^attach\(") as caught:
        attach(method=method, **options)
    assert [str(one.message) for one in caught] == [f"attach({next(iter(options))}=...) is deprecated: use {advice}."]
    assert built == [options]
    assert caught[0].filename == __file__


PROGRAM = """
import torch
import adagp

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
adagp.attach(model, optimizer, methd="feedback", steps=9)
adagp.attach(model, optimizer, method="fedback", steps=9)
adagp.attach(model, optimizer, exclude="head", steps=9)
adagp.attach(model, optimizer, method=adagp.Feedback(feature=3), steps=9)
adagp.attach(model, optimizer, method=adagp.Feedback(features="3"), steps=9)
adagp.attach(model, optimizer, method=adagp.AdaGP(predictor_scheduler="none"), steps=9)
adagp.attach(model, optimizer, adagp.NamedMethod("package.module:Class", strength=2.0), exclude=["head"], steps=9)
result: adagp.BatchResult = adagp.attach(model, optimizer, "bp", steps=9).step(1, 2, torch.nn.functional.mse_loss)
"""


@pytest.mark.slow
def test_type_checkers_find_what_is_wrong(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    settings = Path(__file__).parents[2] / "pyproject.toml"
    printed, problems, _ = mypy.api.run(["--strict", "--config-file", str(settings), str(program)])
    found = re.findall(r"program\.py:(\d+): error: .*\[([\w-]+)\]", printed)
    lines = PROGRAM.splitlines()
    assert problems == ""
    assert {lines[int(number) - 1].partition("optimizer, ")[2]: kind for number, kind in found} == {
        'methd="feedback", steps=9)': "call-arg",
        'method="fedback", steps=9)': "arg-type",
        'exclude="head", steps=9)': "arg-type",
        "method=adagp.Feedback(feature=3), steps=9)": "call-arg",
        'method=adagp.Feedback(features="3"), steps=9)': "arg-type",
    }


def test_printing_a_trainer_shows_where_it_is() -> None:
    trainer = attach(method=adagp.Feedback(features=3), schedule="1:1", warmup=1)
    for _ in range(13):
        trainer.advance()
    assert repr(trainer).splitlines() == [
        "Trainer of Sequential (attached)",
        "  method    feedback; sources: feedback",
        "  schedule  1:1, after a warm-up of 1 epoch",
        "  position  batch 4 of 10 in epoch 2 of 9 comes next, as BP; 13 of 90 batches are done",
        "  sites     3: 0, 1, 3",
    ]
    for _ in range(77):
        trainer.advance()
    trainer.detach()
    assert repr(trainer).splitlines()[0] == "Trainer of Sequential (detached)"
    assert repr(trainer).splitlines()[3] == "  position  all 90 batches are done (9 epochs of 10 batches)"
