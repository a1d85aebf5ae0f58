"""Run folders written by hand, without training."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adagp.report.page import write_report
from adagp.run import RunFolder, TrainConfig

WriteRun = Callable[..., Path]
SITES = ("conv1", "conv2", "fc")


def metrics(epoch: int, config: TrainConfig, accuracy: float, pace: float) -> dict[str, Any]:
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
    return {
        "epoch": epoch,
        "label": "backprop" if config.method == "bp" else "1:1" if predicts else "warm-up",
        "train_loss": 2.0 / (epoch + 1),
        "train_accuracy": accuracy,
        "test_loss": 2.2 / (epoch + 1),
        "test_accuracy": accuracy,
        "lr": config.lr,
        "batches": {"warmup": warmup, "bp": 10 - gp, "gp": gp, "guarded": 0},
        "answers": {},
        "seconds": {**{name: value for name, value in seconds.items() if value}, "evaluation": 3.0},
        "sites": dict.fromkeys(SITES, nothing if config.method == "bp" else figures),
    }


def run_writer(root: Path) -> WriteRun:
    """Return a function that writes a run of the digits below `root` and returns its folder.

    The accuracy rises linearly to `best` in the last epoch; `pace` is the seconds of a BP batch.
    """

    def write(
        name: str,
        *,
        best: float = 0.9,
        pace: float = 0.1,
        finished: bool = True,
        done: int | None = None,
        **options: Any,
    ) -> Path:
        config = TrainConfig(**({"epochs": 4} | options))
        folder = RunFolder(root / name)
        folder.path.mkdir(parents=True)
        folder.write_json("config.json", {**config.as_dict(), "data_dir": None, "command": config.command()})
        folder.write_json("versions.json", {})
        count = config.epochs if done is None else done
        folder.write_rows([metrics(epoch, config, best * (epoch + 1) / config.epochs, pace) for epoch in range(count)])
        if finished:
            folder.write_json("summary.json", {"method": config.method, "test_accuracy": best})
        return folder.path

    return write


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Return the function that writes runs below tmp_path."""
    return run_writer(tmp_path)


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with runs of three methods, three seeds each."""
    root = tmp_path_factory.mktemp("report") / "study"
    write = run_writer(root)
    for seed in range(3):
        write(f"bp-{seed}", method="bp", seed=seed, best=0.9 + 0.01 * seed)
        write(f"adagp-{seed}", seed=seed, best=0.85 + 0.02 * seed)
        write(f"remap-{seed}", method="remap", seed=seed, best=0.8 + 0.01 * seed)
    return root


@pytest.fixture(scope="session")
def study_page(study: Path) -> Path:
    """Return the page about the study."""
    out = study.parent / "report.html"
    assert write_report([study], out) == 9
    return out


@pytest.fixture
def rewrite() -> Callable[[Path, int, dict[str, Any]], None]:
    """Return a function that changes one row of a run's metrics, numbers that are not finite and all."""

    def change(run: Path, place: int, values: dict[str, Any]) -> None:
        path = run / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows[place] |= values
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return change
