"""Training runs as parts, several seeds of one configuration as a group, and what groups have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from statistics import mean
from typing import TYPE_CHECKING, Any

from adagp.errors import RunError
from adagp.program.figures.style import COLOURS
from adagp.program.reproduce.experiment import READS_DATA, Part, Workspace
from adagp.program.run.config import TrainConfig
from adagp.program.run.documents import AMOUNT, COUNT, MODERATE, Both, Fields, ListOf, Plain, TableOf, record_of
from adagp.program.run.folder import RunFolder
from adagp.program.run.record import read_whole_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUMMARY = "summary.json"
LATE, LAST = 6, 9
"""Ranks of training runs in the queue of a campaign. Simulations have rank 0 and tables of the papers 1 to 5: what decides most
verdicts comes first, runs of many epochs and seeds come last."""
SHORT_CIFAR: dict[str, Any] = {
    "dataset": "cifar10",
    "validation": 0.975,
    "test_samples": 1000,
    "batch_size": 32,
    "epochs": 5,
    "metrics_every": 10,
    "lr": 0.02,
}
"""CIFAR-10 at the short budget: 1,250 training images, evaluated on 1,000 others. At the published rate of 0.001 so few batches
would learn next to nothing."""
PRECISION = ("mantissa_", "share_w")
"""How the names of figures on the width of mantissas begin."""
BATCH_PHASES = ("warmup", "bp", "gp")
KEPT = (
    "test_accuracy",
    "best_test_accuracy",
    "float_test_accuracy",
    "test_loss",
    "test_bleu",
    "test_map50",
    "seconds_by_phase",
    "batches",
    "epochs",
    "parameters",
)
"""What a part keeps of a run's summary; all else is in its run folder."""
_NUMBER_OR_NONE = Plain("a number or null", lambda value: value is None or MODERATE.accepted(value))
TRAINED = Fields(
    {
        "curves": TableOf(ListOf(_NUMBER_OR_NONE)),
        "by_epoch": ListOf(record_of({"batches": TableOf(COUNT), "sites": TableOf(TableOf(_NUMBER_OR_NONE))})),
        "batches": record_of(dict.fromkeys(("bp", "gp", "guarded"), COUNT), others=COUNT),
        "seconds_by_phase": Both(
            TableOf(AMOUNT),
            Plain(
                "a table with seconds of batches above 0",
                lambda table: sum(table.get(phase, 0.0) for phase in BATCH_PHASES) > 0,
            ),
        ),
    },
    others=_NUMBER_OR_NONE,
    required=("batches", "seconds_by_phase"),
)


def train_run(part: Part, workspace: Workspace) -> dict[str, Any] | None:
    """Train one run into a run folder, or continue with it where it was left."""
    folder = RunFolder(workspace.run_folder(part))
    summary = folder.read_json(SUMMARY) if (folder.path / SUMMARY).is_file() else _train(part, workspace, folder)
    if summary is None:
        return None
    folder.checkpoint.unlink(missing_ok=True)  # a predictor's is large, and the run is over
    return {name: summary[name] for name in KEPT if name in summary} | _kept_of_epochs(folder)


def read_epochs(part: Part, workspace: Workspace) -> dict[str, Any]:
    """Return the result of a finished run, which must have its figures by epoch: earlier versions did not keep them."""
    result = workspace.result(part)
    if "by_epoch" not in result:
        raise RunError(f"'{workspace.result_file(part)}' has no figures by epoch. Delete the file to compute it again.")
    return result


def _kept_of_epochs(folder: RunFolder) -> dict[str, Any]:
    """Return the mean cosine of predicted and true gradients over epochs and sites, and curves over the epochs.

    There are curves of the training loss, the test accuracy and the predictor's mean squared error over the sites, None in
    epochs without a measurement. Further fields by epoch are the batches, and the widths of a run in few bits.
    """
    rows = read_whole_run(folder.path, "look at").epochs
    cosines = [value for row in rows for value in row.over_sites("cosine")]
    curves = {
        "loss": [row.train_loss for row in rows],
        "accuracy": [row.test_value for row in rows],
        "mse": [_mean_or_none(row.over_sites("mse")) for row in rows],
    }
    by_epoch = [{"batches": dict(row.batches), "sites": _of_precision(row.sites)} for row in rows]
    return {"cosine": _mean_or_none(cosines), "curves": curves, "by_epoch": by_epoch}


def _of_precision(sites: Mapping[str, Mapping[str, float | None]]) -> dict[str, dict[str, float | None]]:
    """Return the figures of sites on the width of their mantissas; none for a run in single precision."""
    chosen = {
        site: {name: value for name, value in figures.items() if name.startswith(PRECISION)}
        for site, figures in sites.items()
    }
    return {site: figures for site, figures in chosen.items() if figures}


def _mean_or_none(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _train(part: Part, workspace: Workspace, folder: RunFolder) -> dict[str, Any] | None:
    from adagp.program.train.session import TrainingJob

    options = {name: value for name, value in part.options.items() if name != READS_DATA}
    config = replace(TrainConfig.from_dict(options, part.key), device=workspace.device)
    return TrainingJob(config, folder.path, workspace.data_dir)(workspace.stop)


@dataclass(frozen=True)
class RunGroup:
    """Runs of one configuration, one per seed."""

    parts: tuple[Part, ...]

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the first of them."""
        return self.parts[0].options

    @property
    def first(self) -> "RunGroup":
        """The first seed alone."""
        return RunGroup(self.parts[:1])

    @property
    def extent(self) -> str:
        """How much was trained, in words: seeds, length and, if only a part was used, the share of the training images."""
        seeds = "one seed" if len(self.parts) == 1 else f"{len(self.parts)} seeds"
        length = (
            f"{self.options['batches']} batches" if "batches" in self.options else f"{self.options['epochs']} epochs"
        )
        part = f", {1 - self.options['validation']:.3g} of the training images" if "validation" in self.options else ""
        return f"{seeds}, {length}{part}"

    def values(self, workspace: Workspace, name: str = "test_accuracy", scale: float = 100.0) -> list[float]:
        """Return one figure of every run, by default the accuracy after the last epoch in percent."""
        return [scale * _figure(workspace, part, name) for part in self.parts]

    def mean(self, workspace: Workspace, name: str = "test_accuracy", scale: float = 100.0) -> float:
        """Return the mean of one figure over the seeds."""
        return mean(self.values(workspace, name, scale))

    def seconds(self, workspace: Workspace) -> float:
        """Return the mean seconds that a run spent in its batches, data and evaluation aside."""
        tables = (workspace.result(part)["seconds_by_phase"] for part in self.parts)
        return mean(sum(float(table.get(phase, 0.0)) for phase in BATCH_PHASES) for table in tables)

    def row(self, workspace: Workspace, name: str = "test_accuracy") -> dict[str, Any]:
        """Return the group's line of a table; all of its figures are measured."""
        accuracies = self.values(workspace, name)
        batches = workspace.result(self.parts[0])["batches"]
        return {
            **{key: self.options.get(key) for key in ("dataset", "model", "width", "method", "ratio", "epochs")},
            "seeds": len(self.parts),
            "bp_batches": batches["bp"],
            "gp_batches": batches["gp"] + batches["guarded"],
            "accuracy_percent": mean(accuracies),
            "accuracy_lowest": min(accuracies),
            "accuracy_highest": max(accuracies),
            "batch_seconds": self.seconds(workspace),
        }


def _figure(workspace: Workspace, part: Part, name: str) -> float:
    """Return one figure of a run; one that was not finite, in a run that diverged, is not a number."""
    result = workspace.result(part)
    if name not in result:
        raise RunError(
            f"cannot read '{workspace.result_file(part)}': '{name}' is missing. Delete the file to compute it again."
        )
    return nan if result[name] is None else float(result[name])


def group(seeds: int, weight: float = 1.0, rank: int = LATE, **options: Any) -> RunGroup:
    """Return the runs of a configuration; invalid options raise an error here. `rank` is the place in the queue."""
    chosen = {name: value for name, value in options.items() if value is not None}
    config = TrainConfig.from_dict(chosen, "reproduce")
    label = f"{config.dataset}-{config.model}-{config.method}"
    if config.dataset != "digits":
        chosen[READS_DATA] = True
    return RunGroup(
        tuple(
            Part(train_run, f"{label}-s{seed}", {**chosen, "seed": seed}, weight, TRAINED, rank)
            for seed in range(seeds)
        )
    )


def all_parts(groups: Sequence[RunGroup] | Mapping[Any, RunGroup]) -> list[Part]:
    """Return the parts of several groups."""
    every = groups.values() if isinstance(groups, Mapping) else groups
    return [part for run_group in every for part in run_group.parts]


def mean_and_range(values: Sequence[float]) -> str:
    """Return a mean with its range for reading."""
    text = f"{mean(values):.2f}"
    return text if len(values) == 1 else f"{text} ({min(values):.2f} to {max(values):.2f})"


def accuracy_bars(
    axes: "Axes", workspace: Workspace, bars: Mapping[str, RunGroup], name: str = "test_accuracy"
) -> None:
    """Draw a bar for each group, with the range over its seeds."""
    for position, run_group in enumerate(bars.values()):
        values = run_group.values(workspace, name)
        middle = mean(values)
        error = [[middle - min(values)], [max(values) - middle]]
        bar = axes.bar(position, middle, 0.7, yerr=error, capsize=3, color=COLOURS[0])
        axes.bar_label(bar, fmt="%.1f", padding=3, fontsize=8)
    axes.set_xticks(range(len(bars)), list(bars), rotation=30, ha="right")
    axes.set(ylabel="measured accuracy, %", ylim=(0, 110))
