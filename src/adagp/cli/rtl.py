"""`adagp rtl`: the accelerator as hardware. Nothing heavy is imported before a command runs."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagp.errors import OptionError

if TYPE_CHECKING:
    from adagp.rtl.chip import Blueprint

rtl = typer.Typer(
    name="rtl",
    help="The accelerator as hardware: Verilog, simulation cycle by cycle, synthesis.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

DesignOption = Annotated[str, typer.Option(help="baseline, low, efficient or max.")]
ArrayOption = Annotated[str, typer.Option(help="PEs, ROWSxCOLUMNS, at least 2x2.")]
PredictorArrayOption = Annotated[
    str | None, typer.Option(help="PEs of the predictor in design max; two thirds of each side if not given.")
]
FormatOption = Annotated[str, typer.Option("--format", help="int8, int16, bf16, fp16 or fp32.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
ValueWordsOption = Annotated[int, typer.Option(help="Words in each bank of values.")]
SumWordsOption = Annotated[int, typer.Option(help="Words in each bank of sums.")]


def _blueprint(design: str, array: str, predictor_array: str | None, number: str, **words: int) -> "Blueprint":
    from adagp.hw.array import parse_array
    from adagp.rtl.tools import need_amaranth

    need_amaranth()
    from adagp.rtl.designs import make_blueprint
    from adagp.rtl.formats import find_format

    beside = None if predictor_array is None else parse_array(predictor_array)
    return make_blueprint(design, parse_array(array), find_format(number), predictor_array=beside, **words)


def _tell(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(report, indent=2))
        return
    for name, value in report.items():
        typer.echo(f"{name.replace('_', ' ')}: {value}")


@rtl.command()
def generate(
    out: Annotated[Path, typer.Option(help="Folder for chip.v, manifest.json and README.md.")],
    design: DesignOption = "baseline",
    array: ArrayOption = "12x15",
    predictor_array: PredictorArrayOption = None,
    number: FormatOption = "int16",
    value_words: ValueWordsOption = 4096,
    sum_words: SumWordsOption = 2048,
    predictor_words: Annotated[int, typer.Option(help="Words of the predictor's weights in each column.")] = 19_664,
    as_json: JsonOption = False,
) -> None:
    """Write a chip as Verilog, with a manifest and a page on how to use it."""
    words = {"value_words": value_words, "sum_words": sum_words, "predictor_words": predictor_words}
    blueprint = _blueprint(design, array, predictor_array, number, **words)
    from adagp.rtl import generate as generation

    about = generation.generate(blueprint, out)
    _tell(about if as_json else {"written": out, "digest": about["digest"]}, as_json)


@rtl.command()
def simulate(
    size: Annotated[str, typer.Option(help="The forward product, ROWSxDEPTHxCOLUMNS.")] = "20x30x40",
    array: ArrayOption = "4x4",
    dataflow: Annotated[str, typer.Option(help="ws, os or is.")] = "ws",
    operation: Annotated[str, typer.Option(help="forward, dx or dw.")] = "forward",
    number: FormatOption = "int16",
    value_words: ValueWordsOption = 4096,
    sum_words: SumWordsOption = 2048,
    seed: Annotated[int, typer.Option(help="Of the drawn matrices.")] = 0,
    vcd: Annotated[Path | None, typer.Option(help="Write the waveforms to FILE.vcd.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run one product of drawn numbers on the array, and hold values, cycles and accesses against the models."""
    if re.fullmatch(r"\d+x\d+x\d+", size) is None:
        raise OptionError(f"cannot read the product '{size}'; write ROWSxDEPTHxCOLUMNS, for example 20x30x40.")
    if vcd is not None and vcd.exists():
        raise OptionError(f"'{vcd}' is there already; give another --vcd.")
    blueprint = _blueprint(
        "baseline", array, None, number, value_words=value_words, sum_words=sum_words, program_words=8
    )
    from adagp.rtl.check import check_product

    report = check_product(blueprint, dataflow, operation, [int(one) for one in size.split("x")], seed, vcd)
    _tell(report, as_json)
    if not report["equal"]:
        raise typer.Exit(1)


@rtl.command()
def run(
    network: Annotated[str, typer.Option(help="Widths of fully connected layers, input first.")] = "12-10-6",
    batch: Annotated[int, typer.Option(help="Samples a batch.")] = 4,
    phases: Annotated[str, typer.Option(help="Batches one after the other: bp and gp, separated by commas.")] = "bp,gp",
    design: DesignOption = "max",
    array: ArrayOption = "4x4",
    predictor_array: PredictorArrayOption = None,
    number: FormatOption = "int16",
    grid: Annotated[int, typer.Option(help="Side of the predictor's pooled picture.")] = 2,
    channels: Annotated[int, typer.Option(help="Channels of the predictor's convolution.")] = 2,
    rate: Annotated[float, typer.Option(help="Step of the layers' weights.")] = 2**-4,
    predictor_rate: Annotated[float, typer.Option(help="Step of the predictor's weights.")] = 2**-4,
    seed: Annotated[int, typer.Option(help="Of the drawn weights and samples.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Train a small network for some batches in simulated hardware, and hold every weight against the golden model."""
    words = {"value_words": 4096, "sum_words": 2048, "predictor_words": 4096}
    blueprint = _blueprint(design, array, predictor_array, number, **words)
    from adagp.hw.predictor import PredictorShape
    from adagp.rtl.check import check_batches
    from adagp.rtl.network import parse_network

    small = parse_network(network, batch, PredictorShape(grid, channels), rate, predictor_rate)
    report = check_batches(blueprint, small, phases.lower().split(","), seed)
    _tell(report, as_json)
    if not report["equal"]:
        raise typer.Exit(1)


@rtl.command()
def synthesize(
    target: Annotated[str, typer.Option(help="xc7, liberty (Debian's osu018) or liberty:FILE.")] = "xc7",
    liberty: Annotated[Path | None, typer.Option(help="The same as --target liberty:FILE.")] = None,
    design: Annotated[str, typer.Option(help="all, or one of baseline, low, efficient, max.")] = "all",
    array: ArrayOption = "12x15",
    predictor_array: PredictorArrayOption = "8x10",
    number: FormatOption = "int16",
    value_words: ValueWordsOption = 4096,
    sum_words: SumWordsOption = 2048,
    predictor_words: Annotated[int, typer.Option(help="Words of the predictor's weights in each column.")] = 19_664,
    as_json: JsonOption = False,
) -> None:
    """LUTs, registers, DSPs and block RAMs, or cells and area, by kind of module. Results are kept; the first takes minutes."""
    words = {"value_words": value_words, "sum_words": sum_words, "predictor_words": predictor_words}
    names = ("baseline", "low", "efficient", "max") if design == "all" else (design,)
    blueprints = {name: _blueprint(name, array, predictor_array, number, **words) for name in names}
    from adagp.rtl.synthesis import parse_target
    from adagp.rtl.synthesis import synthesize as synthesis

    chosen = parse_target(f"liberty:{liberty}" if liberty is not None else target)
    report: dict[str, Any] = {}
    for name, blueprint in blueprints.items():
        found = synthesis(blueprint, chosen, lambda kind, name=name: typer.echo(f"{name}: {kind}", err=True))  # type: ignore[misc]
        report[name] = {
            "totals": found.totals,
            "memory_bits": blueprint.memory_bits,
            "modules": {kind: {"count": found.counts[kind], **one} for kind, one in found.modules.items()},
        }
    if as_json:
        typer.echo(json.dumps({"target": chosen.name, "array": array, "format": number, "designs": report}, indent=2))
    else:
        _print_resources(report)


def _print_resources(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    for design, found in report.items():
        names = list(found["totals"])
        table = Table(title=design, title_justify="left")
        for column in ("module", "count", *names):
            table.add_column(column, justify="left" if column == "module" else "right")
        for kind, one in found["modules"].items():
            table.add_row(kind, str(one["count"]), *(f"{one[name]:,.0f}" for name in names))
        table.add_row("total", "", *(f"{found['totals'][name]:,.0f}" for name in names), style="bold")
        Console().print(table)
