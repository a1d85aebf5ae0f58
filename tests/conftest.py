"""Fixtures and settings of all tests."""

import gc
import importlib.util
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import settings
from tests.fuzzing import SLOW, VARIABLE, is_repeated

import adagp
from adagp.program.run import RunFolder, TrainConfig
from adagp.program.run.metrics import ACCURACY, Metric

if TYPE_CHECKING:
    from playwright.sync_api import Browser

torch.set_num_threads(1)  # the tests run in several processes; small tensors gain nothing from threads
# The same examples on any machine, slow or not.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("fast", deadline=None, derandomize=True, max_examples=20)
settings.load_profile("steady")

WHOLE_FILE_MARK = re.compile(r"^pytestmark = (?:\[[^]]*)?pytest\.mark\.(medium|slow)\b", re.MULTILINE)
"""The marker that a file gives to all of its tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for longer fuzzing."""
    parser.addoption(
        "--fuzz", type=int, default=0, metavar="N", help="Try N examples of every fuzzer, others each time."
    )


def pytest_configure(config: pytest.Config) -> None:
    """Try fewer examples in `make test-fast`, more with `--fuzz`."""
    if config.getoption("fuzz"):
        os.environ[VARIABLE] = str(config.getoption("fuzz"))
    if config.getoption("markexpr") == "not slow and not medium":
        settings.load_profile("fast")
    if config.getoption("markexpr") == "slow":
        os.environ[SLOW] = "1"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let `make test-slow` run the fuzzers of `make test`, too, which try more examples there."""
    if config.getoption("markexpr") == "slow":
        for item in items:
            if isinstance(item, pytest.Function) and is_repeated(item.function):
                item.add_marker(pytest.mark.slow)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files of which the Makefile's marker expressions select no test: the imports alone take half a minute."""
    expression = config.getoption("markexpr")
    if not expression or collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text("utf-8")
    if expression == "slow":
        return None if "mark.slow" in text or "tests.marks" in text or "tests.fuzzing" in text else True
    mark = WHOLE_FILE_MARK.search(text)
    return True if mark and f"not {mark[1]}" in expression.split(" and ") else None


Python = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def python() -> Python:
    """Return a function that runs a fresh interpreter with the adagp under test, and returns the completed process."""
    environment = {**os.environ, "PYTHONPATH": str(Path(adagp.__file__).parents[1]), "OMP_NUM_THREADS": "1"}

    def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    return run


@contextmanager
def no_garbage() -> Iterator[None]:
    """Collect all garbage now and none in forks that start meanwhile.

    When the store of an earlier test's process group is collected, it joins its thread. A fork has no such thread: it would
    abort or hang whenever its garbage collector runs.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@pytest.fixture
def forked_jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run jobs in forks of this process, which need not import torch again; `tests/program/test_jobs.py` tests spawning."""
    monkeypatch.setattr("adagp.program.jobs.get_context", lambda kind: multiprocessing.get_context("fork"))
    with no_garbage():
        yield


@pytest.fixture(autouse=True)
def no_model_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace and measure models again in each test, and leave the user's cache alone."""
    monkeypatch.setattr("adagp.core.cache.models_folder", lambda: None)


Thing = tuple[str, tuple[float, float, float, float], bool]
"""Class, box (xmin, ymin, xmax, ymax; VOC's pixels, from 1), and whether it is difficult."""
WriteDevkit = Callable[..., Path]


def annotation(size: tuple[int, int], things: Sequence[Thing]) -> str:
    """Return VOC's XML for a picture of `size` (width, height)."""
    objects = "".join(
        f"<object><name>{kind}</name><difficult>{int(difficult)}</difficult><bndbox><xmin>{box[0]}</xmin>"
        f"<ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox></object>"
        for kind, box, difficult in things
    )
    width, height = size
    return f"<annotation><size><width>{width}</width><height>{height}</height></size>{objects}</annotation>"


@pytest.fixture
def write_devkit(tmp_path: Path) -> WriteDevkit:
    """Return a function that writes a devkit of small pictures below tmp_path, and returns its folder.

    `train` and `val` give the things in each picture by its name; a thing is painted as a rectangle in its class's colour.
    """
    from PIL import Image, ImageDraw

    def write(
        train: Mapping[str, Sequence[Thing]], val: Mapping[str, Sequence[Thing]], size: tuple[int, int] = (64, 48)
    ) -> Path:
        root = tmp_path / "VOCdevkit" / "VOC2012"
        for folder in ("ImageSets/Main", "Annotations", "JPEGImages"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        for split, pictures in (("train", train), ("val", val)):
            (root / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{name}\n" for name in pictures))
            for name, things in pictures.items():
                (root / "Annotations" / f"{name}.xml").write_text(annotation(size, things))
                picture = Image.new("RGB", size, (30, 60, 90))
                for kind, (left, top, right, bottom), _ in things:
                    colour = tuple(ord(letter) * 2 % 256 for letter in kind[:3])
                    ImageDraw.Draw(picture).rectangle((left - 1, top - 1, right - 1, bottom - 1), fill=colour)
                picture.save(root / "JPEGImages" / f"{name}.jpg", quality=95)
        return root.parent

    return write


WriteRun = Callable[..., Path]
SITES = ("conv1", "conv2", "fc")


def epoch_row(epoch: int, config: TrainConfig, metric: Metric, best: float, pace: float) -> dict[str, Any]:
    """Return the row of one epoch of ten batches; a GP batch takes half the time of a BP batch."""
    predicts = config.method != "bp" and epoch > 0
    gp = 5 if predicts else 0
    warmup = 10 if config.method != "bp" and not predicts else 0
    seconds = {"data": 0.1, "bp": pace * (10 - gp - warmup), "gp": pace * gp / 2, "warmup": pace * warmup}
    figures = {
        "cosine": 0.1 * (epoch + 1),
        "norm_ratio": 0.5,
        "mse": 10.0 ** -(epoch + 2),
        "mape": 1.5,
        "cosine_previous": 0.3,
    }
    nothing = dict.fromkeys(figures)
    progress = (epoch + 1) / config.epochs
    value = best * progress if metric.higher_is_better else best / progress
    return {
        "epoch": epoch,
        "label": "backprop" if config.method == "bp" else "1:1" if predicts else "warm-up",
        "train_loss": 2.0 / (epoch + 1),
        f"train_{metric.name}": value,
        "test_loss": 2.2 / (epoch + 1),
        f"test_{metric.name}": value,
        "lr": config.lr,
        "batches": {"warmup": warmup, "bp": 10 - gp, "gp": gp, "guarded": 0},
        "answers": {},
        "seconds": {**{name: value for name, value in seconds.items() if value}, "evaluation": 3.0},
        "sites": dict.fromkeys(SITES, nothing if config.method == "bp" else figures),
    }


def writer(root: Path) -> WriteRun:
    """Return a function that writes a run of the digits below `root`, without training, and returns its folder.

    The accuracy rises linearly to `best` in the last epoch; `pace` is the seconds of a BP batch. The first of `metrics`, if
    they are given, takes the place of the accuracy; one that shall be low falls to `best`.
    """

    def write(
        name: str,
        *,
        best: float = 0.9,
        pace: float = 0.1,
        finished: bool = True,
        done: int | None = None,
        metrics: tuple[Metric, ...] = (),
        **options: Any,
    ) -> Path:
        settings: dict[str, Any] = {"method": "adagp", "epochs": 4, **options}
        config = TrainConfig(**settings)
        folder = RunFolder(root / name)
        folder.path.mkdir(parents=True)
        more = {"metrics": [asdict(metric) for metric in metrics]} if metrics else {}
        folder.write_json("config.json", {**config.as_dict(), "data_dir": None, "command": config.command(), **more})
        folder.write_json("versions.json", {})
        count = config.epochs if done is None else done
        first = metrics[0] if metrics else ACCURACY
        folder.write_rows([epoch_row(epoch, config, first, best, pace) for epoch in range(count)])
        if finished:
            results = {f"test_{metric.name}": best for metric in metrics or (ACCURACY,)}
            folder.write_json("summary.json", {"method": config.method, **results})
        return folder.path

    return write


@pytest.fixture(scope="session")
def run_writer() -> Callable[[Path], WriteRun]:
    """Return `writer`."""
    return writer


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Return the function that writes runs below tmp_path."""
    return writer(tmp_path)


@pytest.fixture
def rewrite() -> Callable[[Path, int, dict[str, Any]], None]:
    """Return a function that changes one row of a run's metrics, numbers that are not finite and all."""

    def change(run: Path, place: int, values: dict[str, Any]) -> None:
        path = run / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows[place] |= values
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return change


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic")
"""Stop the browser from making requests of its own."""


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """Return headless Chromium; without one, skip the test, or fail if ADAGP_BROWSER_TEST=required."""
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    reason = None if program else f"none of {', '.join(BROWSERS)} is installed"
    if importlib.util.find_spec("playwright") is None:
        reason = "playwright is not installed"
    if reason is not None:
        if os.environ.get("ADAGP_BROWSER_TEST") == "required":
            pytest.fail(f"the browser test is required, but {reason}")
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield running
        running.close()


@pytest.fixture
def screenshots(request: pytest.FixtureRequest) -> Path:
    """Return the folder of screenshots, for people to look at."""
    folder = request.config.rootpath / "runs" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
