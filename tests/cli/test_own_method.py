"""A source of the user's own, named as package.module:Class, through all commands; and what its silence leads to."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adagp.core.methods import METHODS

Program = Callable[..., Any]
SOURCE = """
from pathlib import Path

import adagp

Path("imported").touch()

class Damped(adagp.Source):
    "The last true gradient, damped."

    learns = True
    own_options = (adagp.Option("damping", float, 0.5, "Factor on the last true gradient.", low=0),)
    own_schedule = "1:1"
    accelerator = adagp.AcceleratorWork()

    def __init__(self, damping=0.5):
        self.damping, self.last = damping, {}

    def observe(self, sites, gradients):
        self.last.update({site.index: gradient.clone() for site, gradient in zip(sites, gradients)})

    def produce(self, sites):
        return [self.last[site.index] * self.damping if site.index in self.last else None for site in sites]

class Silent(Damped):
    "One that does not say what it costs."

    own_options = ()
    accelerator = None
"""
DAMPED, SILENT = "users_source:Damped", "users_source:Silent"


@pytest.fixture(autouse=True)
def users_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "users_source.py").write_text(SOURCE)
    monkeypatch.setattr(METHODS, "_things", dict(METHODS._things))
    yield
    sys.modules.pop("users_source", None)


@pytest.mark.medium
def test_it_is_trained_replayed_and_reported(program: Program, short: tuple[str, ...], python: Any) -> None:
    ended = program("train", *short, "--method", DAMPED, "--damping", "0.25", "--out", "run", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["batches"]["gp"] > 0
    config = json.loads(Path("run/config.json").read_text())
    assert (config["method"], config["damping"]) == (DAMPED, 0.25)

    replayed = program("simulate", "--from-run", "run", "--json")
    assert replayed.code == 0, replayed.err
    assert json.loads(replayed.out)["designs"]["max"]["speedup"] > 1

    Path("imported").unlink()
    reported = python("-m", "adagp", "report", "run", "--out", "page.html")  # a process that has not seen the source
    assert reported.returncode == 0, reported.stderr
    assert f"method &#39;{DAMPED}&#39; is not loaded; use adagp simulate --from-run to replay it." in Path(
        "page.html"
    ).read_text("utf-8")
    assert not Path("imported").exists(), "a page imports nothing that a folder names"


@pytest.mark.medium
@pytest.mark.usefixtures("forked_jobs")
def test_it_is_compared(program: Program) -> None:
    options = ("--seeds", "1", "--batches", "12", "--batch-size", "200", "--set", "width=0.25", "--regimes", "batches")
    methods = ("--methods", f"bp,{DAMPED},half:{DAMPED}@2:1", "--set", "half.damping=0.75", "--warmup-batches", "2")
    ended = program("compare", *methods, *options, "--large-batch", "0", "--jobs", "2", "--out", "compared", "--json")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert document["methods"] == ["bp", DAMPED, "half"]
    configs = [json.loads((Path(run["run"]) / "config.json").read_text()) for run in document["runs"]]
    assert [(one["method"], one.get("damping"), one["ratio"]) for one in configs[1:]] == [
        (DAMPED, 0.5, None),  # its own schedule
        (DAMPED, 0.75, "2:1"),
    ]


def test_one_that_does_not_say_its_cost_is_trained_but_not_simulated(program: Program, short: tuple[str, ...]) -> None:
    assert program("train", *short, "--method", SILENT, "--out", "run").code == 0
    for arguments in (["--from-run", "run"], ["digits_cnn", "--dataset", "digits", "--method", SILENT]):
        ended = program("simulate", *arguments)
        assert (ended.code, ended.err) == (
            2,
            f"error: method '{SILENT}' declares no cost on an accelerator, so it cannot be simulated. "
            "Declare it: `accelerator = AcceleratorWork(...)` in the class of its source (see adagp.core.methods).\n",
        )


@pytest.mark.parametrize(
    ("source", "beginning"),
    [
        ("nonsense", "unknown source 'nonsense'. Did you mean 'noise'? Choose from: average, control, dfa, dni, "),
        ("nowhere.module:Source", "cannot import 'nowhere.module' of 'nowhere.module:Source': ModuleNotFoundError: "),
    ],
)
def test_what_is_not_known_is_not_costed_as_nothing(program: Program, source: str, beginning: str) -> None:
    ended = program("simulate", "two_layer_cnn", "--source", source, "--ratio", "1:1")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"error: {beginning}")


def test_a_skipped_run_is_replayed_without_a_predictor(program: Program, short: tuple[str, ...]) -> None:
    assert program("train", *short, "--method", "skip", "--out", "run").code == 0
    designs = json.loads(program("simulate", "--from-run", "run", "--json").out)["designs"]
    cycles = {name: row["cycles"] for name, row in designs.items()}
    batches = json.loads(Path("run/summary.json").read_text())["batches"]
    share = batches["bp"] / (batches["bp"] + batches["gp"])
    # No design runs a predictor, so all of them take what the BP batches take on the plain accelerator.
    assert set(cycles.values()) - {cycles["baseline"]} == {round(cycles["baseline"] * share)}
