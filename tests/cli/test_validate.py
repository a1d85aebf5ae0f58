"""`adagp validate` against `adagp.validate` of a model that is there."""

import re
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import adagp
from adagp.cli import app
from adagp.models import build_model

RUNNER = CliRunner()
pytestmark = pytest.mark.medium


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (adagp.Feedback(features=3), ["--method", "feedback", "--features", "3"]),
        (adagp.NamedMethod("control"), ["--method", "control"]),
        (adagp.NamedMethod("fa"), ["--method", "fa"]),
    ],
)
def test_it_prints_what_validate_finds_in_a_model_that_is_there(method: Any, words: list[str]) -> None:
    ended = RUNNER.invoke(app, ["validate", "digits_cnn", "--batch-size", "16", *words])
    assert ended.exit_code == 0, ended.output
    model = build_model("digits_cnn", classes=10, image=(1, 8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = adagp.validate(model, optimizer, method=method, sample=torch.zeros(16, 1, 8, 8))
    assert ended.stdout.splitlines() == str(expected).splitlines()
    assert re.search(r"price of a GP batch +\d\.\d\d of a batch by backprop", ended.stdout)


def test_what_cannot_be_trained_is_an_exit_code() -> None:
    ended = RUNNER.invoke(app, ["validate", "decoder", "--method", "dfa", "--batch-size", "2"])
    assert ended.exit_code == 2
    assert "\nproblem: source 'dfa' needs one error of at most 4096 values for each sample" in ended.stdout
    assert "fix:" not in ended.stdout, "without these layers nothing is left"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "fa", "--features", "3"], "method 'fa' has no options; got 'features'."),
        (["--method", "nope"], "unknown method 'nope'."),
        (
            ["--input", "1x8x8", "--image-size", "8"],
            "--input and --image-size both set the image size; give one of them.",
        ),
    ],
)
def test_wrong_options(words: list[str], message: str) -> None:
    ended = RUNNER.invoke(app, ["validate", "digits_cnn", *words])
    assert str(ended.exception).startswith(message)
