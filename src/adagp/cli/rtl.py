"""`adagp rtl`: the accelerator as hardware. Nothing heavy is imported before a command runs."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagp.cli.options import Json, option, with_options
from adagp.errors import OptionError
from adagp.hw.array import check_size

if TYPE_CHECKING:
    from adagp.rtl.chip import Blueprint

rtl = typer.Typer(
    name="rtl",
    help="The accelerator as hardware: Verilog, simulation cycle by cycle, synthesis.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

DESIGNS = ("baseline", "low", "efficient", "max")
ChipDesign = Annotated[str, option("baseline, low, efficient or max.")]
ChipArray = Annotated[str, option("PEs, ROWSxCOLUMNS, at least 2x2.", also=check_size)]
BesideArray = Annotated[
    str | None,
    option("PEs of the predictor in design max.", unset="two thirds of each side", also=check_size),
]
Format = Annotated[str, option("int8, int16, bf16, fp16 or fp32.", "--format")]
ValueWords = Annotated[int, option("Words in each bank of values.", low=1)]
SumWords = Annotated[int, option("Words in each bank of sums.", low=1)]
PredictorWords = Annotated[int, option("Words of the predictor's weights in each column.", low=1)]
Seed = Annotated[int, option("Of what is drawn: matrices, weights, samples.", low=0)]


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


def generate(
    out: Annotated[Path, option("Folder for chip.v, manifest.json and README.md.")],
    design: ChipDesign = "baseline",
    array: ChipArray = "12x15",
    predictor_array: BesideArray = None,
    number: Format = "int16",
    value_words: ValueWords = 4096,
    sum_words: SumWords = 2048,
    predictor_words: PredictorWords = 19_664,
    as_json: Json = False,
) -> None:
    """Write a chip as Verilog, with a manifest and a page on how to use it."""
    words = {"value_words": value_words, "sum_words": sum_words, "predictor_words": predictor_words}
    blueprint = _blueprint(design, array, predictor_array, number, **words)
    from adagp.rtl import generate as generation

    about = generation.generate(blueprint, out)
    _tell(about if as_json else {"written": out, "digest": about["digest"]}, as_json)


def simulate(
    size: Annotated[str, option("The forward product, ROWSxDEPTHxCOLUMNS.")] = "20x30x40",
    array: ChipArray = "4x4",
    dataflow: Annotated[str, option("ws, os or is.")] = "ws",
    operation: Annotated[str, option("forward, dx or dw.")] = "forward",
    number: Format = "int16",
    value_words: ValueWords = 4096,
    sum_words: SumWords = 2048,
    seed: Seed = 0,
    vcd: Annotated[Path | None, option("Write the waveforms to FILE.vcd.", unset="none")] = None,
    as_json: Json = False,
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


def run(
    network: Annotated[str, option("Widths of fully connected layers, input first.")] = "12-10-6",
    batch: Annotated[int, option("Samples per batch.", low=1)] = 4,
    phases: Annotated[str, option("Batches one after the other: bp and gp, separated by commas.")] = "bp,gp",
    design: ChipDesign = "max",
    array: ChipArray = "4x4",
    predictor_array: BesideArray = None,
    number: Format = "int16",
    grid: Annotated[int, option("Side of the predictor's pooled picture.", low=1)] = 2,
    channels: Annotated[int, option("Channels of the predictor's convolution.", low=1)] = 2,
    rate: Annotated[float, option("Step of the layers' weights.", above=0)] = 2**-4,
    predictor_rate: Annotated[float, option("Step of the predictor's weights.", above=0)] = 2**-4,
    seed: Seed = 0,
    as_json: Json = False,
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


def synthesize(
    target: Annotated[str, option("xc7, liberty (Debian's osu018) or liberty:FILE.")] = "xc7",
    liberty: Annotated[Path | None, option("The same as --target liberty:FILE.", unset="none")] = None,
    design: Annotated[str, option("all, or one of baseline, low, efficient, max.")] = "all",
    array: ChipArray = "12x15",
    predictor_array: BesideArray = "8x10",
    number: Format = "int16",
    value_words: ValueWords = 4096,
    sum_words: SumWords = 2048,
    predictor_words: PredictorWords = 19_664,
    as_json: Json = False,
) -> None:
    """LUTs, registers, DSPs and block RAMs, or cells and area, by kind of module. Results are kept; the first takes minutes."""
    words = {"value_words": value_words, "sum_words": sum_words, "predictor_words": predictor_words}
    names = DESIGNS if design == "all" else (design,)
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
    from adagp.cli.terminal import Terminal, table_of

    for design, found in report.items():
        names = list(found["totals"])
        rows = [(kind, one["count"], one) for kind, one in found["modules"].items()]
        texts = [
            (kind, str(count), *(f"{one[name]:,.0f}" for name in names))
            for kind, count, one in (*rows, ("total", "", found["totals"]))
        ]
        Terminal().print(table_of(("module", "count", *names), texts, title=design, title_justify="left"))


COMMANDS = (generate, simulate, run, synthesize)
for command in COMMANDS:
    rtl.command()(with_options(command))
