"""`adagp simulate --memory`: the off-chip memory of a training step, as a table and a picture, and plans for a capacity."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from adagp.core.options import option, switch
from adagp.errors import OptionError
from adagp.hw import Accelerator, Run, Workload
from adagp.hw.memory import (
    RECOMPUTATIONS,
    Choice,
    Moment,
    StepMemory,
    cheapest_plan,
    parse_capacity,
    peak,
    recomputed_blocks,
    step_memory,
)

PANEL = "Memory of a training step"
OFFLOAD = 16.0
"""Gigabytes per second to and from a host: sixteen lanes of PCIe 3."""


@dataclass(frozen=True)
class MemorySettings:
    """Options for the memory of a training step."""

    memory: Annotated[
        bool, switch("--memory", "Model the off-chip memory of a step instead of cycles and energy.", panel=PANEL)
    ] = False
    recompute: Annotated[
        str,
        option(
            "What the backward pass recomputes: none, block, or selective (attention scores).",
            panel=PANEL,
            choices=RECOMPUTATIONS,
        ),
    ] = "none"
    accumulate: Annotated[
        int, option("Micro-batches per batch, for gradient accumulation.", panel=PANEL, low=1, high=65_536)
    ] = 1
    capacity: Annotated[
        str | None,
        option(
            "Plan what to stash, recompute or offload so that a step fits into this memory, for example 8GB.",
            panel=PANEL,
            unset="none",
        ),
    ] = None
    offload_bandwidth: Annotated[
        float,
        option(
            "Bandwidth to and from the host in gigabytes per second, for --capacity.", panel=PANEL, above=0, high=1e6
        ),
    ] = OFFLOAD

    def check(self, others: Mapping[str, bool]) -> None:
        """Raise for options that have no effect. `others` has the options about cycles and energy: whether each was given."""
        for flag in (flag for flag, given in others.items() if self.memory and given):
            raise OptionError(
                f"{flag} cannot be combined with --memory, which models memory instead of cycles and energy."
            )
        for name in ("recompute", "accumulate", "capacity"):
            if not self.memory and getattr(self, name) != _default(name):
                raise OptionError(f"--{name} needs --memory.")
        if self.capacity is None and self.offload_bandwidth != OFFLOAD:
            raise OptionError("--offload-bandwidth has no effect without --capacity.")
        if self.capacity is not None and self.recompute == "block":
            raise OptionError("--capacity chooses what each block recomputes; leave out --recompute block.")


def _default(name: str) -> Any:
    return next(field.default for field in fields(MemorySettings) if field.name == name)


def model_memory(
    workload: Workload,
    accelerator: Accelerator,
    run: Run,
    source: str,
    settings: MemorySettings,
    *,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Model the memory of a batch by backprop and of a GP batch; print it, or draw it."""
    memory = step_memory(
        workload, accelerator, run.batch, micro_batches=settings.accumulate, recompute=settings.recompute
    )
    choices: Sequence[Choice] | None = recomputed_blocks(memory) if settings.recompute == "block" else None
    if settings.capacity is not None:
        choices = cheapest_plan(memory, parse_capacity(settings.capacity), settings.offload_bandwidth * 1e9)
    curves = {"backprop": memory.moments(choices), f"GP batch, {source}": memory.predicted_moments(source)}
    if plot is not None:
        from adagp.program.figures.accelerator import plot_memory

        title = (
            f"{workload.name}, {settings.accumulate} x {memory.samples} samples: off-chip memory of a step, modelled"
        )
        plot_memory(curves, title, plot)
    report = memory_report(memory, curves, choices)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print(report)


def memory_report(
    memory: StepMemory, curves: Mapping[str, Sequence[Moment]], choices: Sequence[Choice] | None
) -> dict[str, Any]:
    """Return a step's memory as plain values with stable names, in bytes, and the cycles of a micro-batch."""
    cycles = sum(unit.forward + unit.backward for unit in memory.units)
    report: dict[str, Any] = {
        "model": memory.workload.name,
        "micro_batches": memory.micro_batches,
        "samples": memory.samples,
        "parameters": memory.workload.parameters,
        "fixed_bytes": memory.fixed,
        "kept_bytes": sum(unit.kept for unit in memory.units),
        "kept_bytes_by_operation": memory.by_operation(),
        "peak_bytes": {name: peak(moments).bytes for name, moments in curves.items()},
        "peak_at": {name: peak(moments).unit for name, moments in curves.items()},
        "cycles": cycles,
        "extra_cycles": memory.extra_cycles + sum(choice.cycles for choice in choices or ()),
    }
    if choices is not None:
        report["plan"] = [
            {
                "unit": unit.name,
                "way": choice.way,
                "kept_bytes": unit.kept,
                "held_bytes": choice.held,
                "cycles": choice.cycles,
            }
            for unit, choice in zip(memory.units, choices, strict=True)
        ]
    return report


def _print(report: Mapping[str, Any]) -> None:
    from adagp.cli.terminal import Terminal, table_of

    console = Terminal()
    title = (
        f"{report['model']}: a step of {report['micro_batches']} x {report['samples']} samples, MB off chip (modelled)"
    )
    rows = [(name, _megabytes(size)) for name, size in report["fixed_bytes"].items()]
    rows.append(("kept for the backward pass", _megabytes(report["kept_bytes"])))
    rows += [(f"  by {name}", _megabytes(size)) for name, size in list(report["kept_bytes_by_operation"].items())[:8]]
    rows += [(f"peak, {name}", _megabytes(size)) for name, size in report["peak_bytes"].items()]
    console.print(table_of(("what", "MB"), rows, title=title, title_justify="left"))
    if "plan" in report:
        _print_plan(console, report)
    if report["extra_cycles"]:
        share = report["extra_cycles"] / report["cycles"]
        console.print(f"Recomputing and offloading take {share:.1%} more cycles in a micro-batch.", highlight=False)


def _print_plan(console: Any, report: Mapping[str, Any]) -> None:
    ways: dict[str, list[str]] = {}
    for unit in report["plan"]:
        ways.setdefault(unit["way"], []).append(unit["unit"])
    for way, units in ways.items():
        shown = ", ".join(units[:4]) + (f" and {len(units) - 4} more" if len(units) > 4 else "")
        console.print(f"{way}: {len(units)} of {len(report['plan'])} ({shown}).", highlight=False)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f}" if size >= 1e6 else f"{size / 1e6:.2g}"
