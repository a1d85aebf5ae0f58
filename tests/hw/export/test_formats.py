"""The files of each tool, read back: they describe the multiply-accumulates of the products they stand for."""

import csv
from math import prod
from pathlib import Path
from typing import Any

import pytest

from adagp.errors import OptionError
from adagp.hw import Accelerator, Attention, Convolution, Linear, Operation, Workload
from adagp.hw.export import EXPORTERS, check_export, export_workload
from adagp.hw.export.work import training_work

BATCH = 4
WORKLOAD = Workload(
    "net",
    (
        Convolution("stem", 3, 16, (3, 5), (9, 9), (4, 4), (2, 2), input_gradient=False),
        Convolution("DP", 16, 16, (3, 3), (4, 4), (4, 4), groups=16),
        Convolution("dilated", 16, 8, (3, 3), (4, 4), (4, 4), dilation=(2, 2)),
        Convolution("up", 8, 4, (2, 2), (4, 4), (8, 8), (2, 2), transposed=True),
        Attention("scores", 2, 5, 6, 7),
        Linear("experts", 3, 8, 16, groups=4),
        Linear("head", 1, 256, 10),
    ),
)
WORK = training_work(WORKLOAD, BATCH)
MACS = {f"{work.name}.{work.operation}": work.layer.product(BATCH).macs for work in WORK}


TIMELOOP_SHAPE = {"name", "dimensions", "data_spaces", "coefficients"}
TIMELOOP_SPACE = {"name", "projection", "read_write"}
"""The keys that Timeloop's front end declares for a problem of version 0.4 (timeloopfe/v4/problem.py); it refuses others."""


def files(tool: str, folder: Path, accelerator: Accelerator | None = None) -> dict[str, str]:
    written = export_workload(tool, WORKLOAD, accelerator or Accelerator(), BATCH, folder / tool)
    return {path.name: path.read_text() for path in written}


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in row if cell.strip()] for row in csv.reader(text.splitlines()[1:])]


def test_scale_sim_products(tmp_path: Path) -> None:
    found = files("scale-sim", tmp_path)
    counts = {(row[0], row[1]): int(row[2]) for row in rows(found["products.csv"])}
    macs = {}
    for operation in Operation:
        for name, *sizes in rows(found[f"{operation}_gemm.csv"]):
            macs[f"{name}.{operation}"] = prod(map(int, sizes)) * counts[f"{operation}_gemm.csv", name]
    assert macs == MACS
    assert "ArrayHeight = 12\n" in found["scale.cfg"]
    assert "Dataflow = ws\n" in found["scale.cfg"]


def test_scale_sim_convolutions(tmp_path: Path) -> None:
    convolutions = rows(files("scale-sim", tmp_path)["forward_conv.csv"])
    assert convolutions == [
        ["000_stem", "9", "11", "3", "5", "3", "16", "2"],
        ["001_dp", "6", "6", "3", "3", "1", "1", "1"],
    ]


def test_scale_sim_has_no_configuration_for_row_stationary(tmp_path: Path) -> None:
    assert "scale.cfg" not in files("scale-sim", tmp_path, Accelerator(dataflow="rs"))


def test_zigzag(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    layers: list[dict[str, Any]] = yaml.safe_load(files("zigzag", tmp_path)["workload.yaml"])
    assert {layer["name"]: prod(layer["loop_sizes"]) for layer in layers} == MACS
    assert [layer["id"] for layer in layers] == list(range(len(WORK)))
    stem = layers[0]
    assert stem["dimension_relations"] == ["ix=2*ox+1*fx", "iy=2*oy+1*fy"]
    assert dict(zip(stem["loop_dims"], stem["loop_sizes"], strict=True)) == {
        "B": 4, "K": 16, "G": 1, "OX": 4, "OY": 4, "C": 3, "FX": 5, "FY": 3,
    }  # fmt: skip
    for layer in layers:
        named = {letter.upper() for letter in layer["loop_dims"]}
        used = {word.upper() for word in layer["equation"].replace("]", "[").split("[")[1::2]}
        assert named == (used - {"IX", "IY"}) | ({"OX", "OY", "FX", "FY"} if "IX" in used else set())


def test_timeloop(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    found = files("timeloop", tmp_path)
    assert {name.removesuffix(".yaml") for name in found} == set(MACS)
    for name, text in found.items():
        problem = yaml.safe_load(text)["problem"]
        shape, instance = problem["shape"], problem["instance"]
        assert set(problem) == {"version", "shape", "instance"}
        assert set(shape) <= TIMELOOP_SHAPE
        assert all(set(space) <= TIMELOOP_SPACE for space in shape["data_spaces"])
        assert all(type(size) is int for size in instance.values())
        assert prod(instance[name] for name in shape["dimensions"]) == MACS[name.removesuffix(".yaml")]
        written = [space["name"] for space in shape["data_spaces"] if space.get("read_write")]
        expected = {"forward": "Outputs", "input_gradient": "Inputs", "weight_gradient": "Weights"}
        assert written == [expected[name.split(".")[1]]]
        known = {*shape["dimensions"], *(one["name"] for one in shape.get("coefficients", []))}
        indices = {
            one for space in shape["data_spaces"] for index in space["projection"] for term in index for one in term
        }
        assert indices == known == set(instance)


def test_folders_and_names_are_checked_before_work(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    for tool, folder, message in (
        ("timeloop", None, "--export TOOL and --out DIR go together; give both."),
        (None, tmp_path / "new", "--export TOOL and --out DIR go together; give both."),
        ("scalesim", tmp_path / "new",
         "unknown export format 'scalesim'. Did you mean 'scale-sim'? Choose from: scale-sim, timeloop, zigzag."),
        ("zigzag", tmp_path / "full", f"'{tmp_path}/full' exists already and is not an empty folder; give another name."),
        ("zigzag", tmp_path / "no" / "new", f"cannot make '{tmp_path}/no/new': there is no folder '{tmp_path}/no'."),
    ):  # fmt: skip
        with pytest.raises(OptionError) as raised:
            check_export(tool, folder)
        assert str(raised.value) == message
    check_export(None, None)
    for tool in EXPORTERS:
        check_export(tool, tmp_path / "new")
