"""CAMEL: a reversible branch next to a frozen backbone, with controls; lifetimes of data; the chip against SRAM."""

from collections.abc import Mapping, Sequence
from functools import cache
from math import nan
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from adagp.hw.dataflows import Array
from adagp.hw.systems import EpochRecord, SystemOptions, run_on_system
from adagp.papers.camel.hardware import CLOCK_HZ, lifetimes, product_cycles, published_shape, refreshes
from adagp.program.figures.style import COLOURS, legend_beside, subplots
from adagp.program.reproduce.experiment import READS_DATA, Conclusion, Experiment, Part, Workspace, add_experiment
from adagp.program.reproduce.published import published
from adagp.program.reproduce.training import mean_and_range
from adagp.program.reproduce.verdict import Terms, compare, judge
from adagp.program.run.config import TrainConfig
from adagp.program.run.documents import FIGURE, MODERATE, record_of
from adagp.program.run.folder import RunFolder
from adagp.program.workloads import model_workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAINING, LIFETIMES, HARDWARE = "camel-training", "camel-lifetimes", "camel-hardware"
SEEDS = 3
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "quick": {
        "dataset": "digits",
        "base": {"model": "digits_cnn", "batches": 100, "lr": 0.05},
        "duplex": {"backbone": "digits_cnn", "batches": 100, "branch": 2, "branch_channels": 8},
        "batch_size": 64,
    },
    "standard": {
        "dataset": "cifar10",
        "base": {"model": "resnet20", "width": 0.5, "batches": 300, "lr": 0.05},
        "duplex": {"backbone": "resnet20", "backbone_width": 0.5, "batches": 200},
        "batch_size": 64,
    },
    "full": {
        "dataset": "cifar10",
        "base": {"model": "resnet50", "epochs": 90, "lr": 0.1},
        "duplex": {"backbone": "resnet50", "epochs": 20},
        "batch_size": 64,
    },
}
BRANCH = "branch"
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    BRANCH: {"lr": 0.01},
    "branch, fixed stream": {"lr": 0.01, "stream": "fixed"},
    "branch, 6-bit stream": {"lr": 0.01, "stream": "bfp"},
    "branch, 0.1% wrong reads": {"lr": 0.01, "stream": "fixed", "read_faults": 0.001},
    "branch, activations stored": {"lr": 0.01, "recompute": False},
    "branch only": {"lr": 0.01, "backbone": "none"},
    "classifier only": {"lr": 0.05, "trained": "classifier"},
    "fine-tuning": {"lr": 0.05, "trained": "all"},
    "branch, adagp": {"lr": 0.01, "method": "adagp", "ratio": "1:1", "warmup_batches": 40},
    "branch, feedback, stored": {
        "lr": 0.01,
        "method": "feedback",
        "ratio": "1:1",
        "warmup_batches": 40,
        "recompute": False,
    },
}
"""What is trained on all classes, next to a backbone that has seen half of them."""


def transfer_runs(part: Part, workspace: Workspace) -> dict[str, Any] | None:
    """Train a backbone on half of the classes, then every variant next to it on all; each run continues where it stopped."""
    folder = workspace.run_folder(part)
    folder.mkdir(parents=True, exist_ok=True)
    setting = SETTINGS[part.options["budget"]]
    common = {
        "batch_size": setting["batch_size"],
        "lr_scheduler": "cosine",
        "seed": part.options["seed"],
        "method": "bp",
    }
    half = folder / "half.npz"
    if not half.is_file():
        write_half(setting["dataset"], workspace.data_dir, half)
    base = {**common, **setting["base"], "dataset": str(half)}
    if _trained(base, folder / "base", workspace) is None:
        return None
    results: dict[str, Any] = {}
    for number, (name, own) in enumerate(VARIANTS.items()):
        options = {**common, **setting["duplex"], "dataset": setting["dataset"], "model": "duplex", **own}
        if options["backbone"] != "none":
            options["backbone_weights"] = str(folder / "base" / "model.pt")
        summary = _trained(options, folder / f"variant-{number}", workspace)
        if summary is None:
            return None
        rows = RunFolder(folder / f"variant-{number}").rows()
        error = rows[-1].get("reconstruction_error")
        results[name] = {
            "accuracy": 100 * summary["test_accuracy"],
            "peak_memory": summary["peak_memory"],
            "error": error,
        }
    return results


def _trained(options: Mapping[str, Any], path: Path, workspace: Workspace) -> dict[str, Any] | None:
    from adagp.program.train.session import TrainingJob

    if (path / "summary.json").is_file():
        summary: dict[str, Any] = RunFolder(path).read_json("summary.json")
        return summary
    config = TrainConfig.from_dict({**options, "device": workspace.device}, "reproduce")
    return TrainingJob(config, path, workspace.data_dir)(workspace.stop)


def write_half(dataset: str, data_dir: Path | None, path: Path) -> None:
    """Write the images of the first half of a set's classes."""
    from adagp.data.registry import DATASETS, DEFAULT_DATA_DIR, locate

    with np.load(locate(DATASETS[dataset], data_dir or DEFAULT_DATA_DIR)) as archive:
        arrays: dict[str, Any] = {}
        for split in ("train", "test"):
            labels = archive[f"y_{split}"].reshape(-1)
            chosen = labels < DATASETS[dataset].classes // 2
            arrays |= {f"x_{split}": archive[f"x_{split}"][chosen], f"y_{split}": labels[chosen]}
    temporary = path.with_name(f"{path.stem}.part.npz")
    np.savez(temporary, **arrays)
    temporary.replace(path)


_TRANSFERRED = record_of(
    dict.fromkeys(VARIANTS, record_of({"accuracy": MODERATE, "peak_memory": MODERATE, "error": FIGURE}))
)


@cache
def _transfers(budget: str) -> tuple[Part, ...]:
    dataset = SETTINGS[budget]["dataset"]
    more = {} if dataset == "digits" else {READS_DATA: True}
    seeds = 1 if budget == "full" else SEEDS
    return tuple(
        Part(
            transfer_runs,
            f"{dataset}-s{seed}",
            {"budget": budget, "dataset": dataset, "seed": seed, **more},
            20.0,
            _TRANSFERRED,
        )
        for seed in range(seeds)
    )


def conclude_training(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the branch with its controls."""
    section, results = published(TRAINING), [workspace.result(part) for part in _transfers(budget)]
    accuracies = {name: [result[name]["accuracy"] for result in results] for name in VARIANTS}
    rows = [
        {
            "variant": name,
            "seeds": len(results),
            "accuracy_percent": mean(accuracies[name]),
            "accuracy_lowest": min(accuracies[name]),
            "accuracy_highest": max(accuracies[name]),
            "reconstruction_error": mean(_known([result[name]["error"] for result in results])),
            "peak_memory_bytes": mean(result[name]["peak_memory"] for result in results),
        }
        for name in VARIANTS
    ]
    text = ", ".join(f"{name} {mean_and_range(values)} %" for name, values in accuracies.items())
    text += f"; {len(results)} seeds"
    better = mean(accuracies[BRANCH]) > max(mean(accuracies["branch only"]), mean(accuracies["classifier only"]))
    unlike = Terms(f"{SETTINGS[budget]['dataset']} and another backbone; as reported by a third party")
    numbers = {BRANCH: "dudnn", "branch only": "bo"}
    verdicts = [judge("branch and backbone help each other", section.claim("helps"), better, text)]
    verdicts += [
        compare(f"{method}, accuracy", section.number(name), mean(accuracies[method]), "measured", unlike)
        for method, name in numbers.items()
    ]

    def draw() -> "Figure":
        figure, ((axes,),) = subplots(1, 1, (11, 5))
        axes.bar(list(accuracies), [mean(values) for values in accuracies.values()], color=COLOURS[0])
        axes.set(ylabel="measured accuracy, %")
        axes.tick_params(axis="x", rotation=30)
        return figure

    return Conclusion(rows, verdicts, draw)


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None] or [nan]


def conclude_lifetimes(budget: str, workspace: Workspace) -> Conclusion:
    """Compute how long data live by the size of a block's function and of the array."""
    section, rows = published(LIFETIMES), []
    retention = section.number("retention").value
    for pixels in range(4, 13):
        for side in (6, 10, 12):
            cycles = product_cycles(published_shape(pixels), Array(side, side), 1)
            forward, backward = lifetimes(cycles / CLOCK_HZ * 1e6)
            times = refreshes(max(forward, backward), retention)
            rows.append({"pixels": pixels, "array": side, "t_f": forward, "t_b": backward, "refreshes": times})
    lived = {(row["pixels"], row["array"]): float(row["t_b"]) for row in rows}
    unlike = Terms("a size of ours (12 channels, one convolution); as reported by a third party, not checked")
    verdicts = [
        compare(
            f"lifetime, {pixels}x{pixels} maps", section.number("lifetimes", name), lived[pixels, 6], "computed", unlike
        )
        for pixels, name in ((7, "longest_without_refresh"), (8, "longest"))
    ]
    verdicts += [
        compare(
            f"lifetime on {side}x{side} over 6x6 cells",
            section.number("by_array", str(side)),
            lived[7, side] / lived[7, 6],
            "computed",
            unlike,
        )
        for side in (10, 12)
    ]

    def draw() -> "Figure":
        figure, ((axes,),) = subplots(1, 1, (8, 5))
        for index, side in enumerate((6, 10, 12)):
            points = [(pixels, value) for (pixels, cells), value in lived.items() if cells == side]
            axes.plot(*zip(*points, strict=True), marker="o", color=COLOURS[index], label=f"{side}x{side} cells")
        axes.axhline(retention, color="grey", linestyle="--", label="retention")
        axes.set(xlabel="side of the maps, pixels", ylabel="computed lifetime, microseconds")
        legend_beside(axes)
        return figure

    return Conclusion(rows, verdicts, draw)


def conclude_hardware(budget: str, workspace: Workspace) -> Conclusion:
    """Cost a batch of the duplex model on the chip and on SRAM of equal area, at several retention times."""
    section, workload, rows = published(HARDWARE), model_workload("duplex", "cifar10"), []
    for retention in (3.35, 10.0, 45.0, 77.0):
        options = SystemOptions(retention=retention)
        edram, sram = (run_on_system(name, workload, 64, [EpochRecord(1)], options) for name in ("camel", "camel-sram"))
        rows.append(
            {
                "retention_microseconds": retention,
                "refreshes": edram.batch.notes["refreshes of a datum"],
                "speedup": sram.total.cycles / edram.total.cycles,
                "energy_ratio": sram.total.joules / edram.total.joules,
            }
        )
    unlike = Terms("our branch and memory energies; the abstract compares with other platforms")
    verdicts = [
        compare(f"{words} at 3.35 microseconds", section.number(name), float(rows[0][key]), "modelled", unlike)
        for words, name, key in (
            ("times faster than SRAM", "speed", "speedup"),
            ("energy of SRAM over ours", "energy", "energy_ratio"),
        )
    ]

    def draw() -> "Figure":
        figure, ((axes,),) = subplots(1, 1, (8, 5))
        axes.plot([row["retention_microseconds"] for row in rows], [row["energy_ratio"] for row in rows], marker="o")
        axes.axhline(1.0, color="grey", linestyle="--")
        axes.set(xlabel="retention, microseconds", ylabel="modelled energy of SRAM over embedded DRAM")
        return figure

    return Conclusion(rows, verdicts, draw)


MODELLED = {"quick": 0.1, "standard": 0.1, "full": 0.1}
add_experiment(
    Experiment(
        TRAINING,
        "a reversible branch next to a frozen backbone, against fine-tuning and other controls",
        {"quick": 1.0, "standard": 40.0, "full": None},
        _transfers,
        conclude_training,
    ),
    needs=("adagp", "feedback"),
)
add_experiment(
    Experiment(LIFETIMES, "how long data live in a reversible block", MODELLED, lambda budget: [], conclude_lifetimes)
)
add_experiment(
    Experiment(HARDWARE, "embedded DRAM against SRAM of equal area", MODELLED, lambda budget: [], conclude_hardware)
)
