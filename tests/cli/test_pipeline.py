import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Program = Callable[..., Any]


def report(program: Program, *arguments: str) -> dict[str, Any]:
    ended = program("pipeline", *arguments, "--json")
    assert ended.code == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found


def test_the_papers_pipelines(program: Program) -> None:
    for name, steps, before, peaks in (
        ("gpipe", 25, 42, [4, 4, 4, 4]),
        ("dapple", 25, 42, [4, 3, 2, 1]),
        ("chimera", 20, 32, [3, 4, 4, 3]),
    ):
        found = report(program, "--schedule", name)
        assert (found["steps"], found["baseline_steps"], found["peak_activations"]) == (steps, before, peaks)
        assert found["speedup"] == before / steps
        assert 0 < found["bubble_share"] < 1


def test_constants_reach_the_timeline(program: Program) -> None:
    assert report(program, "--phases", "BP", "--alpha", "0.1")["steps"] == pytest.approx(21.3)
    assert report(program, "--phases", "BP", "--alpha", "0.1")["baseline_steps"] == 21
    found = report(program, "--phases", "BP", "--forward", "2", "--backward", "3", "--devices", "2")
    assert found["steps"] == 5 * 5


def test_the_text_shows_every_device(program: Program) -> None:
    out = program("pipeline", "--schedule", "chimera").out
    assert "0: F0 F1 ...F2 F4 F3 F5 F6 B6    F7 B7    ...B4    ......B5" in out
    assert "\nOne line per device, time from left to right: F forward, B backward, . idle.\n" in out
    assert "20 steps; bubble 20.0%; at most 4 micro-batches stored on a device; 1.600x speed-up over 32 steps" in out


@pytest.mark.medium
def test_a_model_on_accelerators(program: Program, tmp_path: Path) -> None:
    picture = tmp_path / "chart.svg"
    options = ("--model", "digits_cnn", "--dataset", "digits", "--schedule", "chimera")
    found = report(program, *options, "--plot", str(picture))
    assert picture.is_file()
    assert found["steps"] > 20  # four layers cannot be balanced
    assert found["seconds"] == pytest.approx(found["cycles"] / 200e6)
    assert len(found["peak_activation_bytes"]) == 4
    slow = report(program, *options, "--bandwidth", "0.001", "--latency", "5", "--batch", "64")
    assert slow["steps"] > found["steps"]
    assert "cycles" in program("pipeline", *options).out


@pytest.mark.medium
def test_a_hardware_file_describes_devices_and_links(program: Program, tmp_path: Path) -> None:
    """Options come first, then the file, then links that take no time."""
    path = tmp_path / "chip.toml"
    path.write_text("[array]\ndataflow = 'os'\nclock_mhz = 100\n[links]\nbandwidth_gb_s = 0.01\nlatency_us = 7\n")
    options = ("--model", "digits_cnn", "--dataset", "digits")
    from_file = report(program, *options, "--hardware", str(path))
    assert from_file["seconds"] == from_file["cycles"] / 100e6
    given = ("--bandwidth", "0.02", "--latency", "14", "--dataflow", "os")
    # At twice the clock, twice the bandwidth and half the latency take as many cycles.
    twice = report(program, *options, "--bandwidth", "0.02", "--latency", "3.5", "--dataflow", "os")
    assert twice["cycles"] == pytest.approx(from_file["cycles"], rel=1e-9)
    both = report(program, *options, "--hardware", str(path), *given)
    assert both["cycles"] != from_file["cycles"]


def test_actions_can_be_saved_and_read_again(program: Program, tmp_path: Path) -> None:
    text = program("pipeline", "--schedule", "chimera", "--actions").out
    saved = tmp_path / "mine.txt"
    saved.write_text(text.replace("chimera", "mine"), "utf-8")
    found = report(program, "--schedule", str(saved))
    assert found["steps"] == 20
    assert "speedup" not in found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--schedule", "gpip"),
            "unknown pipeline 'gpip'. Did you mean 'gpipe'? Choose from: chimera, dapple, gpipe, interleaved, zb-h1, zb-v.",
        ),
        (("--schedule", "none.txt"), "cannot read the schedule 'none.txt': No such file or directory."),
        (("--devices", "0"), "--devices is 0; it must be 1 or more."),
        (("--micro-batches", "-1"), "--micro-batches is -1; it must be 1 or more."),
        (
            ("--devices", "5", "--schedule", "chimera"),
            "chimera pairs its devices, two for each stage; 5 is odd. Give an even number.",
        ),
        (("--phases", "GP,XP"), "cannot read the phases 'GP,XP'; write GP and BP, separated by commas."),
        (("--alpha", "-1"), "--alpha is -1.0; it must be 0 or more."),
        (("--backward", "nan"), "--backward is nan; it must be a finite number."),
        (("--hardware", "chip.toml"), "--hardware needs --model."),
        (("--model", "vgg13", "--hardware", "none.toml"), "there is no hardware file none.toml."),
        (("--bandwidth", "1"), "--bandwidth needs --model."),
        (("--model", "vgg13", "--alpha", "1"), "--alpha cannot be combined with --model, which provides the times."),
        (
            ("--model", "vgg13", "--micro-batches", "3"),
            "a batch of 128 samples does not split into 3 equal parts.",
        ),
        (
            ("--model", "vgg13", "--bandwidth", "0"),
            "--bandwidth is 0.0; it must be 0.000001 to 1,000,000,000 (gigabytes), or inf.",
        ),
        (
            ("--model", "vgg13", "--latency", "-2"),
            "--latency is -2.0; it must be 0 or more.",
        ),
        (
            ("--model", "digits_cnn", "--dataset", "digits", "--devices", "5"),
            "4 layers cannot be cut into 5 stages; give 1 to 4.",
        ),
        (("--plot", "chart.bmp"), "cannot plot to 'chart.bmp'; the name must end in .svg, .png, .pdf."),
    ],
)
def test_wrong_options_are_rejected(program: Program, arguments: tuple[str, ...], message: str) -> None:
    ended = program("pipeline", *arguments)
    assert (ended.code, ended.out, ended.err) == (2, "", f"error: {message}\n")
