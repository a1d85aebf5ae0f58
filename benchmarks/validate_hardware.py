"""Compare the accelerator model with the published figures and print tables of docs/hardware.md and docs/hardware/ as Markdown.

    python -m benchmarks.validate_hardware

The published figures come from src/adagp/papers/adagp/published.toml; ours are computed here, with the defaults for
every model.
"""

from dataclasses import replace
from math import inf
from statistics import mean

from adagp.data.registry import DATASETS
from adagp.hw import Accelerator, Array, PredictorShape, Simulation, Technology, Workload, scheduled_run, simulate
from adagp.papers.adagp import PAPER_MODELS as MODELS
from adagp.papers.adagp.accelerator_experiments import FIGURES, paper_run
from adagp.program.reproduce.published import published
from adagp.program.workloads import model_workload
from adagp.schedules import parse_schedule
from benchmarks import eyeriss

DATAFLOWS = ("ws", "os", "is", "rs")
SETS = ("cifar10", "imagenet")
"""CIFAR-100 differs from CIFAR-10 in the last layer only."""
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


def averages(workloads: Workloads) -> None:
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
            found = run_all(workloads, dataset, Accelerator(dataflow=dataflow))
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
        designs = ("low", "efficient", "max")
        cells = (" / ".join(f"{simulation.speedup(design):.3f}" for design in designs) for simulation in row)
        cost = row[-1].baseline.cost
        line(model, *cells, row[-1].backward_to_forward, cost.macs / cost.cycles / accelerator.array.pes)


def energies(workloads: Workloads) -> None:
    """Print the energy saving and how it depends on what the paper does not state."""
    print(f"\npublished saving: {published('adagp-figure21').number('saving', 'average').value} %")
    variants = {
        "defaults (45 nm, DDR3 with pins, 512 kB, 16 bit)": Accelerator(),
        "DRAM without pins": Accelerator(technology=Technology(dram_io=False)),
        "22 nm, DDR4": Accelerator(technology=Technology(22, "lstp", "ddr4")),
        "fast, leaky SRAM cells": Accelerator(technology=Technology(cell="hp")),
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
    """Print what more PEs give the baseline; both arrays have the shape that suits the model best."""
    head("baseline with", *(f"{dataset} gain (published)" for dataset in SETS))
    for port in (inf, 64.0):
        accelerator = Accelerator(buffer_port=port)
        found = [run_all(workloads, dataset, accelerator, "equal-power", "equal-area") for dataset in SETS]
        for table, design in (("adagp-table4", "equal-power"), ("adagp-table5", "equal-area")):
            figures = published(table).content[design.replace("-", "_")]
            gains = (
                f"{mean(simulation.speedup(design) for simulation in row) - 1:.1%} ({figures[dataset]:.1f}%)"
                for dataset, row in zip(SETS, found, strict=True)
            )
            line(design + ("" if port == inf else ", buffer port of 64 bits"), *gains)


def sensitivity(workloads: Workloads) -> None:
    """Print how much each choice that papers leave open matters: ImageNet, weight stationary, averages over the CNNs."""
    variants = {
        "defaults": Accelerator(),
        "--predictor 8x5 (320 features)": Accelerator(predictor=PredictorShape(8, 5)),
        "--predictor 8x8 (512 features)": Accelerator(predictor=PredictorShape(8, 8)),
        "--backward same-dataflow": Accelerator(backward="same-dataflow"),
        "--zero-insertion": Accelerator(zero_insertion=True),
        "--buffer-port 512": Accelerator(buffer_port=512),
        "--buffer-port 64": Accelerator(buffer_port=64),
        "--bandwidth 1.6": Accelerator(bandwidth=1.6e9),
        "--bandwidth 3.2": Accelerator(bandwidth=3.2e9),
        "--bandwidth inf": Accelerator(bandwidth=inf),
        "--buffer 128": Accelerator(buffer_kilobytes=128),
        "--buffer 2048": Accelerator(buffer_kilobytes=2048),
        "--accumulator 64": Accelerator(accumulator_kilobytes=64),
        "--no-fusion": Accelerator(fusion=False),
        "--weight-bits 8": Accelerator(weight_bits=8),
        "--activation-bits 8": Accelerator(activation_bits=8),
        "--gradient-bits 8": Accelerator(gradient_bits=8),
        "--sum-bits 16": Accelerator(sum_bits=16),
        "--word-bits 32": Accelerator(word_bits=32),
    }
    head("option", "max, imagenet", "largest", "BW/FW", "cycles", "off-chip bytes", "joules", "memory energy saved")
    base = run_all(workloads, "imagenet", variants["defaults"])
    for name, accelerator in variants.items():
        simulations = run_all(workloads, "imagenet", accelerator)
        speedups = [simulation.speedup("max") for simulation in simulations]
        pairs = [(own.baseline, default.baseline) for own, default in zip(simulations, base, strict=True)]
        line(
            name,
            mean(speedups),
            max(speedups),
            mean(simulation.backward_to_forward for simulation in simulations),
            mean(own.cost.cycles / default.cost.cycles for own, default in pairs),
            mean(own.cost.dram_bits / default.cost.dram_bits for own, default in pairs),
            mean(own.energy.joules / default.energy.joules for own, default in pairs),
            mean(simulation.memory_energy_saving("max") for simulation in simulations),
        )


def sources() -> None:
    """Print what the sources of gradients cost: VGG13 and ResNet50 on CIFAR-10, the paper's ladder."""
    names = ("predicted", "feedback", "feedback_replay", "dni", "replay", "average", "momentum", "skip")
    designs = ("low", "efficient", "max")
    head("source", *(f"{model} {' / '.join(designs)}" for model in ("vgg13", "resnet50")))
    for name in names:
        cells = []
        for model in ("vgg13", "resnet50"):
            schedule = parse_schedule("paper", 90, None, name)
            run = scheduled_run(schedule, 90, DATASETS["cifar10"].train, 128)
            found = simulate(model_workload(model, "cifar10"), Accelerator(), run)
            cells.append(" / ".join(f"{found.speedup(design):.3f}" for design in designs))
        line(name, *cells)


def eyeriss_chip() -> None:
    """Print AlexNet on the Eyeriss chip: measured, and ours."""
    rows, energy = eyeriss.modelled()
    chip, search = "eyeriss-alexnet", "eyeriss-nn-dataflow"
    head("layer", "ms, chip", "nn-dataflow", "ours", "ours / chip", "mJ, chip", "ours", "ours / chip")
    times, watts = (eyeriss.quoted(chip, figure) for figure in ("milliseconds", "milliwatts"))
    for row, time, other, power in zip(
        rows, times, eyeriss.quoted(search, "milliseconds", "search"), watts, strict=True
    ):
        joules = power * time / 1e3
        line(
            row.name,
            time,
            other,
            row.milliseconds,
            row.milliseconds / time,
            joules,
            row.millijoules,
            row.millijoules / joules,
        )
    head(
        "layer", "buffer MB, chip", "ours", "ours / chip", "DRAM MB, chip", "nn-dataflow", "ours", "ours / nn-dataflow"
    )
    for row, buffer, dram, other in zip(
        rows,
        eyeriss.quoted(chip, "buffer"),
        eyeriss.quoted(chip, "dram"),
        eyeriss.quoted(search, "dram", "search"),
        strict=True,
    ):
        line(row.name, buffer, row.buffer, row.buffer / buffer, dram, other, row.dram, row.dram / other)
    measured = eyeriss.measured_joules()
    print(f"\non-chip mJ: {1e3 * energy.on_chip:.1f}, measured {1e3 * measured:.1f}, {energy.on_chip / measured:.2f}")
    shares = {name: joules / energy.on_chip for name, joules in energy.by_level.items() if name != "dram"}
    print(", ".join(f"{name} {share:.1%}" for name, share in shares.items()))
    print(f"DRAM MB: {sum(row.dram for row in rows):.1f}")
    levels = ("arithmetic", "registers", "dram")
    head(
        "layer",
        *(f"{level}, {whose}" for level in levels for whose in ("published", "ours")),
        "buffer, ours",
        "network, ours",
    )
    figures = [eyeriss.quoted("eyeriss-breakdown", level) for level in levels]
    for row, ours, *theirs in zip(rows, eyeriss.breakdown(), *figures, strict=True):
        pairs = zip(theirs, (ours[level] for level in levels), strict=True)
        line(row.name, *(value for pair in pairs for value in pair), ours["buffer"], ours["network"])


def others() -> None:
    """Print the Transformer and YOLO-v3, at 90 epochs and at fewer."""
    head("model", "epochs", "low", "efficient", "max", "published")
    transformer, yolo = (published(name).numbers("speedup") for name in ("adagp-table2", "adagp-table3"))
    figures = {"transformer": f"{transformer['adagp']}", "yolov3": f"{yolo['efficient']} / {yolo['max']}"}
    for name, dataset, samples, batch in (("transformer", "multi30k", 29_000, 128), ("yolov3", "voc", 16_551, 32)):
        workload = model_workload(name, dataset)
        for epochs in (90, 30, 18, 15, 13):
            found = simulate(workload, Accelerator(), paper_run(samples, epochs, batch))
            line(workload.name, epochs, *map(found.speedup, ("low", "efficient", "max")), figures[workload.name])


def predictor_arrays(workloads: Workloads) -> None:
    """Print how much the size of the predictor's array matters."""
    head("predictor array", *SETS)
    accelerator = Accelerator()
    for array in ((2, 2), (4, 5), (8, 10), (12, 15)):
        changed = replace(accelerator, predictor_array=Array(*array))
        by_set = [run_all(workloads, dataset, changed) for dataset in SETS]
        line(str(changed.predictor_array), *(mean(each.speedup("max") for each in row) for row in by_set))


def main() -> None:
    """Print all tables."""
    workloads = {dataset: {model: model_workload(model, dataset) for model in MODELS} for dataset in SETS}
    eyeriss_chip()
    averages(workloads)
    sensitivity(workloads)
    by_model(workloads)
    energies(workloads)
    predictor_arrays(workloads)
    sources()
    others()
    budgets(workloads)


if __name__ == "__main__":
    main()
