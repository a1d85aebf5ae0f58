"""`adagp simulate --chips`: a training run on many modelled chips."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from adagp.cli.simulation_options import ManyChipOptions
from adagp.core.methods import find_source
from adagp.errors import OptionError
from adagp.hw import DESIGNS, Accelerator, Run, Workload
from adagp.hw.stages import SUPPLIED
from adagp.pipe.chips import TERM_NAMES, TERMS, ChipTraining, Fabric, ManyChips, parse_fabric, parse_parallelism
from adagp.pipe.chips.report import chips_report, scaling
from adagp.pipe.timeline import Link

DESIGN = "max"
"""The default design of each chip."""


def chosen_design(text: str) -> str:
    """Return the one design that `--design` names."""
    design = DESIGN if text == "all" else text
    if "," in design:
        raise OptionError(f"--design is '{text}'; with --chips give one design.")
    DESIGNS[design]
    return design


def chip_training(
    workload: Workload, accelerator: Accelerator, run: Run, method: str, design: str, options: ManyChipOptions
) -> ChipTraining:
    """Return the training run that the options describe; raise on options that do not fit each other."""
    assert options.chips is not None
    parallel = parse_parallelism(options.parallel or f"data={options.chips}", options.chips)
    link = Link(options.link_bandwidth_given * 1e9, options.link_latency_given * 1e-6)
    fabric = Fabric(parse_fabric(options.fabric or "switch", options.chips), link, options.collective or "ring")
    if options.pipeline_schedule is not None and parallel.pipeline == 1:
        raise OptionError("--pipeline-schedule is for a pipeline of several stages; give pipeline=... in --parallel.")
    return ChipTraining(
        workload,
        accelerator,
        parallel,
        fabric,
        run.batch,
        options.micro_batches or parallel.pipeline,
        options.pipeline_schedule or "dapple",
        design,
        find_source(method).source or SUPPLIED,
        run.variant,
        not options.no_overlap,
        options.bucket_given * 1e6,
    )


def simulate_chips(
    training: ChipTraining, run: Run, options: ManyChipOptions, *, plot: Path | None, as_json: bool
) -> None:
    """Model the training and print it; with --scaling, with fewer copies of the model as well."""
    report = chips_report(ManyChips(training), run)
    if options.scaling is not None:
        report["scaling"] = {"kind": options.scaling, "rows": scaling(training, options.scaling)}
    if plot is not None:
        from adagp.program.figures.accelerator import plot_chips

        plot_chips(report, plot)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
        return
    print_chips(report)


def print_chips(report: dict[str, Any]) -> None:
    """Print the time of a batch by terms, the data it sends, its memory, and its scaling."""
    from adagp.cli.terminal import Terminal, table_of

    console = Terminal()
    kinds = [(name, report[key]) for name, key in KINDS if key in report]
    link = f"{report['link_gigabytes_per_second']:g} GB/s, {report['link_microseconds']:g} us"
    title = (
        f"{report['model']}: {report['chips']} chips ({report['parallel']}), {report['fabric']} of {link}; "
        f"milliseconds of a batch of {report['batch']:,}, modelled"
    )
    columns = ("", *(name for name, _ in kinds))
    console.print(title, table_of(columns, list(_time_rows(kinds))), sep="\n")
    sent = list(_sent_rows(kinds))
    if sent:
        console.print("Megabytes that a chip sends in a batch", table_of(columns, sent), sep="\n")
    memory = report["memory_bytes"]
    parts = ", ".join(f"{name} {amount / 1e6:,.1f}" for name, amount in memory.items() if name != "total")
    console.print(f"Memory of the fullest chip: {memory['total'] / 1e6:,.1f} MB ({parts}).", highlight=False)
    if "run" in report:
        totals = report["run"]
        console.print(
            f"A GP batch takes {report['gp_to_backprop']:.3f} times as long as a batch by backprop. "
            f"{totals['bp']:,} BP and {totals['gp']:,} "
            f"GP batches are {totals['speedup']:.3f}x as fast as backprop. Cost only, not accuracy.",
            highlight=False,
        )
    if "scaling" in report:
        rows = [_scaling_row(row) for row in report["scaling"]["rows"]]
        title = f"{report['scaling']['kind'].capitalize()} scaling over copies of the model, milliseconds"
        console.print(title, table_of(SCALING_COLUMNS, rows), sep="\n")


KINDS = (("backprop", "backprop"), ("BP and learning", "bp"), ("GP", "gp"))
"""Kinds of batches: their headings, and their names in the report."""


def _time_rows(kinds: Sequence[tuple[str, dict[str, Any]]]) -> list[Sequence[str]]:
    used = [term for term in TERMS if any(abs(batch["terms"][term]) > 0 for _, batch in kinds)]
    rows: list[Sequence[str]] = [
        (TERM_NAMES[term], *(_milliseconds(batch["terms"][term]) for _, batch in kinds)) for term in used
    ]
    return [*rows, ("all", *(_milliseconds(batch["seconds"]) for _, batch in kinds))]


def _milliseconds(seconds: float) -> str:
    amount = seconds * 1e3
    return f"{amount:,.0f}" if amount >= 1e4 else f"{amount:,.4g}"


def _sent_rows(kinds: Sequence[tuple[str, dict[str, Any]]]) -> list[Sequence[str]]:
    names = dict.fromkeys(name for _, batch in kinds for name in batch["sent_bytes"])
    return [(name, *(f"{batch['sent_bytes'].get(name, 0) / 1e6:,.4g}" for _, batch in kinds)) for name in names]


SCALING_COLUMNS = ("chips", "batch", "backprop", "BP", "GP", "GP / backprop", "efficiency", "GP efficiency")


def _scaling_row(row: dict[str, Any]) -> Sequence[str]:
    times = (
        "" if row[name] is None else _milliseconds(row[name])
        for name in ("backprop_seconds", "bp_seconds", "gp_seconds")
    )
    ratio = "" if row["gp_to_backprop"] is None else f"{row['gp_to_backprop']:.3f}"
    efficiencies = (
        "" if row[name] is None else f"{row[name]:.1%}" for name in ("backprop_efficiency", "gp_efficiency")
    )
    return (f"{row['chips']:,}", f"{row['batch']:,}", *times, ratio, *efficiencies)
