"""The Verilog that is written, chip and AXI wrapper: linted by Verilator and Icarus, for designs and formats in pairs."""

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.marks import slow
from tests.rtl.conftest import icarus

from adagp.hw.dataflows import Array
from adagp.rtl.blueprint import make_blueprint
from adagp.rtl.formats import find_format
from adagp.rtl.generate import generate, manifest
from adagp.rtl.instructions import Opcode
from adagp.rtl.tools import verilator
from adagp.rtl.verilog import HEADER

pytestmark = pytest.mark.medium

WORDS: dict[str, Any] = {
    "value_words": 32,
    "sum_words": 16,
    "predictor_words": 16,
    "program_words": 16,
    "pool_words": 8,
}


@pytest.mark.parametrize(
    ("design", "name", "stages"),
    [
        ("max", "int8", 0),
        ("low", "fp16", 1),
        *(
            slow(design, name, stages)
            for design, name, stages in (
                ("baseline", "bfp", 1),
                ("baseline", "int16", 0),
                ("low", "int16", 0),
                ("efficient", "int8", 1),
                ("efficient", "bf16", 0),
                ("max", "fp32", 0),
                ("max", "int16", 1),
            )
        ),
    ],
)
def test_verilog_is_lint_clean(design: str, name: str, stages: int, tmp_path: Path) -> None:
    generate(
        make_blueprint(design, Array(2, 3), find_format(name), stages=stages, **WORDS), tmp_path / "chip", axi=True
    )
    lint(tmp_path / "chip", "axi_chip")


@pytest.mark.parametrize(("name", "words", "stages"), [("int16", 2, 0), slow("int8", 1, 1), slow("fp32", 4, 0)])
def test_a_chip_with_a_dma_is_lint_clean(name: str, words: int, stages: int, tmp_path: Path) -> None:
    chip = make_blueprint("baseline", Array(4, 4), find_format(name), stages=stages, dma_words=words, **WORDS)
    about = generate(chip, tmp_path / "chip")
    assert about["dma"]["values_per_beat"] == words
    lint(tmp_path / "chip", "dma_chip")


def lint(folder: Path, top: str) -> None:
    """Lint the chip with a module around it, by Verilator and by Icarus."""
    paths = [folder / file for file in ("chip.v", f"{top}.v")]
    tools = verilator()
    if tools is not None:
        program, root = tools
        command = [str(program), "--lint-only", "-Wall", "--top-module", top, *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, env={"VERILATOR_ROOT": str(root)}, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, "") or _is_summary(done.stdout + done.stderr)
    compiler = icarus("iverilog")
    command = [compiler, "-g2005", "-Wall", "-o", str(folder / "chip.vvp"), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def _is_summary(printed: str) -> bool:
    """Return whether Verilator, whose newer versions print what they did, warned of nothing."""
    return printed != "" and "%" not in printed and all(line.startswith("- ") for line in printed.splitlines())


@pytest.mark.parametrize(
    ("design", "name", "words"),
    [("max", "int8", 32), slow("baseline", "bf16", 2), slow("low", "int16", 32), slow("efficient", "fp16", 32)],
)
def test_the_test_bench_passes_and_finds_a_fault(design: str, name: str, words: int, tmp_path: Path) -> None:
    """Under Icarus as Verilog-2005: nothing stays X. With one word of the data changed, sums are wrong."""
    sizes = WORDS | {"value_words": words, "sum_words": words}
    generate(make_blueprint(design, Array(2, 3), find_format(name), **sizes), tmp_path / "chip")
    bench = (tmp_path / "chip" / "testbench.v").read_text()
    assert re.fullmatch(r"PASS: \d+ sums are right after \d+ cycles\n", played(tmp_path / "chip", bench))
    first = re.search(r"write_word\(0, 0, 0, 64'h(\w+)\);", bench)
    assert first is not None
    wrong = bench.replace(first[0], f"write_word(0, 0, 0, 64'h{int(first[1], 16) ^ 8:x});")
    assert re.search(r"^FAIL: \d+ words are wrong$", played(tmp_path / "chip", wrong), re.MULTILINE)


def test_the_programmers_page_packs_instructions() -> None:
    """Its function, given the manifest alone, writes the words that the compiler writes."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "rtl-programming.md").read_text("utf-8")
    block = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert block is not None
    names: dict[str, Any] = {}
    exec(block[1], names)
    core = make_blueprint("low", Array(2, 3), find_format("int8"), **WORDS).core
    about = manifest(make_blueprint("low", Array(2, 3), find_format("int8"), **WORDS), "")["cores"][0]
    drawn = np.random.default_rng(0)
    for code, fields in ((Opcode.ARRAY, core.encoding.array), (Opcode.ELEMENTS, core.encoding.elements)):
        values = {name: int(drawn.integers(1 << bits)) for name, bits in fields.items()}
        stated = about["array_fields" if code is Opcode.ARRAY else "element_fields"]
        slices = names["pack"](stated, values | {"operation": int(code)})
        word = sum(part << 32 * place for place, part in enumerate(slices))
        assert word == core.encoding.pack(code, values)
        assert all(re.search(rf"`{re.sub(r'(first|second|result)_|[012]$', '', name)}", page) for name in fields)


def test_the_programmers_page_names_every_field_of_block_floating_point() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "rtl-programming.md").read_text("utf-8")
    encoding = make_blueprint("baseline", Array(4, 4), find_format("bfp"), value_words=32, sum_words=16).core.encoding
    assert "wide_row" in encoding.array
    assert encoding.elements == {}
    assert [name for name in encoding.array if f"`{name}`" not in page] == []


@pytest.mark.parametrize(("name", "words", "stages"), [("int16", 2, 0), slow("bf16", 1, 1)])
def test_the_test_bench_of_a_dma_passes_and_finds_a_fault(name: str, words: int, stages: int, tmp_path: Path) -> None:
    """With sums that leave the chip and come back, and memory that is X until it is written."""
    chip = make_blueprint("baseline", Array(4, 4), find_format(name), stages=stages, dma_words=words, **WORDS)
    generate(chip, tmp_path / "chip")
    bench = (tmp_path / "chip" / "dma_testbench.v").read_text()
    assert re.fullmatch(r"PASS: 56 values are right after \d+ cycles\n", played(tmp_path / "chip", bench, "dma_chip.v"))
    wrong = bench.replace(
        "write_register(18, ", "write_register(18, 1 + "
    )  # the last partial sum lies outside of memory
    assert re.search(r"^FAIL: \d+ values are wrong$", played(tmp_path / "chip", wrong, "dma_chip.v"), re.MULTILINE)


def played(folder: Path, bench: str, *more: str) -> str:
    """Return what a test bench prints."""
    (folder / "bench.v").write_text(bench)
    compiled = subprocess.run(
        [icarus("iverilog"), "-g2005", "-Wall", "-o", "bench", "chip.v", *more, "bench.v"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (compiled.returncode, compiled.stderr) == (0, "")
    return subprocess.run([icarus("vvp"), "bench"], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_only_two_classes_of_style_are_waived() -> None:
    waived = [line.split()[3] for line in HEADER.splitlines() if "lint_off" in line]
    assert waived == ["DECLFILENAME", "UNUSEDSIGNAL"]
