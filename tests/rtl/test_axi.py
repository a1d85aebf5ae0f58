"""The AXI wrapper in Icarus, driven by cocotb and cocotbext-axi: a batch by its buses, against the golden model."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.marks import slow
from tests.rtl.conftest import icarus

from adagp.hw.dataflows import Array
from adagp.rtl.assembler import Matrix
from adagp.rtl.axi import COMMANDS, REGISTERS, STATUS
from adagp.rtl.blueprint import Blueprint, make_blueprint
from adagp.rtl.compiler import Compiler
from adagp.rtl.formats import FORMATS, NumberFormat, Words
from adagp.rtl.generate import generate
from adagp.rtl.network import SmallNetwork, golden_batch, random_state

pytestmark = pytest.mark.medium

WORDS: dict[str, Any] = {
    "value_words": 256,
    "sum_words": 64,
    "predictor_words": 64,
    "program_words": 128,
    "pool_words": 16,
}
NETWORK = SmallNetwork((3, 4, 2), batch=2)


def described(name: str, core: int, region: Matrix, content: Words) -> dict[str, Any]:
    place = {"core": core, "memory": int(region.memory), "address": region.base}
    return {"name": name, **place, "lines": region.lines, "words": region.extent, "content": content.ravel().tolist()}


def bus_job(blueprint: Blueprint, number: NumberFormat, phase: str, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the batch as plain data: what to load, and what the golden model leaves."""
    state = random_state(NETWORK, number, 3)
    job = Compiler(blueprint, NETWORK, phase).compile(state)
    golden = golden_batch(NETWORK, number, state, phase)
    off_chip: dict[str, list[int]] = {"before": [], "after": []}
    on_chip = list(job.contents)
    if blueprint.design == "low":
        on_chip, [(_, _, words)] = on_chip[:-1], on_chip[-1:]
        after = [*golden.kernel.T.ravel().tolist(), *golden.readout.T.ravel().tolist()]
        off_chip = {"before": words.ravel().tolist(), "after": after}
    stores = [
        described(f"layer {index + 1}", 0, region, weight if job.straight else weight.T)
        for index, ([region], weight) in enumerate(zip(job.weights, golden.weights, strict=True))
    ]
    if blueprint.design != "low" and job.kernel is not None and job.readout is not None:
        stores.append(described("kernel", job.predictor_core, job.kernel, golden.kernel.T))
        stores.append(described("readout", job.predictor_core, job.readout, golden.readout.T))
    return {
        "manifest": manifest,
        "programs": job.programs,
        "loads": [described("contents", *content) for content in on_chip],
        "stores": stores,
        "off_chip": off_chip,
        "least_cycles": len(job.programs[0]),
    }


@pytest.mark.parametrize(
    ("design", "name", "phase"),
    [("max", "int8", "gp"), ("low", "int16", "bp"), slow("max", "int16", "bp"), slow("efficient", "bf16", "bp")],
)
def test_a_batch_by_the_buses_leaves_the_golden_models_weights(
    design: str, name: str, phase: str, tmp_path: Path
) -> None:
    """With pauses at random on all channels; for low, with a slow memory at the off-chip ports."""
    icarus("vvp")
    pytest.importorskip("cocotb")
    number = FORMATS[name]
    blueprint = make_blueprint(design, Array(2, 2), number, predictor_array=Array(2, 2), **WORDS)
    manifest = generate(blueprint, tmp_path / "chip", axi=True)
    (tmp_path / "job.json").write_text(json.dumps(bus_job(blueprint, number, phase, manifest)))
    run_cocotb(tmp_path)


PLAY = """
import sys
from pathlib import Path
from cocotb_tools.runner import get_runner

folder, tests = Path(sys.argv[1]), sys.argv[2]
runner = get_runner("icarus")
sources = [folder / "chip" / name for name in ("chip.v", "axi_chip.v")]
places = {"build_dir": folder / "build", "timescale": ("1ns", "1ns")}
runner.build(sources=sources, hdl_toplevel="axi_chip", build_args=["-g2005", "-Wall"], **places)
sys.path.insert(0, tests)
names = {"AXI_JOB": str(folder / "job.json")}
runner.test("axi_bench", "axi_chip", build_dir=folder / "build", extra_env=names)
"""


def run_cocotb(folder: Path) -> None:
    """Run the bench in a simulator of its own; if it fails, what it printed is the message."""
    done = subprocess.run(
        [sys.executable, "-c", PLAY, folder, Path(__file__).parent],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " FAIL=0 " in done.stdout, done.stdout[-4000:]
    assert " PASS=1 " in done.stdout, done.stdout[-4000:]


def test_the_programmers_page_has_all_registers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "rtl-programming.md").read_text("utf-8")
    for name, address in REGISTERS.items():
        assert f"| 0x{address:02X} | `{name}` |" in page
    for name, bit in (COMMANDS | STATUS).items():
        assert f"{bit} `{name}`" in page
