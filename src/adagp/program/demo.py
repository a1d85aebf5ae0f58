"""The demonstration: backprop and ADA-GP on the embedded digits, over a few seeds, side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from statistics import mean
from typing import Any

from adagp.errors import RunError
from adagp.program.jobs import Job
from adagp.program.run import RunFolder, TrainConfig
from adagp.program.run.record import Epoch, read_whole_run
from adagp.program.train.session import TrainingJob

BATCHES = 44
"""Batches in an epoch of the digits at the default batch size of 32."""


def plan(seeds: int, epochs: int) -> dict[str, list[TrainConfig]]:
    """Return the runs of each method, one per seed.

    `bp short` is the control that ADA-GP must beat: backprop for as many epochs as ADA-GP has BP batches, as if its GP
    batches had been left out. Epochs are short, so quality is sampled often.
    """
    predicted = TrainConfig(method="adagp", epochs=epochs, metrics_every=2)
    backprop = TrainConfig(method="bp", epochs=epochs, metrics_every=2)
    share = predicted.schedule().predicted_share(epochs, BATCHES)
    methods = {
        "bp": backprop,
        "adagp": predicted,
        "bp short": replace(backprop, epochs=max(1, round(epochs * (1 - share)))),
    }
    return {name: [replace(config, seed=seed) for seed in range(seeds)] for name, config in methods.items()}


def prepare_folder(out: Path, *, force: bool) -> None:
    """Raise if the folder holds a demonstration already, unless `force`: then its runs are deleted."""
    runs = [path.parent for path in out.glob("*/config.json")]
    if runs and not force:
        raise RunError(f"'{out}' holds a demonstration already. Give another --out, or --force to make it again.")
    for run in runs:
        rmtree(run)


def run_path(out: Path, name: str, config: TrainConfig) -> Path:
    """Return the folder of one run of a method."""
    return out / f"{name.replace(' ', '-')}-seed{config.seed}"


def training_jobs(methods: Mapping[str, Sequence[TrainConfig]], out: Path) -> list[Job]:
    """Return the runs of all methods as jobs."""
    jobs = []
    for name, configs in methods.items():
        for config in configs:
            path = run_path(out, name, config)
            work, log = TrainingJob(config, path), out / "logs" / f"{path.name}.log"
            jobs.append(Job(f"{name} seed {config.seed}", work, path / "summary.json", log))
    return jobs


def read_summaries(out: Path, name: str, configs: Sequence[TrainConfig]) -> list[dict[str, Any]]:
    """Return the summaries of a method's runs, which are finished."""
    return [RunFolder(run_path(out, name, config)).read_json("summary.json") for config in configs]


def compare(name: str, summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a method's row: means over its runs, with the lowest and highest accuracy."""
    accuracies = [summary["test_accuracy"] for summary in summaries]
    epochs = [epoch for summary in summaries for epoch in read_whole_run(Path(summary["run"]), "compare").epochs]
    return {
        "name": name,
        "epochs": summaries[0]["epochs"],
        "accuracy_mean": mean(accuracies),
        "accuracy_low": min(accuracies),
        "accuracy_high": max(accuracies),
        "bp_batches": summaries[0]["batches"]["bp"],
        "gp_batches": summaries[0]["batches"]["gp"],
        "cosine": _mean_figure(epochs, "cosine"),
        "cosine_previous": _mean_figure(epochs, "cosine_previous"),
    }


def _mean_figure(epochs: Sequence[Epoch], name: str) -> float | None:
    values = [value for epoch in epochs for value in epoch.over_sites(name)]
    return mean(values) if values else None
