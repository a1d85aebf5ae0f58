"""The demonstration: backprop and ADA-GP on the embedded digits, over a few seeds, side by side."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from adagp.errors import RunError
from adagp.lab.figures import draw, figures_of
from adagp.run import RunFolder, TrainConfig
from adagp.train.loop import News
from adagp.train.session import Session

METHODS = ("bp", "adagp")


class _Quiet:
    """Tells each finished epoch to somebody."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def on_batch(self, news: News) -> None:
        """Say nothing."""

    def on_epoch(self, row: dict[str, Any]) -> None:
        """Pass it on."""
        self._tell()


def plan(seeds: int, epochs: int) -> list[TrainConfig]:
    """Return the runs of the demonstration: each method with each seed. Epochs are short, so quality is sampled often."""
    return [
        TrainConfig(method=method, seed=seed, epochs=epochs, metrics_every=2)
        for seed in range(seeds)
        for method in METHODS
    ]


def refuse_existing(out: Path, *, force: bool) -> None:
    """Refuse a folder that holds a demonstration already, unless `force`."""
    if any(out.glob("*/config.json")) and not force:
        raise RunError(f"'{out}' holds a demonstration already. Give another --out, or --force to make it anew.")


def carry_out(configs: Sequence[TrainConfig], out: Path, tell: Callable[[], None]) -> Iterator[dict[str, Any]]:
    """Train all runs into folders below `out`; yield their summaries. One thread: such a small net is slower with two."""
    torch.set_num_threads(1)
    for config in configs:
        session = Session(config)
        loop = session.start(out / f"{config.method}-seed{config.seed}", force=True)
        summary = session.run(loop, _Quiet(tell))
        assert summary is not None  # nobody stops it
        yield summary


def compare(summaries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each method: means over the seeds, with the lowest and highest accuracy."""
    rows = []
    for method in METHODS:
        group = [summary for summary in summaries if summary["method"] == method]
        accuracies = [summary["test_accuracy"] for summary in group]
        epochs = [row for summary in group for row in RunFolder(Path(summary["run"])).rows()]
        rows.append(
            {
                "method": method,
                "accuracy_mean": mean(accuracies),
                "accuracy_low": min(accuracies),
                "accuracy_high": max(accuracies),
                "bp_batches": group[0]["batches"]["bp"],
                "gp_batches": group[0]["batches"]["gp"],
                "guarded_batches": sum(summary["batches"]["guarded"] for summary in group),
                "seconds_mean": mean(summary["seconds"] for summary in group),
                "cosine": _mean_figure(epochs, "cosine"),
                "cosine_previous": _mean_figure(epochs, "cosine_previous"),
            }
        )
    return rows


def pictures(out: Path) -> list[Path]:
    """Draw the runs of the first seed."""
    return draw([out / f"{method}-seed0" for method in METHODS], out / "pictures")


def _mean_figure(rows: Sequence[dict[str, Any]], key: str) -> float | None:
    values = [value for row in rows for value in figures_of(row, key)]
    return mean(values) if values else None
