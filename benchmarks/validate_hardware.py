"""Compare the accelerator model with the published figures and print the tables of docs/hardware.md as Markdown.

    python -m benchmarks.validate_hardware

The published figures come from src/adagp/reproduce/published.toml; ours are computed here, with the defaults for every model.
"""

from dataclasses import replace
from math import inf
from statistics import mean

from adagp.data.registry import DATASETS
from adagp.hw import Accelerator, Array, Simulation, Technology, Workload, simulate
from adagp.reproduce.accelerator import FIGURES, SETS, paper_run
from adagp.reproduce.published import published
from adagp.workloads import PAPER_MODELS as MODELS
from adagp.workloads import model_workload

DATAFLOWS = ("ws", "os", "is", "rs")
Workloads = dict[str, dict[str, Workload]]


def run_all(workloads: Workloads, dataset: str, accelerator: Accelerator, *designs: str) -> list[Simulation]:
    """Simulate the thirteen CNNs on one data set."""
    run = paper_run(DATASETS[dataset].train)
    names = ("low", "efficient", "max", *designs)
    return [simulate(workload, accelerator, run, names) for workload in workloads[dataset].values()]


def line(*cells: object) -> None:
    """Print a row of a Markdown table."""
    print("| " + " | ".join(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |")


def head(*cells: str) -> None:
    """Print the head of a Markdown table."""
    print()
    line(*cells)
    line(*("---" for _ in cells))


def averages(workloads: Workloads, zero_insertion: bool) -> None:
    """Print average and maximum of each dataflow and data set."""
    speedups = {dataflow: published(name).content for name, dataflow in FIGURES.items()}
    head(
        "dataflow",
        "data set",
        "low",
        "efficient",
        "max",
        "published",
        "off by",
        "largest",
        "published",
        "off by",
        "BW/FW",
    )
    for dataflow in DATAFLOWS:
        for dataset in SETS:
            found = run_all(workloads, dataset, Accelerator(dataflow=dataflow, zero_insertion=zero_insertion))
            best = [simulation.speedup("max") for simulation in found]
            known = speedups.get(dataflow, {})
            average, largest = (known.get(name, {}).get(dataset) for name in ("average", "maximum"))
            line(
                dataflow,
                dataset,
                *(mean(simulation.speedup(design) for simulation in found) for design in ("low", "efficient")),
                mean(best),
                average or "",
                f"{mean(best) - average:+.3f}" if average else "",
                max(best),
                largest or "",
                f"{max(best) - largest:+.3f}" if largest else "",
                mean(simulation.backward_to_forward for simulation in found),
            )


def by_model(workloads: Workloads) -> None:
    """Print each model in weight-stationary dataflow."""
    head("model", *(f"{dataset} low / efficient / max" for dataset in SETS), "BW/FW imagenet", "utilisation imagenet")
    accelerator = Accelerator()
    columns = {dataset: run_all(workloads, dataset, accelerator) for dataset in SETS}
    for index, model in enumerate(MODELS):
        row = [columns[dataset][index] for dataset in SETS]
        cells = (" / ".join(f"{one.speedup(design):.3f}" for design in ("low", "efficient", "max")) for one in row)
        cost = row[-1].baseline.cost
        line(model, *cells, row[-1].backward_to_forward, cost.macs / cost.cycles / accelerator.array.pes)


def energies(workloads: Workloads) -> None:
    """Print the energy saving and how it depends on what the paper does not state."""
    print(f"\npublished saving: {published('adagp-figure21').number('saving', 'average').value} %")
    variants = {
        "defaults (45 nm, DDR3 with pins, 512 kB, 16 bit)": Accelerator(),
        "DRAM without pins": Accelerator(technology=Technology(dram_io=False)),
        "32 nm, DDR4": Accelerator(technology=Technology(32, "lstp", "ddr4")),
        "22 nm, DDR4": Accelerator(technology=Technology(22, "lstp", "ddr4")),
        "fast, leaky SRAM cells": Accelerator(technology=Technology(cell="hp")),
        "64 kB buffer": Accelerator(buffer_kilobytes=64),
        "1024 kB buffer": Accelerator(buffer_kilobytes=1024),
        "32-bit words": Accelerator(word_bits=32),
        "Adam": Accelerator(optimizer_words=2),
        "row stationary": Accelerator(dataflow="rs"),
        "input stationary": Accelerator(dataflow="is"),
    }
    head("assumption", *(f"memory, {name}" for name in SETS), *(f"all, {name}" for name in SETS), "DRAM share imagenet")
    for name, accelerator in variants.items():
        found = [run_all(workloads, dataset, accelerator) for dataset in SETS]
        line(
            name,
            *(mean(simulation.memory_energy_saving("max") for simulation in row) for row in found),
            *(mean(simulation.energy_saving("max") for simulation in row) for row in found),
            mean(simulation.baseline.energy.dram / simulation.baseline.energy.joules for simulation in found[-1]),
        )


def budgets(workloads: Workloads) -> None:
    """Print what more PEs give the baseline."""
    head("baseline with", *(f"{dataset} gain (published)" for dataset in SETS), "max over it, imagenet")
    found = [run_all(workloads, dataset, Accelerator(), "equal-power", "equal-area") for dataset in SETS]
    for table, design in (("adagp-table4", "equal-power"), ("adagp-table5", "equal-area")):
        figures = published(table).content[design.replace("-", "_")]
        gains = (
            f"{mean(simulation.speedup(design) for simulation in row) - 1:.1%} ({figures[dataset]:.1f}%)"
            for dataset, row in zip(SETS, found, strict=True)
        )
        line(design, *gains, mean(one.speedup("max") / one.speedup(design) for one in found[-1]))
    line("the same PEs, best shape", *(f"{best_shape(workloads, dataset):.1%}" for dataset in SETS), "")


def best_shape(workloads: Workloads, dataset: str) -> float:
    """Return what the freedom of shape alone gives the baseline, without one PE more."""
    run, default = paper_run(DATASETS[dataset].train), Accelerator()
    shapes = [Array(rows, default.array.pes // rows) for rows in range(9, 18)]

    def cycles(workload: Workload, array: Array) -> int:
        return simulate(workload, replace(default, array=array), run, ("baseline",)).baseline.cost.cycles

    return mean(
        cycles(workload, default.array) / min(cycles(workload, array) for array in shapes) - 1
        for workload in workloads[dataset].values()
    )


def bandwidths(workloads: Workloads) -> None:
    """Print how off-chip bandwidth changes the speed-up."""
    head("GB/s", *(f"max, {dataset}" for dataset in SETS), "baseline slower by, imagenet")
    free = run_all(workloads, "imagenet", Accelerator(bandwidth=inf))
    for rate in (1.6, 3.2, 6.4, 12.8, 25.6, inf):
        found = [run_all(workloads, dataset, Accelerator(bandwidth=rate * 1e9)) for dataset in SETS]
        slower = mean(
            one.baseline.cost.cycles / other.baseline.cost.cycles for one, other in zip(found[-1], free, strict=True)
        )
        line(rate, *(mean(simulation.speedup("max") for simulation in row) for row in found), slower)


def others() -> None:
    """Print the Transformer and YOLO-v3, at 90 epochs and at fewer."""
    head("model", "epochs", "low", "efficient", "max", "published")
    transformer, yolo = (published(name).numbers("speedup") for name in ("adagp-table2", "adagp-table3"))
    figures = {"transformer": f"{transformer['adagp']}", "yolov3": f"{yolo['efficient']} / {yolo['max']}"}
    for name, dataset, samples, batch in (("transformer", "multi30k", 29_000, 128), ("yolov3", "voc", 16_551, 32)):
        workload = model_workload(name, dataset)
        for epochs in (90, 30, 20, 18, 16, 15, 14, 13, 12):
            found = simulate(workload, Accelerator(), paper_run(samples, epochs, batch))
            line(workload.name, epochs, *map(found.speedup, ("low", "efficient", "max")), figures[workload.name])


def predictor_arrays(workloads: Workloads) -> None:
    """Print what the size of the predictor's array matters."""
    head("predictor array", *SETS)
    accelerator = Accelerator()
    for array in ((2, 2), (4, 5), (8, 10), (12, 15)):
        changed = replace(accelerator, predictor_array=Array(*array))
        found = [run_all(workloads, dataset, changed) for dataset in SETS]
        line(str(changed.predictor_array), *(mean(one.speedup("max") for one in row) for row in found))


def main() -> None:
    """Print all tables."""
    workloads = {dataset: {model: model_workload(model, dataset) for model in MODELS} for dataset in SETS}
    averages(workloads, zero_insertion=False)
    averages(workloads, zero_insertion=True)
    by_model(workloads)
    energies(workloads)
    budgets(workloads)
    bandwidths(workloads)
    predictor_arrays(workloads)
    others()


if __name__ == "__main__":
    main()
