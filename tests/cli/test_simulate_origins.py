"""`adagp simulate` of models of one's own and of files, with presets and exports; what cannot be ends with code 2."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Program

MODELS = """
import torch
from torch import nn


def images(classes, image):
    return nn.Sequential(nn.Conv2d(image[0], 4, 3), nn.Flatten(), nn.Linear(4 * (image[1] - 2) ** 2, classes))


def sequences():
    return nn.GRU(12, 20, batch_first=True)
"""


@pytest.fixture
def own(program: Program, tmp_path: Path) -> Program:
    (tmp_path / "origins_models.py").write_text(MODELS)
    return program


def test_a_model_of_ones_own(own: Program) -> None:
    sizes = ("--image-size", "6", "--channels", "2", "--classes", "5")
    found = json.loads(own("simulate", "origins_models:images", *sizes, "--json").out)
    assert found["weights"] == 2 * 4 * 9 + 64 * 5
    assert found["macs_per_sample"] == 16 * 2 * 4 * 9 + 64 * 5


def test_a_model_of_sequences(own: Program) -> None:
    found = json.loads(own("simulate", "origins_models:sequences", "--input", "7x12", "--json").out)
    assert found["weights"] == 60 * 12 + 60 * 20
    assert found["macs_per_sample"] == 7 * found["weights"]


def test_a_preset_gives_way_to_what_is_given(program: Program) -> None:
    found = json.loads(program("simulate", "two_layer_cnn", "--preset", "eyeriss", "--dataflow", "os", "--json").out)
    assert (found["array"], found["dataflow"]) == ("12x14", "os")


def test_an_export_beside_the_report(program: Program, tmp_path: Path) -> None:
    ended = program("simulate", "two_layer_cnn", "--batch", "4", "--export", "zigzag", "--out", "zz", "--json")
    assert json.loads(ended.out)["batch"] == 4
    assert ended.err == "exported 1 files for zigzag to zz\n"
    assert (tmp_path / "zz" / "workload.yaml").read_text().count("- id:") == 14


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bad.onnx",), "bad.onnx is not an ONNX model: "),
        (("bad.pt2",), "bad.pt2 is not a torch.export program: File is not a zip file."),
        (("bad.json",), "bad.json: not a workload: "),
        (("missing.pt2",), "there is no file missing.pt2."),
        (("two_layer_cnn", "--channels", "0"), "--channels is 0; it must be 1 or more."),
        (("two_layer_cnn", "--preset", "tpu"), "unknown preset 'tpu'. Did you mean 'tpu-v1'?"),
        (("two_layer_cnn", "--export", "zigzag"), "--export TOOL and --out DIR go together; give both."),
        (("no.such.module:model",), "cannot import 'no.such.module' of 'no.such.module:model': "),
    ],
)
@pytest.mark.medium
def test_what_cannot_be_is_rejected(program: Program, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    for name in ("bad.onnx", "bad.pt2", "bad.json"):
        (tmp_path / name).write_bytes(b"\x07damaged")
    ended = program("simulate", *arguments)
    assert ended.code == 2
    assert ended.err.startswith(f"error: {message}")
    assert len(ended.err.strip().splitlines()) == 1
