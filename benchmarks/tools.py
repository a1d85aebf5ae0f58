"""How fast the other tools are: accelerator model, pipeline simulator, command line, report, loading of data."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from adagp.data.batches import ImageBatches
from adagp.hw import Accelerator, Workload, scheduled_run, simulate
from adagp.hw import Run as Schedule
from adagp.hw.axes import AXES, parse_axes
from adagp.hw.explore import Space, accelerators, explore
from adagp.pipe import constant_costs, generate, parse_phases
from adagp.pipe import simulate as run_pipeline
from adagp.program.report.page import library, render
from adagp.program.run.record import collect
from adagp.program.workloads import model_workload
from adagp.schedules import parse_schedule
from adagp.tracing.tracer import trace_model
from benchmarks.measure import Clock, Ratio, Run

SCALE_SIM = 250.0
"""CPU-seconds that SCALE-Sim takes for the forward pass of VGG13: a published reference, not measured here."""


QUICK = 0.1
"""CPU-seconds that a simulation of VGG13 may take at most."""
SOON = 10.0
"""CPU-seconds that the default design space of ResNet50 may take at most: half of it on two cores."""


def accelerator(clock: Clock) -> list[Ratio]:
    """Return the seconds of simulations with all of the paper's designs, without anything known from earlier ones."""
    workload = trace_model("vgg13", classes=1000, image=(3, 224, 224))
    run = scheduled_run(parse_schedule("paper", 90), 90, 50_000, 128)
    known, new = (_best(clock, prepare) for prepare in _simulations(workload, run))
    layers = len(workload.layers)
    detail = f"{1000 * new:.1f} ms for a run on four designs, {1000 * known:.1f} ms again; {layers / new:,.0f} layers a second"
    rows = [Ratio("accelerator model, VGG13 / SCALE-Sim's 250 CPU-seconds", new / SCALE_SIM, None, detail)]
    rows.append(Ratio(f"accelerator model, VGG13 / {QUICK:g} s", new / QUICK, 1.0, f"{1000 * new:.1f} ms"))
    return [*rows, _design_space(clock, run)]


def _simulations(workload: Workload, run: Schedule) -> tuple[Run, Run]:
    def again() -> None:
        simulate(workload, Accelerator(), run)

    def from_nothing() -> None:
        _forget()
        again()

    return again, from_nothing


def _design_space(clock: Clock, run: Schedule) -> Ratio:
    values = parse_axes({axis.name: axis.default for axis in AXES})
    machines = accelerators(Accelerator(), values)
    space = Space(model_workload("resnet50", "cifar10"), machines, (run,), tuple(values["design"]))
    _forget()
    start = clock.now()
    explore(space, workers=1)
    seconds = clock.now() - start
    detail = f"{space.points:,} points in {seconds:.1f} s on one core; {space.points / seconds:,.0f} a second"
    return Ratio(f"design space of ResNet50 / {SOON:g} s", seconds / SOON, 1.0, detail)


def _forget() -> None:
    """Empty what the accelerator model keeps of products that it has seen."""
    for name in ("accelerator", "dataflows", "stages", "tiling"):
        for value in vars(sys.modules[f"adagp.hw.{name}"]).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def pipeline(clock: Clock) -> list[Ratio]:
    """Return the seconds of dry runs over those that their actions take to be written down."""
    phases = parse_phases(",".join(["GP", "BP"] * 10))
    rows = []
    for name in ("gpipe", "dapple", "chimera"):
        program, costs = generate(name, 8, 16, phases), constant_costs(8)
        actions = sum(len(row) for row in program.devices)
        making = _best(clock, lambda name=name: generate(name, 8, 16, phases))  # type: ignore[misc]
        taken = _best(clock, lambda program=program, costs=costs: run_pipeline(program, costs))  # type: ignore[misc]
        detail = f"{actions} actions, {actions / taken:,.0f} a second"
        rows.append(Ratio(f"pipeline simulator, {name}: dry run / making the program", taken / making, None, detail))
    return rows


START = {"import adagp": 5.0, "adagp --help": 40.0}
"""Times of an empty Python that a start may take at most: about 0.1 s and 0.5 s on a quiet machine."""


def command_line(rounds: int) -> list[Ratio]:
    """Return the seconds of `import adagp` and `adagp --help` over those of an empty Python."""
    contenders = {
        "python": ["-c", "pass"],
        "import torch": ["-c", "import torch"],
        "import adagp": ["-c", "import adagp"],
        "adagp --help": ["-m", "adagp", "--help"],
    }
    clock = Clock(rounds)
    race = clock.race({name: [_program(arguments)] for name, arguments in contenders.items()})
    return [
        Ratio(f"{name} / an empty Python", race.ratio(name, "python"), START.get(name), f"{race.seconds(name):.2f} s")
        for name in list(contenders)[1:]
    ]


LONG = 50_000
"""Epochs of a long run: its report may take 5 CPU-seconds."""


def long_report(clock: Clock) -> Ratio:
    """Return the seconds of a report of `LONG` epochs, the plotting library at hand, over those of parsing its metrics."""
    with TemporaryDirectory() as folder:
        lines = _write_long_run(Path(folder))
        library()
        race = Clock(max(3, clock.rounds // 5), clock.process).race(
            {
                "parse": [lambda: [json.loads(line) for line in lines]],
                "report": [lambda: render(collect([Path(folder)]), "")],
            }
        )
    ratio, detail = race.ratio("report", "parse"), f"{race.seconds('report'):.2f} s"
    return Ratio(f"report of {LONG:,} epochs / parsing their JSON", ratio, 5.0, detail)


def _write_long_run(folder: Path) -> list[str]:
    config = {"model": "digits_cnn", "dataset": "digits", "method": "feedback", "batch_size": 32, "epochs": LONG}
    (folder / "config.json").write_text(json.dumps(config))
    figures = np.random.default_rng(0).random((LONG, 20)).tolist()
    names = ("cosine", "norm_ratio", "mse", "mape", "cosine_previous")
    lines = []
    for epoch, values in enumerate(figures):
        sites = {f"conv{site}": dict(zip(names, values[5 * site :], strict=False)) for site in range(4)}
        row = {
            "epoch": epoch,
            "label": "1:1",
            "train_loss": values[0],
            "test_loss": values[1],
            "test_accuracy": values[2],
        }
        batches, seconds = {"warmup": 0, "bp": 22, "gp": 22, "guarded": 0}, {"data": 0.01, "bp": 1.3, "gp": 0.8}
        lines.append(json.dumps({**row, "batches": batches, "seconds": seconds, "sites": sites}))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return lines


def data_loading(clock: Clock, needed: float, who: str) -> Ratio:
    """Return the samples per second that the fastest model needs (`needed`) over those that are loaded and augmented."""
    images = np.random.default_rng(0).integers(0, 256, (10_000, 32, 32, 3), dtype=np.uint8)
    labels = np.zeros(len(images), dtype=np.int64)
    batches = ImageBatches(images, labels, 128, mean=(120.0,) * 3, std=(60.0,) * 3, augment=True, shuffle=True)
    seconds = _best(clock, lambda: sum(len(targets) for _, targets in batches.epoch(0)))
    supply = len(batches) * 128 / seconds
    detail = f"{needed:,.0f} of {supply:,.0f} samples per second"
    return Ratio(f"samples that {who} needs / samples loaded with crops and flips", needed / supply, 1.0, detail)


def _best(clock: Clock, run: Run) -> float:
    times = []
    for _ in range(max(3, clock.rounds // 3)):
        start = clock.now()
        run()
        times.append(clock.now() - start)
    return median(times)


def _program(arguments: list[str]) -> Run:
    return lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
