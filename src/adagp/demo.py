"""The demonstration: backprop and ADA-GP on the embedded digits, over a few seeds, side by side."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from adagp.errors import RunError
from adagp.run import TrainConfig
from adagp.run.record import Epoch, read_whole_run
from adagp.train.loop import News
from adagp.train.session import Session

BATCHES = 44
"""Batches in an epoch of the digits at the default batch size of 32."""


class Quiet:
    """Tells each finished epoch to somebody."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def on_batch(self, news: News) -> None:
        """Say nothing."""

    def on_epoch(self, row: dict[str, Any]) -> None:
        """Pass it on."""
        self._tell()


def plan(seeds: int, epochs: int) -> dict[str, list[TrainConfig]]:
    """Return the runs of each contender, one a seed.

    `bp short` is the control that ADA-GP must beat: backprop for as many epochs as ADA-GP has BP batches, as if its GP
    batches had been left out. Epochs are short, so quality is sampled often.
    """
    predicted = TrainConfig(method="adagp", epochs=epochs, metrics_every=2)
    backprop = TrainConfig(method="bp", epochs=epochs, metrics_every=2)
    share = predicted.schedule().predicted_share(epochs, BATCHES)
    contenders = {
        "bp": backprop,
        "adagp": predicted,
        "bp short": replace(backprop, epochs=max(1, round(epochs * (1 - share)))),
    }
    return {name: [replace(one, seed=seed) for seed in range(seeds)] for name, one in contenders.items()}


def refuse_existing(out: Path, *, force: bool) -> None:
    """Refuse a folder that holds a demonstration already, unless `force`."""
    if any(out.glob("*/config.json")) and not force:
        raise RunError(f"'{out}' holds a demonstration already. Give another --out, or --force to make it anew.")


def carry_out(config: TrainConfig, path: Path, tell: Callable[[], None]) -> dict[str, Any]:
    """Train one run into the folder `path` and return its summary. One thread: such a small net is slower with two."""
    session = Session(config, threads=1)
    summary = session.run(session.start(path, force=True), Quiet(tell))
    assert summary is not None  # nobody stops it
    return summary


def run_path(out: Path, name: str, config: TrainConfig) -> Path:
    """Return the folder of one run of a contender."""
    return out / f"{name.replace(' ', '-')}-seed{config.seed}"


def compare(name: str, summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a contender's row: means over its runs, with the lowest and highest accuracy."""
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
