"""`adagp rtl`: the accelerator as hardware. Nothing heavy is imported before a command runs."""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagp.cli.options import Json, option, with_options
from adagp.errors import OptionError
from adagp.hw.array import check_size

if TYPE_CHECKING:
    from adagp.rtl.chip import Blueprint
    from adagp.rtl.network import Samples

rtl = typer.Typer(
    name="rtl",
    help="The accelerator as hardware: Verilog, simulation cycle by cycle, synthesis, power.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

DESIGNS = ("baseline", "low", "efficient", "max")
ChipDesign = Annotated[str, option("baseline, low, efficient or max.")]
ChipDesigns = Annotated[str, option("all, or one of baseline, low, efficient, max.")]
ChipArray = Annotated[str, option("PEs, ROWSxCOLUMNS, at least 2x2.", also=check_size)]
BesideArray = Annotated[
    str | None,
    option("PEs of the predictor in design max.", unset="two thirds of each side", also=check_size),
]
Format = Annotated[str, option("int8, int16, bf16, fp16 or fp32.", "--format")]
ChipDataflow = Annotated[str, option("ws, os or is.")]
ValueWords = Annotated[int, option("Words in each bank of values.", low=1)]
SumWords = Annotated[int, option("Words in each bank of sums.", low=1)]
PredictorWords = Annotated[int, option("Words of the predictor's weights in each column.", low=1)]
PoolWords = Annotated[int, option("Totals of pooled outputs in each column, for the predictor.", low=1)]
Seed = Annotated[int, option("Of what is drawn: matrices, weights, samples.", low=0)]
BatchOfSamples = Annotated[int, option("Samples per batch.", low=1)]


def _blueprint(design: str, array: str, predictor_array: str | None, number: str, **words: int) -> "Blueprint":
    from adagp.hw.array import parse_array
    from adagp.rtl.tools import need_amaranth

    need_amaranth()
    from adagp.rtl.designs import make_blueprint
    from adagp.rtl.formats import find_format

    beside = None if predictor_array is None else parse_array(predictor_array)
    return make_blueprint(design, parse_array(array), find_format(number), predictor_array=beside, **words)


def _words(value_words: int, sum_words: int, predictor_words: int, pool_words: int) -> dict[str, int]:
    return {
        "value_words": value_words,
        "sum_words": sum_words,
        "predictor_words": predictor_words,
        "pool_words": pool_words,
    }


def _designs(name: str) -> tuple[str, ...]:
    return DESIGNS if name == "all" else (name,)


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
    pool_words: PoolWords = 1024,
    as_json: Json = False,
) -> None:
    """Write a chip as Verilog, with a manifest and a page on how to use it."""
    words = _words(value_words, sum_words, predictor_words, pool_words)
    blueprint = _blueprint(design, array, predictor_array, number, **words)
    from adagp.rtl import generate as generation

    about = generation.generate(blueprint, out)
    _tell(about if as_json else {"written": out, "digest": about["digest"]}, as_json)


def simulate(
    size: Annotated[str, option("The forward product, ROWSxDEPTHxCOLUMNS.")] = "20x30x40",
    array: ChipArray = "4x4",
    dataflow: ChipDataflow = "ws",
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
    network: Annotated[str, option("Widths of layers, input first.")] = "12-10-6",
    picture: Annotated[
        str, option("HEIGHTxWIDTH: the layers are convolutions of 1x1 over it. 1x1: fully connected layers.")
    ] = "1x1",
    batch: BatchOfSamples = 4,
    phases: Annotated[str, option("Batches one after the other: bp and gp, separated by commas.")] = "bp,gp",
    design: ChipDesign = "max",
    dataflow: Annotated[str, option("Of the layers: ws, os or is; the predictor's is ws.")] = "ws",
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
    blueprint = _blueprint(design, array, predictor_array, number, **_words(4096, 2048, 4096, 1024))
    from adagp.hw.predictor import PredictorShape
    from adagp.rtl.check import check_batches
    from adagp.rtl.network import parse_network

    shape = PredictorShape(grid, channels)
    small = parse_network(network, picture, batch=batch, predictor=shape, rate=rate, predictor_rate=predictor_rate)
    report = check_batches(blueprint, small, phases.lower().split(","), dataflow, seed)
    _tell(report, as_json)
    if not report["equal"]:
        raise typer.Exit(1)


def synthesize(
    target: Annotated[str, option("xc7, liberty (Debian's osu018) or liberty:FILE.")] = "xc7",
    liberty: Annotated[Path | None, option("The same as --target liberty:FILE.", unset="none")] = None,
    design: ChipDesigns = "all",
    array: ChipArray = "12x15",
    predictor_array: BesideArray = "8x10",
    number: Format = "int16",
    value_words: ValueWords = 4096,
    sum_words: SumWords = 2048,
    predictor_words: PredictorWords = 19_664,
    pool_words: PoolWords = 1024,
    as_json: Json = False,
) -> None:
    """LUTs, registers, DSPs and block RAMs, or cells and area, by kind of module. Results are kept; the first takes minutes."""
    words = _words(value_words, sum_words, predictor_words, pool_words)
    blueprints = {name: _blueprint(name, array, predictor_array, number, **words) for name in _designs(design)}
    from adagp.hw.designs import equal_pes
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
    about: dict[str, Any] = {"target": chosen.name, "array": array, "format": number}
    if chosen.liberty is not None:
        areas = {name: one["totals"]["area"] for name, one in report.items()}
        one_pe = next(iter(report.values()))["modules"]["element"]["area"]
        about["equal_area_pes"] = equal_pes(areas, next(iter(blueprints.values())).core.array.pes, one_pe)
    if as_json:
        typer.echo(json.dumps({**about, "designs": report}, indent=2))
    else:
        _print_resources(report)
        _print_equal(about, "equal_area_pes", "area")


def _print_equal(about: dict[str, Any], name: str, what: str) -> None:
    if about.get(name) is not None:
        option = name.replace("_", "-")
        typer.echo(f"a baseline of the {what} of max has {about[name]:.3f} times its PEs (adagp simulate --{option})")


def power(
    network: Annotated[str, option("Widths of the layers that are trained; 64 inputs: digits.")] = "64-32-10",
    batch: BatchOfSamples = 8,
    liberty: Annotated[Path | None, option("Cells: a Liberty file.", unset="Debian's osu018, 180 nm")] = None,
    clock: Annotated[float, option("Megahertz.", above=0)] = 10.0,
    design: ChipDesigns = "all",
    dataflow: ChipDataflow = "ws",
    array: ChipArray = "12x15",
    predictor_array: BesideArray = "8x10",
    number: Format = "int16",
    value_words: ValueWords = 4096,
    sum_words: SumWords = 2048,
    predictor_words: PredictorWords = 19_664,
    pool_words: PoolWords = 1024,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Watts of the gates while two batches of real digits are trained, and whether they meet the clock; by OpenSTA."""
    words = _words(value_words, sum_words, predictor_words, pool_words)
    blueprints = {name: _blueprint(name, array, predictor_array, number, **words) for name in _designs(design)}
    from adagp.hw.designs import equal_pes
    from adagp.rtl.network import parse_network, random_state
    from adagp.rtl.power import check_power, measure_power
    from adagp.rtl.synthesis import parse_target

    target = parse_target("liberty" if liberty is None else f"liberty:{liberty}")
    small = parse_network(network, batch=batch)
    for blueprint in blueprints.values():  # before anything is built
        check_power(blueprint, small, clock, dataflow)
    state = random_state(small, next(iter(blueprints.values())).core.number, seed, _digits(small.widths, batch))
    report: dict[str, Any] = {}
    for name, blueprint in blueprints.items():
        tell = lambda what, name=name: typer.echo(f"{name}: {what}", err=True)  # noqa: E731
        report[name] = measure_power(blueprint, target, small, state, clock, dataflow, tell).as_dict()
    about: dict[str, Any] = {
        "target": target.name,
        "array": array,
        "format": number,
        "network": network,
        "batch": batch,
    }
    one_pe = next(iter(report.values()))["modules"]["element"]["watts"]
    pes = next(iter(blueprints.values())).core.array.pes
    about["equal_power_pes"] = equal_pes({name: one["watts"] for name, one in report.items()}, pes, one_pe)
    if as_json:
        typer.echo(json.dumps({**about, "designs": report}, indent=2))
    else:
        _print_power(report)
        _print_equal(about, "equal_power_pes", "power")


def _digits(widths: tuple[int, ...], batch: int) -> "Samples | None":
    """Return some of the packaged digits and their classes, if the network has as many inputs as they have pixels."""
    import numpy as np

    if widths[0] != 64 or widths[-1] != 10:
        return None
    with np.load(str(files("adagp.data") / "digits.npz")) as archive:
        pixels, classes = archive["x_train"][:batch], archive["y_train"][:batch]
    inputs = pixels.reshape(len(pixels), -1) / pixels.max()
    return inputs, np.eye(10)[classes]


def _print_power(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    for design, found in report.items():
        table = Table(title=design, title_justify="left")
        for column in ("module", "count", "milliwatts each", "changes per cycle and pin"):
            table.add_column(column, justify="left" if column == "module" else "right")
        for kind, one in found["modules"].items():
            row = (f"{1e3 * one['watts']:,.4f}", f"{one['changes_per_cycle']:.4f}")
            table.add_row(kind, str(one["count"]), *row)
        table.add_row("total", "", f"{1e3 * found['watts']:,.3f}", "", style="bold")
        Console().print(table)
        met = "met" if found["timing_met"] else "not met"
        typer.echo(
            f"{found['megahertz']:g} MHz is {met}: the longest path takes {found['shortest_period_ns']:.2f} ns. "
            f"{found['cycles']:,} cycles, {1e6 * found['joules']:.3f} microjoules. Banks, wires and clock tree are left out."
        )


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


COMMANDS = (generate, simulate, run, synthesize, power)
for command in COMMANDS:
    rtl.command()(with_options(command))
