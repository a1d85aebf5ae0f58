"""`adagp methods`, `adagp models` and `adagp datasets`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adagp.cli import app
from adagp.core.methods import METHODS
from adagp.data import DATASETS
from adagp.models import MODELS

RUNNER = CliRunner()


def test_all_methods_with_their_options() -> None:
    rows = {row["name"]: row for row in json.loads(RUNNER.invoke(app, ["methods", "--json"]).stdout)}
    assert list(rows) == list(METHODS)
    assert rows["bp"] == {
        "name": "bp",
        "description": "ordinary backpropagation",
        "schedule": "bp",
        "options": {},
        "parallel": ["data", "fsdp", "pipeline"],
        "simulated": True,
    }
    assert rows["feedback"]["options"] == {
        "features": 64,
        "class_features": False,
        "learn_every": 1,
        "correct_every": 1,
        "correction": 0.3,
        "memory_limit": 2.0,
    }
    shown = RUNNER.invoke(app, ["methods"]).stdout
    assert all(name in shown for name in METHODS)
    assert "--no-normalize" in shown
    assert "--label-classes (the last layer's)" in " ".join(shown.replace("│", " ").split())


@pytest.mark.slow
def test_all_models_with_their_sizes() -> None:
    rows = {row["name"]: row for row in json.loads(RUNNER.invoke(app, ["models", "--json"]).stdout)}
    assert list(rows) == list(MODELS)
    resnet = rows["resnet50"]
    assert resnet["parameters"] == 25_557_032
    assert resnet["sites"] == 54  # 53 convolutions and the classifier
    assert (resnet["largest_site"], resnet["largest_site_weights"]) == ("layer4.0.conv2", 512 * 512 * 9)
    assert resnet["predictor_parameters"] == 4 * 9 + 4 + 64 * 4608 + 4608  # the widest rows: 512 channels of 3x3
    # 3 encoder layers of 4 attention and 2 feed-forward products, 3 decoder layers with 4 more; the answer's weight
    # is shared with the embedding
    assert rows["transformer"]["sites"] == 3 * 6 + 3 * 10
    assert rows["yolov3"]["sites"] == 75
    assert rows["yolov3"]["classes"] == 20


@pytest.mark.medium
def test_a_table_of_chosen_models() -> None:
    ended = RUNNER.invoke(app, ["models", "resnet20", "--input", "3x32x32", "--classes", "10"])
    assert ended.exit_code == 0
    assert "269,722" in ended.stdout
    assert "vgg13" not in ended.stdout


def test_a_model_has_its_usual_classes() -> None:
    """Those that `adagp train` trains it with, on the data that it is made for."""
    (row,) = json.loads(RUNNER.invoke(app, ["models", "digits_cnn", "--json"]).stdout)
    assert (row["classes"], row["image"], row["parameters"]) == (10, [1, 8, 8], 19_258)
    assert "19,258" in RUNNER.invoke(app, ["models", "digits_cnn"]).stdout
    (row,) = json.loads(RUNNER.invoke(app, ["models", "digits_cnn", "--image-size", "16", "--json"]).stdout)
    assert (row["classes"], row["image"]) == (10, [1, 16, 16])


def test_two_ways_to_give_the_image() -> None:
    ended = RUNNER.invoke(app, ["models", "--input", "3x8x8", "--image-size", "8"])
    assert str(ended.exception) == "--input and --image-size both set the image size; give one of them."


def test_all_data_sets_and_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "cifar10.npz").touch()
    ended = RUNNER.invoke(app, ["datasets", "--data-dir", str(tmp_path), "--json"])
    rows = {row["name"]: row for row in json.loads(ended.stdout)}
    assert list(rows) == list(DATASETS)
    assert rows["cifar10"]["found"] == str(tmp_path / "cifar10.npz")
    assert rows["cifar100"]["found"] is None
    table = RUNNER.invoke(app, ["datasets", "--data-dir", str(tmp_path)]).stdout
    assert "part of adagp" in table
    assert "multi30k" in table
