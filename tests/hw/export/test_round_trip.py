"""The exported files through SCALE-Sim and ZigZag themselves, where they are installed: here, or in the interpreters
ADAGP_SCALE_SIM_PYTHON and ADAGP_ZIGZAG_PYTHON.

SCALE-Sim's cycles must be those that our model gives the equivalent ordinary product; ZigZag must take every layer, and count
our multiply-accumulates.
"""

import csv
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from adagp.hw import Accelerator, Array, Convolution, Linear, Operation, Product, Workload, array_cost
from adagp.hw.export import export_workload
from adagp.hw.export.work import training_work


def interpreter(variable: str, module: str) -> str | None:
    """Return the interpreter that a variable names, or this one if it has the module."""
    return os.environ.get(variable) or (sys.executable if importlib.util.find_spec(module) is not None else None)


PYTHON = interpreter("ADAGP_SCALE_SIM_PYTHON", "scalesim")
ZIGZAG = interpreter("ADAGP_ZIGZAG_PYTHON", "zigzag")
WORKLOAD = Workload(
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
    export_workload("scale-sim", WORKLOAD, Accelerator(array=array, dataflow=dataflow), batch, folder)
    for operation in Operation:
        expected = {}
        for work in training_work(WORKLOAD, batch):
            rows, columns, depth = work.sizes
            if work.operation is operation:
                expected[work.name] = array_cost(dataflow, Product(rows, depth, columns), array).cycles
        assert scale_sim(folder, f"{operation}_gemm.csv", "gemm") == expected
    single = {
        work.name: array_cost(dataflow, work.layer.product(1), array).cycles // work.count
        for work in training_work(WORKLOAD, 1)
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
    export_workload("zigzag", WORKLOAD, Accelerator(), batch, folder)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [ZIGZAG, "-c", RUN_ZIGZAG, str(folder / "workload.yaml"), str(tmp_path / "zigzag")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    works = training_work(WORKLOAD, batch)
    assert json.loads(done.stdout.splitlines()[-1]) == {
        f"{work.name}.{work.operation}": work.layer.product(batch).macs for work in works
    }
