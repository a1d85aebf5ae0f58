"""`adagp rtl`: what it prints and writes, and what it rejects."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from adagp.cli.rtl import _conclude, _print_report

Program = Callable[..., Any]
SMALL = ("--array", "2x2", "--format", "int8", "--value-words", "64", "--sum-words", "64")


@pytest.mark.medium
def test_simulate(program: Program) -> None:
    chip = ("--array", "4x4", "--format", "int8", "--value-words", "1024", "--sum-words", "16384")  # as in tests/rtl
    ended = program("rtl", "simulate", *chip, "--size", "9x4x7", "--dataflow", "os", "--operation", "dw", "--json")
    assert ended.code == 0
    report = json.loads(ended.out)
    assert report["equal"]
    assert report["cycles"] == report["model_cycles"] == 3 * 2 * (4 + 4 + 4 + 4 - 2)
    assert report["wrong_values"] == 0


@pytest.mark.medium
def test_simulate_groups(program: Program) -> None:
    chip = ("--array", "3x4", "--format", "bfp", "--value-words", "1024", "--sum-words", "2048")  # as in tests/rtl
    ended = program("rtl", "simulate", *chip, "--size", "4x20x5", "--mantissa-bits", "4,2,4", "--json")
    assert ended.code == 0
    report = json.loads(ended.out)
    assert report["equal"]
    assert (report["wrong_values"], report["passes"]) == (0, 2)


@pytest.mark.medium
def test_generate(program: Program) -> None:
    ended = program("rtl", "generate", *SMALL, "--design", "max", "--predictor-words", "16", "--axi", "--out", "made")
    assert ended.code == 0
    assert ended.out.endswith("Next: cd made && iverilog -g2005 -o bench chip.v testbench.v && vvp bench\n")
    names = ["README.md", "axi_chip.v", "chip.v", "manifest.json", "testbench.v"]
    assert sorted(path.name for path in Path("made").iterdir()) == names
    verilog = Path("made/chip.v").read_text()
    for kind in ("chip", "core", "element", "lane", "predictor_core", "predictor_wide_lane"):
        assert verilog.count(f"module {kind}(") == 1
    about = json.loads(Path("made/manifest.json").read_text())
    assert about["design"] == "max"
    assert about["ports"]["host_in"] == {"direction": "in", "bits": 32}
    assert about["axi"]["ports"]["irq"] == {"direction": "out", "bits": 1}
    assert Path("made/axi_chip.v").read_text().count("module ") == 2
    again = program("rtl", "generate", *SMALL, "--out", "made")
    assert (again.code, again.err) == (
        2,
        "error: 'made' exists and is not empty; nothing was written. Give another --out.\n",
    )


@pytest.mark.medium
def test_generate_suggests_no_test_bench_where_there_is_none(program: Program) -> None:
    ended = program("rtl", "generate", "--array", "2x2", "--format", "bfp", "--out", "made")
    assert ended.code == 0
    assert not Path("made/testbench.v").exists()
    assert ended.out.splitlines()[-1].startswith("digest: ")


@pytest.mark.medium
def test_a_dma(program: Program) -> None:
    """Generated, and simulated with a product larger than its banks."""
    chip = ("--array", "2x2", "--format", "int8", "--value-words", "32", "--sum-words", "32", "--dma", "2")
    ended = program("rtl", "generate", *chip, "--out", "made")
    assert ended.code == 0
    assert Path("made/dma_chip.v").read_text().count("module ") == 4
    about = json.loads(Path("made/manifest.json").read_text())
    assert about["dma"]["descriptor"]["sums_plane"] == 19
    assert about["dma"]["ports"]["memory_in"] == {"direction": "in", "bits": 16}
    ended = program("rtl", "simulate", *chip, "--size", "20x9x12", "--memory-latency", "5", "--json")
    assert ended.code == 0
    report = json.loads(ended.out)
    assert report["equal"]
    assert report["tiles"] > 1
    assert report["model_cycles"] <= report["double_buffered_cycles"] <= report["cycles"]


@pytest.mark.medium
def test_run(program: Program) -> None:
    chip = ("--array", "2x2", "--design", "low", "--format", "int8", "--memory-latency", "2")
    ended = program("rtl", "run", "--network", "4-3", *chip, "--json")
    assert ended.code == 0
    report = json.loads(ended.out)
    assert report["equal"]
    assert [(row["phase"], row["stalls"] > 0) for row in report["batches"]] == [("bp", True), ("gp", True)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("simulate", "--array", "1x4"),
            "array 1x4 is not allowed in hardware: rows and columns must be at least 2.",
        ),
        (
            ("generate", "--out", "x", "--array", "1000x1000"),
            "array 1000x1000 has 1000000 PEs; at most 4096 are supported.",
        ),
        (
            ("simulate", "--size", "3x4"),
            "cannot read the product '3x4'; write ROWSxDEPTHxCOLUMNS, for example 20x30x40.",
        ),
        (
            ("simulate", "--format", "int7"),
            "unknown number format 'int7'. Did you mean 'int8'? Choose from: bf16, bfp, fp16, fp32, int16, int8.",
        ),
        (
            ("simulate", "--mantissa-bits", "4"),
            "--mantissa-bits is for block floating point; the format is int16.",
        ),
        (
            ("simulate", "--format", "bfp", "--mantissa-bits", "3"),
            "cannot read the mantissa bits '3'; write 2 or 4, or three of them, of weights, activations and gradients, as "
            "4,2,4.",
        ),
        (
            ("synthesize", "--format", "bfp"),
            "design 'low' has a predictor, which works on single numbers; format bfp has groups of them. "
            "Choose design baseline.",
        ),
        (
            ("run", "--format", "bfp", "--design", "baseline", "--phases", "bp"),
            "format bfp has groups of numbers, which only arrays multiply; this needs single numbers. "
            "Choose from: bf16, fp16, fp32, int16, int8.",
        ),
        (
            ("run", "--kernel", "3"),
            "a kernel of 3x3 needs an image; give its size, for example --picture 4x4.",
        ),
        (
            ("run", "--kernel", "3", "--picture", "4x4", "--dataflow", "os"),
            "dataflow 'os' cannot address the neighbours of a pixel, which a kernel of 3x3 needs; choose ws, or a "
            "kernel of 1.",
        ),
        (
            ("run", "--kernel", "2", "--picture", "4x4"),
            "the kernel is 2x2; it must be 1x1 or 3x3.",
        ),
        (
            ("simulate", "--value-words", "20"),
            "the product needs 300 words in each bank of values; there are 20. Give larger banks or a smaller product.",
        ),
        (
            ("generate", "--out", "x", "--design", "huge"),
            "unknown design in hardware 'huge'. Choose from: baseline, efficient, low, max.",
        ),
        (
            ("generate", "--out", "x", "--design", "max", "--dma", "1"),
            "design 'max' has no DMA; choose design baseline, or leave the DMA out.",
        ),
        (
            ("generate", "--out", "x", "--dma", "4"),
            "a DMA of 4 values a cycle does not suit array 12x15: rows and columns must be multiples of it.",
        ),
        (
            ("generate", "--out", "x", "--dma", "1", "--format", "bfp"),
            "a DMA moves single numbers; format bfp has groups of them.",
        ),
        (
            ("generate", "--out", "x", "--dma", "1", "--sum-words", "33"),
            "sum_words is 33; with a DMA it must be even: each half has a tile.",
        ),
        (
            ("generate", "--out", "x", "--dma", "1", "--axi"),
            "the AXI wrapper has no ports for a DMA; write one of them.",
        ),
        (
            ("simulate", "--memory-latency", "3"),
            "--memory-interval and --memory-latency have no effect without --dma.",
        ),
        (
            ("simulate", "--memory-latency", "1"),
            "--memory-interval and --memory-latency have no effect without --dma.",
        ),
        (
            ("simulate", "--memory-interval", "1"),
            "--memory-interval and --memory-latency have no effect without --dma.",
        ),
        (
            ("simulate", "--dma", "1", "--vcd", "x.vcd"),
            "--vcd and --mantissa-bits cannot be combined with --dma.",
        ),
        (
            ("simulate", "--dma", "4", "--format", "fp32"),
            "simulations have beats of at most 64 bits; 4 values of fp32 have 128.",
        ),
        (
            ("simulate", "--dma", "1", "--value-words", "2", "--sum-words", "2", "--size", "1x70000x1"),
            "depth of a product is 70000; it must be 1 to 65535.",
        ),
        (
            ("synthesize", "--target", "ice40"),
            "unknown target 'ice40'. Choose from: xc7, liberty, liberty:FILE.",
        ),
        (
            ("run", "--dataflow", "rs"),
            "unknown dataflow in hardware 'rs'. Choose from: is, os, ws.",
        ),
        (
            ("run", "--picture", "4x4", "--dataflow", "is"),
            "dataflow 'is' cannot pool images: the outputs of a channel leave the array in several lanes. "
            "Choose ws or os, or an image of 1x1.",
        ),
        (
            ("run", "--memory-latency", "3"),
            "design 'max' has no off-chip memory that could be late; choose low, or a latency of 0.",
        ),
        (
            ("power", "--liberty", "none.lib"),
            "there is no Liberty file 'none.lib'.",
        ),
        (
            ("run", "--design", "baseline"),
            "the baseline has no predictor, so it has no Phase GP; choose low, efficient or max.",
        ),
    ],
)
def test_rejections(program: Program, words: tuple[str, ...], message: str) -> None:
    ended = program("rtl", *words)
    assert (ended.code, ended.out, ended.err) == (2, "", f"error: {message}\n")
    assert list(Path().iterdir()) == []


def test_without_amaranth(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amaranth", None)
    monkeypatch.setattr("adagp.rtl.tools.find_spec", lambda name: None)
    ended = program("rtl", "simulate")
    assert (ended.code, ended.err) == (
        2,
        "error: the hardware is written in Amaranth, which is not installed. Install it with: pip install '.[rtl]'.\n",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("simulate", "--vcd", "nowhere/x.vcd"),
            "cannot write the waveforms to 'nowhere/x.vcd': there is no folder 'nowhere'.",
        ),
        (("simulate", "--vcd", "/dev/full"), "'/dev/full' exists already; give another --vcd."),
        (
            ("run", "--network", "99999999999999999999-3"),
            "a network of 2 widths up to 99,999,999,999,999,999,999 is too large for a simulated chip; at most 64 widths of up "
            "to 4,096 are allowed.",
        ),
        (("run", "--batch", "5000"), "batch is 5000; it must be from 1 to 4,096."),
        (("run", "--picture", "1x5000"), "the picture is 1x5000; its sides must be at most 4,096."),
    ],
)
def test_what_no_simulated_chip_can_do(program: Program, words: tuple[str, ...], message: str) -> None:
    ended = program("rtl", *words)
    assert (ended.code, ended.err) == (2, f"error: {message}\n")


def test_batches_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    batches = [
        {"phase": phase, "equal": True, "different_words": {"layer 1": 0, "kernel": 3}, "cycles": 4792}
        for phase in ("bp", "gp")
    ]
    _print_report({"equal": True, "network": "4-3", "batches": batches}, as_json=False)
    out = capsys.readouterr().out
    assert out.startswith("equal: yes\nnetwork: 4-3\n")
    assert "│ different words │           3 │           3 │" in out
    assert "│ cycles          │       4,792 │       4,792 │" in out


def test_a_comparison_ends_with_a_sentence_and_a_difference_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    _conclude({"equal": True}, as_json=False)
    with pytest.raises(typer.Exit) as ended:
        _conclude({"equal": False}, as_json=False)
    assert ended.value.exit_code == 1
    assert capsys.readouterr().out.splitlines() == [
        "equal: yes",
        "The simulated hardware agrees with the models.",
        "equal: no",
        "The simulated hardware differs from the models.",
    ]
