"""`adagp simulate`: a training run on a modelled accelerator."""

import json
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from adagp.cli.options import given_options, option, switch
from adagp.cli.workloads import FILES, Origin, find_origin, sample_shape
from adagp.errors import OptionError
from adagp.figures.accelerator import plot_simulation
from adagp.figures.style import check_picture_path
from adagp.hw import (
    DESIGNS,
    PAPER_DESIGNS,
    Accelerator,
    Run,
    Simulation,
    Technology,
    parse_array,
    parse_predictor,
    scheduled_run,
)
from adagp.hw import simulate as run_simulation
from adagp.hw.export import EXPORTERS, check_export, export_workload
from adagp.hw.presets import PRESETS, with_preset
from adagp.hw.report import layer_rows, simulation_report
from adagp.hw.runs import refuse_adaptive
from adagp.methods import find_source
from adagp.run.folder import flat_csv, write_atomically
from adagp.schedules import Schedule, parse_schedule

_MODEL, _RUN, _HARDWARE, _OUTPUT = "Model", "Run", "Accelerator", "Output"
_A_WORD = "those of a word"

BATCH, EPOCHS = 128, 90
"""Samples of a batch, and epochs of a run, where neither is given nor recorded."""
OPTIMIZER_WORDS = {"sgd": 0, "momentum": 1, "adam": 2}


class Optimizer(StrEnum):
    """Optimizers by the state they keep for each weight."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"


def simulate(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            help="Model name, timm:NAME, torchvision:NAME, hf:FILE.json, package.module:function, "
            f"a {FILES}, or a run folder.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    dataset: Annotated[str, option("Data set: image shape, classes and samples.", panel=_MODEL)] = "cifar10",
    input_: Annotated[
        str | None, option("Input shape, for example 3x64x64.", "--input", panel=_MODEL, unset="the data set's")
    ] = None,
    image_size: Annotated[int | None, option("Side of square images.", panel=_MODEL, unset="the data set's")] = None,
    channels: Annotated[int | None, option("Channels of images.", panel=_MODEL, unset="the data set's")] = None,
    classes: Annotated[int | None, option("Classes.", panel=_MODEL, unset="the data set's")] = None,
    width: Annotated[float, option("Factor on the model's channels.", panel=_MODEL)] = 1.0,
    batch: Annotated[int | None, option("Samples per batch.", panel=_RUN, unset=f"{BATCH}")] = None,
    epochs: Annotated[int | None, option("Epochs.", panel=_RUN, unset=f"{EPOCHS}")] = None,
    samples: Annotated[int | None, option("Training samples.", panel=_RUN, unset="the data set's")] = None,
    ratio: Annotated[
        str, option("Schedule, in the forms of adagp train, but for adaptive ones.", panel=_RUN)
    ] = "ladder",
    warmup: Annotated[int | None, option("Epochs of warm-up.", panel=_RUN, unset="the schedule's own")] = None,
    method: Annotated[
        str,
        option(
            "Method whose source gives the gradients of GP batches, or package.module:Class.",
            "--method",
            "--source",
            panel=_RUN,
        ),
    ] = "adagp",
    from_run: Annotated[
        Path | None, option("Replay the phases that a training run recorded.", panel=_RUN, unset="none")
    ] = None,
    trust: Annotated[bool, switch("--trust", "Run the code that the folder of --from-run names.", panel=_RUN)] = False,
    design: Annotated[str, option("all, or names separated by commas.", panel=_HARDWARE)] = "all",
    preset: Annotated[
        str | None,
        option(f"Known sizes for what is not given: {', '.join(PRESETS)}.", panel=_HARDWARE, unset="none"),
    ] = None,
    dataflow: Annotated[str, option("ws, os, is, rs, or a plugin's.", panel=_HARDWARE)] = "ws",
    array: Annotated[str, option("PEs, ROWSxCOLUMNS.", panel=_HARDWARE)] = "12x15",
    predictor_array: Annotated[str, option("PEs of the predictor in design max.", panel=_HARDWARE)] = "8x10",
    clock: Annotated[float, option("Megahertz.", panel=_HARDWARE)] = 200.0,
    word_bits: Annotated[int, option("8, 16 or 32.", panel=_HARDWARE)] = 16,
    buffer: Annotated[float, option("Global buffer in kilobytes.", panel=_HARDWARE)] = 512.0,
    bandwidth: Annotated[float, option("Off-chip gigabytes per second; inf: never stalls.", panel=_HARDWARE)] = 12.8,
    predictor: Annotated[str, option("Predictor, GRIDxCHANNELS: pooled side, feature maps.", panel=_HARDWARE)] = "4x4",
    backward: Annotated[
        str,
        option(
            "in-place: gradients run where the forward pass placed their matrices; same-dataflow: as ordinary products.",
            panel=_HARDWARE,
        ),
    ] = "in-place",
    weight_bits: Annotated[int | None, option("Bits of a weight.", panel=_HARDWARE, unset=_A_WORD)] = None,
    activation_bits: Annotated[int | None, option("Bits of an activation.", panel=_HARDWARE, unset=_A_WORD)] = None,
    gradient_bits: Annotated[int | None, option("Bits of a gradient.", panel=_HARDWARE, unset=_A_WORD)] = None,
    sum_bits: Annotated[
        int | None, option("Bits of a partial sum.", panel=_HARDWARE, unset="32, or those of a wider word")
    ] = None,
    buffer_port: Annotated[
        float, option("Bits per cycle into and out of the buffer; inf: no limit.", panel=_HARDWARE)
    ] = inf,
    accumulator: Annotated[
        float, option("Kilobytes for partial sums; 0: they are in the global buffer.", panel=_HARDWARE)
    ] = 0.0,
    fusion: Annotated[bool, option("Fuse element-wise work with the layer before it.", panel=_HARDWARE)] = True,
    zero_insertion: Annotated[
        bool,
        switch("--zero-insertion", "Run gradients of strided convolutions over zeros.", panel=_HARDWARE),
    ] = False,
    equal_power_pes: Annotated[
        float,
        option("PEs of design equal-power over the array's; the paper's, or `adagp rtl power`'s.", panel=_HARDWARE),
    ] = 1.10,
    equal_area_pes: Annotated[
        float,
        option("PEs of design equal-area over the array's; the paper's, or `adagp rtl synthesize`'s.", panel=_HARDWARE),
    ] = 1.11,
    optimizer: Annotated[Optimizer, option("Whose state moves off-chip.", panel=_HARDWARE)] = Optimizer.MOMENTUM,
    node: Annotated[int, option("Energy table: nanometres.", panel=_HARDWARE)] = 45,
    cell: Annotated[str, option("Energy table: SRAM cells, hp or lstp.", panel=_HARDWARE)] = "lstp",
    dram: Annotated[str, option("Energy table: ddr3 or ddr4.", panel=_HARDWARE)] = "ddr3",
    energy_table: Annotated[
        Path | None, option("An energy table of your own (CSV).", panel=_HARDWARE, unset="adagp's")
    ] = None,
    per_layer: Annotated[bool, switch("--per-layer", "A row for each layer.", panel=_OUTPUT)] = False,
    as_json: Annotated[bool, switch("--json", "One JSON document on standard output.", panel=_OUTPUT)] = False,
    layers_csv: Annotated[
        Path | None, option("A row for each layer to FILE.csv.", "--csv", panel=_OUTPUT, unset="none")
    ] = None,
    plot: Annotated[Path | None, option("Picture to FILE.svg or FILE.png.", panel=_OUTPUT, unset="none")] = None,
    save_workload: Annotated[
        Path | None, option("Write the traced layers to this file as JSON.", panel=_OUTPUT, unset="none")
    ] = None,
    export: Annotated[
        str | None,
        option(
            f"Write a batch's products as inputs of another model: {', '.join(EXPORTERS)}.",
            panel=_OUTPUT,
            unset="none",
        ),
    ] = None,
    out: Annotated[Path | None, option("New folder for --export.", panel=_OUTPUT, unset="none")] = None,
) -> None:
    """Cycles, speed-up and energy of a training run on an accelerator, for each of ADA-GP's designs."""
    accelerator = Accelerator(
        array=parse_array(array),
        dataflow=dataflow,
        predictor_array=parse_array(predictor_array),
        clock_hz=clock * 1e6,
        word_bits=word_bits,
        buffer_kilobytes=buffer,
        bandwidth=bandwidth * 1e9,
        optimizer_words=OPTIMIZER_WORDS[optimizer],
        zero_insertion=zero_insertion,
        equal_power_pes=equal_power_pes,
        equal_area_pes=equal_area_pes,
        technology=Technology(node, cell, dram, table=None if energy_table is None else str(energy_table)),
        predictor=parse_predictor(predictor),
        backward=backward,
        weight_bits=weight_bits,
        activation_bits=activation_bits,
        gradient_bits=gradient_bits,
        sum_bits=sum_bits,
        buffer_port=buffer_port,
        accumulator_kilobytes=accumulator,
        fusion=fusion,
    )
    accelerator = with_preset(accelerator, preset, given_options(context))
    designs = parse_designs(design)
    if plot is not None:
        check_picture_path(plot)
    check_export(export, out)
    shape = sample_shape(model, input_, image_size, channels, dataset)
    origin = find_origin(model, from_run, dataset, shape, width, classes, method=method, trust=trust)
    plan = RunOptions(batch, epochs, samples, ratio, warmup, find_source(method).source)
    run = plan.run(origin)
    simulation = run_simulation(origin.workload(), accelerator, run, designs)
    if save_workload is not None:
        simulation.workload.save(save_workload)
    if plot is not None:
        plot_simulation(simulation, plot)
    if layers_csv is not None:
        write_atomically(layers_csv, flat_csv(layer_rows(simulation)).encode())
    if export is not None and out is not None:
        files = export_workload(export, simulation.workload, accelerator, run.batch, out)
        typer.echo(f"exported for {export} to {out}; files: {len(files)}", err=True)
    report = {"dataset": origin.dataset, "epochs": plan.epochs_of(origin), **simulation_report(simulation, per_layer)}
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        print_tables(simulation, report)


def parse_designs(text: str) -> tuple[str, ...]:
    """Return the designs that `text` names; the baseline is always simulated."""
    if text == "all":
        return PAPER_DESIGNS
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        DESIGNS[name]
    return names


@dataclass(frozen=True)
class RunOptions:
    """The options that describe a run; None means the default, or what a recorded run says."""

    batch: int | None = None
    epochs: int | None = None
    samples: int | None = None
    ratio: str = "ladder"
    warmup: int | None = None
    source: str = "predicted"

    def epochs_of(self, origin: Origin) -> int:
        """Return the number of epochs."""
        if origin.epochs is not None:
            return origin.epochs
        return EPOCHS if self.epochs is None else self.epochs

    def run(self, origin: Origin) -> Run:
        """Return the recorded run, or the scheduled one."""
        if origin.replay is not None:
            given = [name for name in ("batch", "epochs", "samples", "warmup") if getattr(self, name) is not None]
            if given:
                raise OptionError(f"--{given[0]} is recorded in the run that is replayed; leave it out.")
            return origin.replay
        epochs = self.epochs_of(origin)
        schedule = self.schedule(epochs)
        samples = origin.samples if self.samples is None else self.samples
        return scheduled_run(schedule, epochs, samples, BATCH if self.batch is None else self.batch, origin.workload())

    def schedule(self, epochs: int) -> Schedule:
        """Return the schedule of a run of `epochs`; refuse one that cannot be simulated."""
        if epochs < 1:
            raise OptionError(f"epochs is {epochs}; it must be 1 or more.")
        schedule = parse_schedule(self.ratio, epochs, self.warmup, self.source)
        refuse_adaptive(schedule)
        return schedule


def print_tables(simulation: Simulation, report: dict[str, Any]) -> None:
    """Print a row for each design and, if the report has them, for each layer."""
    from rich.table import Table

    from adagp.cli.terminal import Terminal

    console = Terminal()
    phases = ", ".join(f"{count:,} {phase}" for phase, count in report["batches"].items() if count)
    heading = f"{report['model']}: {report['dataflow']} on {report['array']} PEs; batches: {phases}"
    table = Table(title=heading, title_justify="left")
    for column in ("design", "cycles", "seconds", "speed-up", "joules", "saved", "memory joules saved"):
        table.add_column(column, justify="left" if column == "design" else "right")
    for name, row in report["designs"].items():
        table.add_row(
            name,
            f"{row['cycles']:.4g}",
            f"{row['seconds']:.4g}",
            f"{row['speedup']:.3f}x",
            f"{row['energy_joules']:.4g}",
            f"{row['energy_saving']:.1%}",
            f"{row['memory_energy_saving']:.1%}",
        )
    console.print(table)
    ratio = simulation.backward_to_forward
    console.print(f"Backward takes {ratio:.2f} times the forward pass.", highlight=False)
    for signature in report["failure_signatures"]:
        console.print(f"Failure signature, {signature}.", highlight=False)
    if "layers" in report:
        console.print(_cycle_table(report["layers"]))
        console.print(_traffic_table(report["layers"]))


def _cycle_table(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(title="One batch, layer by layer (cycles)", title_justify="left")
    for column in ("layer", "MACs", "forward", "input gradient", "weight gradient", "predictor", "utilisation"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    for row in rows:
        cycles = (
            f"{row[f'{name}_cycles']:,}" for name in ("forward", "input_gradient", "weight_gradient", "predictor")
        )
        table.add_row(row["name"], f"{row['macs']:,}", *cycles, f"{row['utilisation']:.1%}")
    return table


def _traffic_table(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(title="One batch by backprop, layer by layer (traffic)", title_justify="left")
    for column in ("layer", "off-chip MB", "buffer MB", "register MB", "stalled cycles", "by", "joules"):
        table.add_column(column, justify="left" if column in ("layer", "by") else "right")
    for row in rows:
        levels = (f"{row[f'{name}_bytes'] / 1e6:,.1f}" for name in ("dram", "buffer", "register"))
        table.add_row(row["name"], *levels, f"{row['stall_cycles']:,}", row["stall_cause"], f"{row['joules']:.3g}")
    return table
