"""Exported workloads: names and sizes of products, files read back, and what the other tools compute from them."""

import csv
import importlib.util
import json
import os
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest

from adagp.errors import OptionError
from adagp.hw import (
    Accelerator,
    Array,
    Attention,
    Convolution,
    Elementwise,
    Linear,
    Operation,
    Product,
    Workload,
    array_cost,
)
from adagp.hw.export import EXPORTERS, check_export, export_workload, plain_name, training_work

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
"""The keys that Timeloop's front end declares for a problem of version 0.4 (timeloopfe/v4/problem.py); it rejects others."""


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


STEM = Convolution("stem", 3, 16, (3, 3), (8, 8), (4, 4), (2, 2), input_gradient=False)
FROZEN = Linear("frozen", 1, 256, 20, trainable=False)
SCORES = Attention("scores", 2, 5, 6, 7)
MIXED_WORKLOAD = Workload("all", (STEM, Elementwise("relu", "relu", 1, 1), SCORES, FROZEN))


def test_a_batch_of_backprop_needs_these_products_in_this_order() -> None:
    found = [(work.name, str(work.operation)) for work in training_work(MIXED_WORKLOAD, 4)]
    assert found == [
        ("000_stem", "forward"),
        ("001_scores", "forward"),
        ("002_frozen", "forward"),
        ("002_frozen", "input_gradient"),
        ("001_scores", "weight_gradient"),
        ("001_scores", "input_gradient"),
        ("000_stem", "weight_gradient"),
    ]


def test_sizes_are_those_of_the_equivalent_ordinary_product() -> None:
    sizes = {(work.name, work.operation): (work.sizes, work.count) for work in training_work(MIXED_WORKLOAD, 4)}
    assert sizes["000_stem", Operation.FORWARD] == ((4 * 16, 16, 27), 1)
    assert sizes["000_stem", Operation.WEIGHT_GRADIENT] == ((27, 16, 4 * 16), 1)
    assert sizes["002_frozen", Operation.INPUT_GRADIENT] == ((4, 256, 20), 1)
    assert sizes["001_scores", Operation.FORWARD] == ((5, 7, 6), 8)


@pytest.mark.parametrize(("name", "plain"), [("a.B,c", "a_b_c"), ("DP.0", "dp_0"), ("", "layer"), ("é/é", "é_é")])
def test_names_that_others_can_read(name: str, plain: str) -> None:
    assert plain_name(name) == plain


def interpreter(variable: str, module: str) -> str | None:
    """Return the interpreter that a variable names, or this one if it has the module."""
    return os.environ.get(variable) or (sys.executable if importlib.util.find_spec(module) is not None else None)


PYTHON = interpreter("ADAGP_SCALE_SIM_PYTHON", "scalesim")
ZIGZAG = interpreter("ADAGP_ZIGZAG_PYTHON", "zigzag")
ROUND_TRIP_WORKLOAD = Workload(
    "net",
    (
        Convolution("stem", 3, 8, (3, 5), (9, 9), (4, 4), (2, 2), input_gradient=False),
        Convolution("grouped.DP", 8, 12, (3, 3), (4, 4), (4, 4), groups=4),
        Linear("head", 1, 192, 10),
    ),
)


def scale_sim(folder: Path, topology: str, kind: str) -> dict[str, int]:
    """Return SCALE-Sim's cycles by layer; it prints the index of the last one."""
    assert PYTHON is not None
    options = ["-c", "scale.cfg", "-t", topology, "-l", "layout.csv", "-p", f"out_{topology}", "-i", kind, "-s", "N"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [PYTHON, "-m", "scalesim.scale", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    reports = list(folder.glob(f"out_{topology}/**/COMPUTE_REPORT.csv"))
    assert reports, done.stderr
    lines = list(csv.reader(reports[0].read_text().splitlines()))
    place = next(index for index, title in enumerate(lines[0]) if title.strip() == "Total Cycles")
    names = [line.split(",")[0].strip() for line in (folder / topology).read_text().splitlines()[1:]]
    return {name: int(float(line[place])) + 1 for name, line in zip(names, lines[1:], strict=True)}


@pytest.mark.skipif(PYTHON is None, reason="SCALE-Sim is not installed")
@pytest.mark.parametrize("dataflow", ["ws", "os", "is"])
def test_scale_sim_takes_our_cycles(dataflow: str, tmp_path: Path) -> None:
    array, batch, folder = Array(5, 7), 2, tmp_path / "out"
    export_workload("scale-sim", ROUND_TRIP_WORKLOAD, Accelerator(array=array, dataflow=dataflow), batch, folder)
    for operation in Operation:
        expected = {}
        for work in training_work(ROUND_TRIP_WORKLOAD, batch):
            rows, columns, depth = work.sizes
            if work.operation is operation:
                expected[work.name] = array_cost(dataflow, Product(rows, depth, columns), array).cycles
        assert scale_sim(folder, f"{operation}_gemm.csv", "gemm") == expected
    single = {
        work.name: array_cost(dataflow, work.layer.product(1), array).cycles // work.count
        for work in training_work(ROUND_TRIP_WORKLOAD, 1)
        if work.operation is Operation.FORWARD and work.convolution is not None
    }
    assert scale_sim(folder, "forward_conv.csv", "conv") == single


RUN_ZIGZAG = """
import json, pathlib, sys, zigzag
from zigzag.api import get_hardware_performance_zigzag
inputs = pathlib.Path(zigzag.__file__).parent / "inputs"
found = get_hardware_performance_zigzag(
    sys.argv[1], str(inputs / "hardware/tpu_like.yaml"), str(inputs / "mapping/tpu_like.yaml"),
    dump_folder=sys.argv[2], lpf_limit=4, loma_show_progress_bar=False,
)
layers = [one[0].layer for one in found[2][0][1]]
print(json.dumps({layer.name: layer.total_mac_count for layer in layers}))
"""


@pytest.mark.skipif(ZIGZAG is None, reason="ZigZag is not installed")
def test_zigzag_takes_every_layer_and_counts_our_work(tmp_path: Path) -> None:
    assert ZIGZAG is not None
    folder, batch = tmp_path / "out", 2
    export_workload("zigzag", ROUND_TRIP_WORKLOAD, Accelerator(), batch, folder)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [ZIGZAG, "-c", RUN_ZIGZAG, str(folder / "workload.yaml"), str(tmp_path / "zigzag")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    works = training_work(ROUND_TRIP_WORKLOAD, batch)
    assert json.loads(done.stdout.splitlines()[-1]) == {
        f"{work.name}.{work.operation}": work.layer.product(batch).macs for work in works
    }
