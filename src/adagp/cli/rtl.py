"""`adagp rtl`: the accelerator as hardware. Nothing heavy is imported before a command runs."""

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagp.cli.options import HELP_FLAGS, Command, CommandGroup, Json, epilog, with_options
from adagp.cli.simulation_options import BATCH_SIZE
from adagp.core.escape import escaped
from adagp.core.files import check_output_file
from adagp.core.options import option, switch
from adagp.errors import OptionError
from adagp.hw.dataflows import check_size

if TYPE_CHECKING:
    from adagp.rtl.blueprint import Blueprint

DESIGNS = ("baseline", "low", "efficient", "max")
CHIP = "Chip"

Design = Annotated[str, option("Design: baseline, low, efficient or max.", panel=CHIP)]
Designs = Annotated[str, option("Design: baseline, low, efficient, max, or all of them.", panel=CHIP)]
ChipArray = Annotated[
    str, option("Array of processing elements (PEs), ROWSxCOLUMNS, at least 2x2.", panel=CHIP, also=check_size)
]
PredictorArray = Annotated[
    str | None,
    option(
        "Array of the predictor in design max, ROWSxCOLUMNS.",
        panel=CHIP,
        unset="two thirds of each side",
        also=check_size,
    ),
]
Format = Annotated[
    str,
    option(
        "Number format: int8, int16, bf16, fp16, fp32; or bfp (block floating point, for products only).",
        "--format",
        panel=CHIP,
    ),
]
ValueWords = Annotated[int, option("Words in each bank of values.", panel=CHIP, low=1)]
Stages = Annotated[
    int, option("0, or 1 to add a register after each multiplier, for a faster clock.", panel=CHIP, low=0, high=1)
]
SumWords = Annotated[int, option("Words in each bank of sums.", panel=CHIP, low=1)]


@dataclass(frozen=True)
class ChipOptions:
    """A chip of any design: arrays, number format, and the words of its banks."""

    array: ChipArray = "12x15"
    predictor_array: PredictorArray = None
    number: Format = "int16"
    value_words: ValueWords = 4096
    sum_words: SumWords = 2048
    predictor_words: Annotated[int, option("Words of the predictor's weights in each column.", panel=CHIP, low=1)] = (
        19_664
    )
    pool_words: Annotated[
        int, option("Words for pooled outputs in each column, for the predictor.", panel=CHIP, low=1)
    ] = 1024
    pipeline_stages: Stages = 0

    def blueprint(self, design: str, **more: int) -> "Blueprint":
        """Return the chip of a design."""
        words = {field.name: getattr(self, field.name) for field in fields(self) if field.name.endswith("_words")}
        words |= {"stages": self.pipeline_stages, **more}
        return make_chip(design, self.array, self.predictor_array, self.number, **words)

    def blueprints(self, designs: str) -> "dict[str, Blueprint]":
        """Return the chips of a design, or of all of them."""
        return {name: self.blueprint(name) for name in (DESIGNS if designs == "all" else (designs,))}


def make_chip(design: str, array: str, predictor_array: str | None, number: str, **details: int) -> "Blueprint":
    """Return the chip that options describe. The modules of the hardware are imported here, not before."""
    from adagp.hw.dataflows import parse_array
    from adagp.rtl.tools import need_amaranth

    need_amaranth()
    from adagp.rtl.blueprint import make_blueprint
    from adagp.rtl.formats import find_format

    second = None if predictor_array is None else parse_array(predictor_array)
    return make_blueprint(design, parse_array(array), find_format(number), predictor_array=second, **details)


rtl = typer.Typer(
    name="rtl",
    cls=CommandGroup,
    context_settings=HELP_FLAGS,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

ChipDataflow = Annotated[str, option("Dataflow: ws, os or is.")]
Seed = Annotated[int, option("Random seed.", low=0)]
BatchOfSamples = Annotated[int, option("Samples per batch.", *BATCH_SIZE, low=1)]


def _print_report(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(report, indent=2))
        return
    for name, value in report.items():
        if name == "batches":
            _print_batches(value)
        else:
            typer.echo(f"{name.replace('_', ' ')}: {_yes_or_no(value)}")


def _conclude(report: dict[str, Any], as_json: bool) -> None:
    """Print a comparison with the models and its verdict; exit with code 1 if there is a difference."""
    _print_report(report, as_json)
    if not as_json:
        verb = "agrees with" if report["equal"] else "differs from"
        typer.echo(f"The simulated hardware {verb} the models.")
    if not report["equal"]:
        raise typer.Exit(1)


def _print_batches(batches: list[dict[str, Any]]) -> None:
    """Print a column for each batch; a count that is listed by memory is summed."""
    from adagp.cli.terminal import Terminal, table_of

    columns = ("", *(f"batch {number + 1}, {batch['phase']}" for number, batch in enumerate(batches)))
    rows = []
    for name in (name for name in batches[0] if name != "phase"):
        values = (batch[name] for batch in batches)
        texts = (f"{sum(value.values()):,}" if isinstance(value, dict) else _yes_or_no(value) for value in values)
        rows.append((name.replace("_", " "), *texts))
    Terminal().print(table_of(columns, rows))


def _yes_or_no(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def generate(
    chip: ChipOptions,
    out: Annotated[Path, option("Folder for chip.v, testbench.v, manifest.json and README.md.")],
    design: Design = "baseline",
    axi: Annotated[bool, switch("--axi", "Also write axi_chip.v: the chip behind AXI-Lite and AXI-Stream.")] = False,
    dma: Annotated[
        int,
        option(
            "Also write dma_chip.v: the chip with a DMA that moves this many values per cycle, for products larger than the "
            "banks (design baseline).",
            low=0,
        ),
    ] = 0,
    as_json: Json = False,
) -> None:
    """Write a chip as Verilog, with a test bench, a manifest and a README."""
    blueprint = chip.blueprint(design, dma_words=dma)
    from adagp.rtl.generate import generate as write_folder

    about = write_folder(blueprint, out, axi=axi)
    _print_report(about if as_json else {"written": out, "digest": about["digest"]}, as_json)
    if not as_json and (out / "testbench.v").exists():  # chips of block floating point have none
        typer.echo(f"Next: cd {escaped(out)} && iverilog -g2005 -o bench chip.v testbench.v && vvp bench")


def simulate(
    size: Annotated[str, option("Size of the forward product, ROWSxDEPTHxCOLUMNS.")] = "20x30x40",
    array: ChipArray = "4x4",
    dataflow: ChipDataflow = "ws",
    operation: Annotated[str, option("Operation: forward, dx or dw.")] = "forward",
    number: Format = "int16",
    mantissa_bits: Annotated[
        str | None,
        option(
            "Mantissa bits of format bfp: 2 or 4, or one for weights, activations and gradients each, such as 4,2,4.",
            unset="4",
        ),
    ] = None,
    value_words: ValueWords = 4096,
    sum_words: SumWords = 2048,
    pipeline_stages: Stages = 0,
    dma: Annotated[
        int,
        option(
            "A DMA moves this many values per cycle from external memory, tile by tile: for products larger than the banks.",
            low=0,
        ),
    ] = 0,
    memory_interval: Annotated[
        int | None, option("With --dma: external memory transfers one beat every N cycles.", unset="1", low=1)
    ] = None,
    memory_latency: Annotated[
        int | None, option("With --dma: read latency of the external memory in cycles.", unset="1", low=1)
    ] = None,
    seed: Seed = 0,
    vcd: Annotated[Path | None, option("Write the waveforms to FILE.vcd.", unset="none")] = None,
    as_json: Json = False,
) -> None:
    """Simulate a product of random matrices on the array, and compare values, cycles and accesses with the models."""
    if re.fullmatch(r"\d+x\d+x\d+", size) is None:
        raise OptionError(f"cannot read the product '{size}'; write ROWSxDEPTHxCOLUMNS, for example 20x30x40.")
    if vcd is not None:
        if vcd.exists():
            raise OptionError(f"'{escaped(vcd)}' exists already; give another --vcd.")
        check_output_file(vcd, "write the waveforms to")
    blueprint = make_chip(
        "baseline",
        array,
        None,
        number,
        value_words=value_words,
        sum_words=sum_words,
        program_words=8,
        stages=pipeline_stages,
        dma_words=dma,
    )
    rows, depth, columns = map(int, size.split("x"))
    if dma:
        if vcd is not None or mantissa_bits is not None:
            raise OptionError("--vcd and --mantissa-bits cannot be combined with --dma.")
        from adagp.rtl.tiled_products import ExternalMemory, check_tiled_product

        memory = ExternalMemory(memory_interval or 1, memory_latency or 1)
        report = check_tiled_product(blueprint, dataflow, operation, (rows, depth, columns), memory, seed)
    else:
        if memory_interval is not None or memory_latency is not None:
            raise OptionError("--memory-interval and --memory-latency have no effect without --dma.")
        from adagp.rtl.products import check_product

        report = check_product(blueprint, dataflow, operation, (rows, depth, columns), seed, vcd, mantissa_bits)
    _conclude(report, as_json)


def run(
    network: Annotated[str, option("Layer widths, input first.")] = "12-10-6",
    picture: Annotated[
        str, option("Image size for convolutional layers, HEIGHTxWIDTH; 1x1: fully connected layers.")
    ] = "1x1",
    kernel: Annotated[
        int, option("Kernel size of the convolutions: 1 or 3. 3 needs --picture and dataflow ws.", low=1, high=3)
    ] = 1,
    batch: BatchOfSamples = 4,
    phases: Annotated[str, option("Phases of the batches: bp and gp, separated by commas.")] = "bp,gp",
    design: Design = "max",
    dataflow: Annotated[str, option("Dataflow of the layers: ws, os or is. The predictor's is ws.")] = "ws",
    array: ChipArray = "4x4",
    predictor_array: PredictorArray = None,
    number: Format = "int16",
    pipeline_stages: Stages = 0,
    grid: Annotated[int, option("Height and width of the predictor's pooled input.", low=1)] = 2,
    channels: Annotated[int, option("Channels of the predictor's convolution.", low=1)] = 2,
    rate: Annotated[float, option("Learning rate of the layers.", above=0)] = 2**-4,
    predictor_rate: Annotated[float, option("Learning rate of the predictor.", above=0)] = 2**-4,
    memory_latency: Annotated[
        int, option("Maximum random extra latency of off-chip memory in cycles (design low only).", low=0, high=255)
    ] = 0,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Train a small network for a few batches in simulated hardware, and compare every weight with the golden model."""
    blueprint = make_chip(design, array, predictor_array, number, predictor_words=4096, stages=pipeline_stages)
    from adagp.hw.accelerator import PredictorShape
    from adagp.rtl.network import parse_network
    from adagp.rtl.training import check_batches

    shape = PredictorShape(grid, channels)
    rates = {"rate": rate, "predictor_rate": predictor_rate}
    small = parse_network(network, picture, batch=batch, predictor=shape, kernel=kernel, **rates)
    report = check_batches(blueprint, small, phases.lower().split(","), dataflow, seed, memory_latency)
    _conclude(report, as_json)


def synthesize(
    chip: ChipOptions,
    target: Annotated[str, option("Target: xc7, liberty (Debian's osu018) or liberty:FILE.")] = "xc7",
    liberty: Annotated[Path | None, option("Same as --target liberty:FILE.", unset="none")] = None,
    design: Designs = "all",
    as_json: Json = False,
) -> None:
    """Synthesise chips: LUTs, registers, DSPs and block RAMs, or cells and area. Cached; the first run takes minutes."""
    blueprints = chip.blueprints(design)
    from adagp.papers.adagp.hardware import equal_pes
    from adagp.rtl.synthesis import parse_target
    from adagp.rtl.synthesis import synthesize as synthesis

    chosen = parse_target(f"liberty:{liberty}" if liberty is not None else target)
    report: dict[str, Any] = {}
    for name, blueprint in blueprints.items():
        result = synthesis(blueprint, chosen, lambda kind, name=name: typer.echo(f"{name}: {kind}", err=True))  # type: ignore[misc]
        report[name] = {
            "totals": result.totals,
            "memory_bits": blueprint.memory_bits,
            "modules": {kind: {"count": result.counts[kind], **used} for kind, used in result.modules.items()},
        }
    about: dict[str, Any] = {"target": chosen.name, "array": chip.array, "format": chip.number}
    if chosen.liberty is not None:
        areas = {name: chip_report["totals"]["area"] for name, chip_report in report.items()}
        one_pe = next(iter(report.values()))["modules"]["element"]["area"]
        about["equal_area_pes"] = equal_pes(areas, next(iter(blueprints.values())).core.array.pes, one_pe)
    if as_json:
        typer.echo(json.dumps({**about, "designs": report}, indent=2))
    else:
        _print_resources(report)
        _print_equal(about, "equal_area_pes", "area")


def place(
    chip: ChipOptions,
    design: Designs = "all",
    seed: Annotated[
        int, option("Random seed of the placer; the routed clock varies with it by a few per cent.", low=0)
    ] = 1,
    as_json: Json = False,
) -> None:
    """Place and route chips on an ECP5-85k: clock, LUTs, multipliers, block RAMs. Cached; a small chip takes minutes."""
    blueprints = chip.blueprints(design)
    from adagp.rtl.place import need_nextpnr
    from adagp.rtl.place import place as place_chip

    need_nextpnr()
    report: dict[str, Any] = {}
    for name, blueprint in blueprints.items():
        typer.echo(f"{name}: placing", err=True)
        report[name] = place_chip(blueprint, seed).as_dict()
    if as_json:
        about = {"target": "ecp5-85k", "array": chip.array, "format": chip.number, "seed": seed}
        typer.echo(json.dumps({**about, "designs": report}, indent=2))
        return
    from adagp.cli.terminal import Terminal, table_of

    rows = [
        (name, *(f"{value:,}" if not isinstance(value, str) else value for value in found.values()))
        for name, found in report.items()
    ]
    names = next(iter(report.values()))
    Terminal().print(table_of(("design", *(name.replace("_", " ") for name in names)), rows))


def _print_equal(about: dict[str, Any], name: str, what: str) -> None:
    if about.get(name) is not None:
        option = name.replace("_", "-")
        typer.echo(f"a baseline with the {what} of max has {about[name]:.3f} times the PEs (adagp simulate --{option})")


def power(
    chip: ChipOptions,
    network: Annotated[str, option("Layer widths, input first; 64 inputs: digits.")] = "64-32-10",
    batch: BatchOfSamples = 8,
    liberty: Annotated[Path | None, option("Liberty file of the cells.", unset="Debian's osu018, 180 nm")] = None,
    clock: Annotated[float, option("Clock frequency in megahertz.", above=0)] = 10.0,
    node: Annotated[
        int | None,
        option(
            "Process node of the cells in nanometres; simulate --from-rtl scales energies by it.",
            unset="180 for osu018; otherwise unknown",
            low=1,
            high=10_000,
        ),
    ] = None,
    design: Designs = "all",
    dataflow: ChipDataflow = "ws",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Measure the gates' power while the chip trains two batches of digits, and check the clock, with OpenSTA."""
    blueprints = chip.blueprints(design)
    from adagp.papers.adagp.hardware import equal_pes
    from adagp.rtl.liberty import nominal_volts
    from adagp.rtl.network import digits, parse_network, random_state
    from adagp.rtl.power import check_power, measure_power
    from adagp.rtl.synthesis import OSU018, OSU018_NODE, parse_target

    target = parse_target("liberty" if liberty is None else f"liberty:{liberty}")
    small = parse_network(network, batch=batch)
    for blueprint in blueprints.values():  # before anything is built
        check_power(blueprint, small, clock, dataflow)
    state = random_state(small, next(iter(blueprints.values())).core.single, seed, digits(small))
    report: dict[str, Any] = {}
    for name, blueprint in blueprints.items():
        tell = lambda what, name=name: typer.echo(f"{name}: {what}", err=True)  # noqa: E731
        report[name] = measure_power(blueprint, target, small, state, clock, dataflow, tell).as_dict()
    about: dict[str, Any] = {
        "target": target.name,
        "array": chip.array,
        "format": chip.number,
        "network": network,
        "batch": batch,
        "node_nm": node or (OSU018_NODE if target.liberty == OSU018 else None),
        "volts": nominal_volts(target.library),
    }
    one_pe = next(iter(report.values()))["modules"]["element"]["watts"]
    pes = next(iter(blueprints.values())).core.array.pes
    about["equal_power_pes"] = equal_pes({name: figures["watts"] for name, figures in report.items()}, pes, one_pe)
    if as_json:
        typer.echo(json.dumps({**about, "designs": report}, indent=2))
    else:
        _print_power(report)
        _print_equal(about, "equal_power_pes", "power")


def _print_power(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    for design, chip in report.items():
        table = Table(title=design, title_justify="left")
        for column in ("module", "count", "milliwatts each", "changes per cycle and pin"):
            table.add_column(column, justify="left" if column == "module" else "right")
        for kind, module in chip["modules"].items():
            row = (f"{1e3 * module['watts']:,.4f}", f"{module['changes_per_cycle']:.4f}")
            table.add_row(kind, str(module["count"]), *row)
        table.add_row("total", "", f"{1e3 * chip['watts']:,.3f}", "", style="bold")
        Console().print(table)
        met = "met" if chip["timing_met"] else "not met"
        typer.echo(
            f"{chip['megahertz']:g} MHz is {met}: the critical path takes {chip['shortest_period_ns']:.2f} ns, "
            f"from {chip['longest_path']['from']} to {chip['longest_path']['to']}. "
            f"{chip['cycles']:,} cycles, {1e6 * chip['joules']:.3f} microjoules. "
            "Memory banks, wires and the clock tree are not included."
        )


def _print_resources(report: dict[str, Any]) -> None:
    from adagp.cli.terminal import Terminal, table_of

    for design, chip in report.items():
        names = list(chip["totals"])
        rows = [(kind, resources["count"], resources) for kind, resources in chip["modules"].items()]
        texts = [
            (kind, str(count), *(f"{resources[name]:,.0f}" for name in names))
            for kind, count, resources in (*rows, ("total", "", chip["totals"]))
        ]
        Terminal().print(table_of(("module", "count", *names), texts, title=design, title_justify="left"))


COMMANDS = (generate, simulate, run, synthesize, place, power)
for command in COMMANDS:
    rtl.command(cls=Command, epilog=epilog(f"rtl {command.__name__}"))(with_options(command))
