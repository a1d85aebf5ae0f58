"""`adagp simulate`: a training run on a modelled accelerator."""

import json
from collections.abc import Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Annotated, Any

import typer

from adagp.cli.completion import NAMES, offer
from adagp.cli.options import OUTPUT, Json, Picture, option, switch
from adagp.cli.simulated_runs import MODEL, RUN, BatchSize, PresetName, RunOptions, SampleOptions
from adagp.cli.systems import SystemSettings, chosen_systems, simulate_systems
from adagp.core.files import check_output_file, publish
from adagp.hw import Accelerator
from adagp.hw import simulate as run_simulation
from adagp.hw.export import EXPORTERS, check_export, export_workload
from adagp.hw.report import (
    DESIGN_COLUMNS,
    design_heading,
    design_notes,
    design_row,
    layer_rows,
    simulation_report,
)
from adagp.hw.settings import PANEL, with_preset, with_settings
from adagp.hw.simulate import DESIGNS, parse_designs
from adagp.program.figures.accelerator import plot_simulation
from adagp.program.run.folder import flat_csv
from adagp.program.workloads import FILES


def simulate(
    *,
    model: Annotated[
        str | None,
        typer.Argument(
            help="Model name, timm:NAME, torchvision:NAME, hf:FILE.json, package.module:function, "
            f"a {FILES}, or a run folder.",
            rich_help_panel=MODEL,
            autocompletion=offer(NAMES["model"]),
        ),
    ] = None,
    data: SampleOptions,
    batch: BatchSize = None,
    plan: RunOptions,
    from_run: Annotated[
        Path | None, option("Replay the phases that a training run recorded.", panel=RUN, unset="none")
    ] = None,
    trust: Annotated[bool, switch("--trust", "Run the code that the folder of --from-run names.", panel=RUN)] = False,
    design: Annotated[
        str,
        option(
            f"all (of ADA-GP's), or some of {', '.join(DESIGNS)}, separated by commas. Or systems of another kind: procrustes, "
            "camel, camel-sram.",
            panel=PANEL,
        ),
    ] = "all",
    systems: SystemSettings,
    preset: PresetName = None,
    given: Mapping[str, Any],
    per_layer: Annotated[bool, switch("--per-layer", "A row for each layer.", panel=OUTPUT)] = False,
    as_json: Json = False,
    layers_csv: Annotated[
        Path | None,
        option("A row for each layer to FILE.csv.", "--csv", panel=OUTPUT, unset="none", also=check_output_file),
    ] = None,
    plot: Picture = None,
    save_workload: Annotated[
        Path | None,
        option("Write the traced layers to this file as JSON.", panel=OUTPUT, unset="none", also=check_output_file),
    ] = None,
    export: Annotated[
        str | None,
        option(
            f"Write a batch's products as inputs of another model: {', '.join(EXPORTERS)}.",
            panel=OUTPUT,
            unset="none",
        ),
    ] = None,
    out: Annotated[Path | None, option("New folder for --export.", panel=OUTPUT, unset="none")] = None,
) -> None:
    """Cycles, speed-up and energy of a training run on an accelerator, for each of ADA-GP's designs."""
    accelerator = with_settings(with_preset(Accelerator(), preset), given)
    others = chosen_systems(design)
    designs = () if others else parse_designs(design)
    check_export(export, out)
    origin = data.origin(model, from_run, method=plan.method, trust=trust, target=None if others else systems.target)
    run = plan.run(origin, batch)
    if others:
        folder = from_run or (Path(model) if model is not None and origin.replay is not None else None)
        simulate_systems(others, origin.workload(), run.batch, run.batches, folder, systems, as_json=as_json)
        return
    simulation = run_simulation(origin.workload(), accelerator, run, designs)
    if save_workload is not None:
        simulation.workload.save(save_workload)
    if plot is not None:
        plot_simulation(simulation, plot)
    if layers_csv is not None:
        publish(layers_csv, flat_csv(layer_rows(simulation)).encode())
    if export is not None and out is not None:
        files = export_workload(export, simulation.workload, accelerator, run.batch, out)
        typer.echo(f"exported for {export} to {out}; files: {len(files)}", err=True)
    report = {"dataset": origin.dataset, "epochs": plan.epochs_of(origin), **simulation_report(simulation, per_layer)}
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        print_tables(report)


def print_tables(report: dict[str, Any]) -> None:
    """Print a row for each design and, if the report has them, for each layer."""
    from adagp.cli.terminal import Terminal, table_of

    console = Terminal()
    designs = starmap(design_row, report["designs"].items())
    console.print(table_of(DESIGN_COLUMNS, designs, title=design_heading(report), title_justify="left"))
    for note in design_notes(report):
        console.print(note, highlight=False)
    for title, columns, row_of in LAYER_TABLES if "layers" in report else ():
        rows = map(row_of, report["layers"])
        console.print(table_of(columns, rows, ("by",), title=title, title_justify="left", **_lines(console.width)))


def _cycles_row(row: dict[str, Any]) -> Sequence[str]:
    names = ("forward", "input_gradient", "weight_gradient", "predictor")
    cycles = (f"{row[f'{name}_cycles']:,}" for name in names)
    return (row["name"], f"{row['macs']:,}", *cycles, f"{row['utilisation']:.1%}")


def _traffic_row(row: dict[str, Any]) -> Sequence[str]:
    levels = (f"{row[f'{name}_bytes'] / 1e6:,.1f}" for name in ("dram", "buffer", "register"))
    return (row["name"], *levels, f"{row['stall_cycles']:,}", row["stall_cause"], f"{row['joules']:.3g}")


LAYER_TABLES = (
    (
        "One batch, layer by layer (cycles)",
        ("layer", "MACs", "forward", "input gradient", "weight gradient", "predictor", "utilisation"),
        _cycles_row,
    ),
    (
        "One batch by backprop, layer by layer (traffic)",
        ("layer", "off-chip MB", "buffer MB", "register MB", "stalled cycles", "by", "joules"),
        _traffic_row,
    ),
)
ROOMY = 100
"""Characters of a line from which on the tables of layers have lines around them."""


def _lines(width: int) -> dict[str, Any]:
    return {} if width >= ROOMY else {"box": None, "padding": (0, 2, 0, 0)}
