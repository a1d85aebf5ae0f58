import csv
import json
from pathlib import Path

import pytest
from tests.cli.conftest import Program

SMALL = ("--array", "8x8..16x16", "--buffer", "64k..256k", "--dataflow", "ws,os", "--epochs", "3")


@pytest.mark.medium
def test_table_files_and_picture(program: Program, tmp_path: Path) -> None:
    shown = program("explore", "two_layer_cnn", *SMALL, "--out", "all.csv", "--plot", "front.png")
    assert shown.code == 0
    assert "of 96 designs on the Pareto front" in shown.out
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    assert len(rows) == 4 * 3 * 2 * 4
    assert (tmp_path / "front.png").stat().st_size > 10_000
    found = json.loads(program("explore", "two_layer_cnn", *SMALL, "--json").out)
    front = [row for row in rows if row["pareto"] == "1"]
    assert (found["points"], found["objectives"]) == (96, ["cycles", "energy", "area"])
    assert sorted(int(row["cycles"]) for row in front) == [point["cycles"] for point in found["front"]]


def test_rows_of_several_models_and_data_sets(program: Program) -> None:
    axes = ("--array", "12x15,4x4", "--dataflow", "ws,rs", "--buffer", "64k", "--epochs", "9")
    shown = program("explore", "two_layer_cnn,resnet20", "--dataset", "cifar10,cifar100", *axes, "--rows")
    rows = list(csv.DictReader(shown.out.splitlines()))
    assert len(rows) == 2 * 2 * 2 * 2 * 4
    assert {row["buffer_kb"] for row in rows} == {"64.0"}
    found = json.loads(program("explore", "two_layer_cnn", *axes, "--rows", "--json").out)
    assert [{name: str(value) for name, value in row.items()} for row in found] == [
        row for row in rows if (row["model"], row["dataset"]) == ("two_layer_cnn", "cifar10")
    ]


def test_a_field_of_a_hardware_file_is_varied(program: Program, tmp_path: Path) -> None:
    (tmp_path / "chip.toml").write_text('[array]\nsize = "4x4"\n')
    axes = (
        "--hardware",
        "chip.toml",
        "--vary",
        "vector.lanes=16..64",
        "--buffer",
        "64k",
        "--dataflow",
        "ws",
        "--design",
        "max",
    )
    rows = list(csv.DictReader(program("explore", "two_layer_cnn", *axes, "--epochs", "3", "--rows").out.splitlines()))
    assert {row["vector.lanes"] for row in rows} == {"16.0", "32.0", "64.0"}
    cycles = [int(row["cycles"]) for row in rows if row["design"] == "max"]
    assert cycles == sorted(cycles, reverse=True)
    assert cycles[0] > cycles[-1]
    ended = program("explore", "two_layer_cnn", "--vary", "vector.lane=16")
    assert ended.code == 2
    assert "vector.lane" in ended.err


def test_sweep_is_deprecated(program: Program) -> None:
    names = ("--models", "two_layer_cnn", "--datasets", "cifar10", "--dataflows", "ws", "--designs", "max")
    ended = program("sweep", *names)
    assert ended.err.strip() == "adagp sweep is deprecated; use adagp explore MODEL,MODEL --rows."
    assert len(ended.out.splitlines()) == 1 + 2  # the baseline comes with each design


def test_port_is_short_for_buffer_port(program: Program) -> None:
    few = (
        "explore",
        "two_layer_cnn",
        "--array",
        "4x4",
        "--buffer",
        "64k",
        "--dataflow",
        "ws",
        "--design",
        "max",
        "--json",
    )
    short, long = (json.loads(program(*few, flag, "64,512").out) for flag in ("--port", "--buffer-port"))
    assert short == long
    assert short["points"] == 2


def test_one_objective_has_the_least(program: Program) -> None:
    found = json.loads(program("explore", "two_layer_cnn", *SMALL, "--objective", "area", "--json").out)
    (best, *others) = found["front"]
    assert (best["array"], best["buffer_kb"]) == ("8x8", 64)
    assert {point["area_mm2"] for point in others} <= {best["area_mm2"]}


def test_a_preset_stands_for_the_axes_that_are_not_given(program: Program) -> None:
    found = json.loads(program("explore", "two_layer_cnn", "--preset", "gemmini", "--clock", "500", "--json").out)
    assert found["points"] == 4
    assert {(one["array"], one["word_bits"], one["mhz"]) for one in found["front"]} == {("16x16", 8, 500)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--array", "16x16..8x8"), "--array 16..8 runs backwards; write the smaller value first."),
        (("--word-bits", "12"), "word width 12 is not in the energy table; choose from [8, 16, 32] bits."),
        (("--workers", "0"), "--workers is 0; it must be from 1 to 256."),
        (("--out", "there.csv"), "'there.csv' exists already; give another name, or --force to overwrite it."),
        (("--out", "no/all.csv"), "cannot write 'no/all.csv': there is no folder 'no'."),
        (("--plot", "x.svg", "--objective", "area"), "a plot of the front needs at least two objectives."),
        (("--preset", "tpu"), "unknown preset 'tpu'. Did you mean 'tpu-v1'? Choose from: edge, eyeriss, gemmini, tpu-v1."),
        (("--classes", "1"), "--classes is 1; it must be 2 to 1,000,000."),
        (("--image-size", "0"), "--image-size is 0; it must be 1 or more."),
        (("--input", "3x8x8", "--channels", "3"),
         "--input and --image-size or --channels both set the shape; give one or the other."),
    ],
)  # fmt: skip
def test_what_cannot_be_is_rejected(program: Program, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "there.csv").write_text("mine")
    ended = program("explore", "two_layer_cnn", *arguments)
    assert (ended.code, ended.err.strip(), ended.out) == (2, f"error: {message}", "")
    assert (tmp_path / "there.csv").read_text() == "mine"
