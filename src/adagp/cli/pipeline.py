"""`adagp pipeline`: a dry run of a training pipeline over several devices."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from adagp.cli.options import OUTPUT, Json, Picture
from adagp.cli.simulation_options import BATCH_SIZE
from adagp.core.escape import escaped
from adagp.core.files import read_text
from adagp.core.options import Option, declared_options, option, switch
from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.hw import DESIGNS, Accelerator
from adagp.hw.hardware_file import Hardware, read_hardware
from adagp.hw.settings import SETTINGS, with_settings
from adagp.pipe import PIPELINES, Costs, Program, Timeline, constant_costs, generate, parse_phases, parse_program
from adagp.pipe import simulate as dry_run
from adagp.pipe.modelled import modelled_costs
from adagp.pipe.timeline import Link
from adagp.program.figures.gantt import check_drawable, gantt_legend, plot_gantt, text_gantt
from adagp.program.workloads import dataset_info, model_workload, sample_shape

_PIPELINE, _MODEL = "Pipeline", "Model on accelerators"


_constant = partial(option, panel=_PIPELINE, low=0, high=1e12)
_modelled = partial(option, panel=_MODEL)


@dataclass(frozen=True)
class ConstantCosts:
    """Costs of a step without --model."""

    forward: Annotated[float, _constant("Time of a micro-batch's forward pass, in steps.")] = 1.0
    backward: Annotated[float, _constant("Time of a micro-batch's backward pass, in steps.")] = 2.0
    alpha: Annotated[float, _constant("Time of the predictor per batch, in units of a micro-batch's forward pass.")] = (
        0.0
    )


@dataclass(frozen=True)
class ModelledCosts:
    """Options with --model: costs are modelled from the samples, the accelerator of each device, and the links."""

    dataset: Annotated[str, _modelled("Data set, which sets the image shape and classes.")] = "imagenet"
    input: Annotated[str | None, _modelled("Input shape, for example 3x64x64.", unset="the data set's")] = None
    image_size: Annotated[
        int | None, _modelled("Height and width of the images.", unset="the data set's", low=1, high=65_536)
    ] = None
    batch: Annotated[int, _modelled("Samples per batch.", *BATCH_SIZE, low=1)] = 128
    design: Annotated[str, _modelled("Design of each accelerator.")] = "max"
    dataflow: Annotated[str, replace(SETTINGS["dataflow"], panel=_MODEL)] = "ws"
    hardware: Annotated[
        Path | None,
        _modelled(
            "Hardware file of each device and the links between them, for settings that are not given.", unset="none"
        ),
    ] = None
    bandwidth: Annotated[
        float | None,
        replace(
            SETTINGS["bandwidth"],
            help="Bandwidth between devices in gigabytes per second.",
            panel=_MODEL,
            default=None,
            unset="the hardware file's, or inf",
        ),
    ] = None
    latency: Annotated[
        float | None,
        _modelled("Latency of a transfer in microseconds.", low=0, high=1e9, unset="the hardware file's, or 0"),
    ] = None

    @property
    def chip(self) -> Hardware:
        """The contents of the hardware file; empty without one."""
        return Hardware("", {}) if self.hardware is None else read_hardware(self.hardware)

    def link(self, chip: Hardware) -> Link:
        """Return the link between two devices, from the options, else from the file, else one that takes no time."""
        bandwidth, latency = (
            next((value for value in values if value is not None), default)
            for *values, default in (
                (self.bandwidth, chip.links.bandwidth_gb_s, inf),
                (self.latency, chip.links.latency_us, 0.0),
            )
        )
        return Link(bandwidth * 1e9, latency / 1e6)


CONSTANTS, MODELLED = declared_options(ConstantCosts), declared_options(ModelledCosts)


def more_options(command: str) -> Sequence[Option]:
    """Return the options that set the costs."""
    return (*CONSTANTS.values(), *MODELLED.values())


def pipeline(
    *,
    schedule: Annotated[
        str,
        option(
            "Pipeline schedule: gpipe, dapple (1f1b), chimera, interleaved, zb-h1, zb-v, a plugin's, or a file (.txt).",
            panel=_PIPELINE,
        ),
    ] = "gpipe",
    devices: Annotated[int, option("Number of devices (pipeline stages).", panel=_PIPELINE, low=1, high=4096)] = 4,
    micro_batches: Annotated[int, option("Micro-batches per batch.", panel=_PIPELINE, low=1)] = 4,
    phases: Annotated[str, option("Phase of each batch, separated by commas.", panel=_PIPELINE)] = "GP,BP",
    model: Annotated[
        str | None,
        option(
            "Take the costs of a stage from this model on an accelerator, instead of --forward, --backward and --alpha.",
            panel=_MODEL,
            unset="none",
        ),
    ] = None,
    overrides: Mapping[str, Any],
    actions: Annotated[bool, switch("--actions", "Print only the actions of each device.", panel=OUTPUT)] = False,
    as_json: Json = False,
    plot: Picture = None,
) -> None:
    """Model steps, bubbles and stored activations of a device pipeline with ADA-GP, without running it."""
    program = read_program(schedule, devices, micro_batches, phases)
    if plot is not None:
        check_drawable(program)
    if actions:
        typer.echo(escaped(program, lines=True), nl=False)
        return
    setting = _constants(program, overrides) if model is None else _model(program, model, overrides)
    timeline = dry_run(program, setting.costs)
    if plot is not None:
        plot_gantt(timeline, setting.unit, plot)
    report = pipeline_report(timeline, setting)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        print_gantt(timeline, report)


def read_program(schedule: str, devices: int, micro_batches: int, phases: str) -> Program:
    """Return the program of the pipeline named `schedule`, or the one in that file (.txt)."""
    if not schedule.endswith(".txt"):
        return generate(schedule, devices, micro_batches, parse_phases(phases))
    return parse_program(read_text(Path(schedule), "the schedule"))


@dataclass(frozen=True)
class PipelineCosts:
    """Costs of a step with a predictor, and `plain` ones without; and their `unit`."""

    costs: Costs
    plain: Costs
    unit: str
    clock_hz: float | None = None


def _constants(program: Program, overrides: Mapping[str, Any]) -> PipelineCosts:
    _check_absent(MODELLED, overrides, "needs --model")
    cost = partial(constant_costs, program.stages, devices=len(program.devices))
    return PipelineCosts(cost(**overrides), cost(**{**overrides, "alpha": 0.0}), "steps")


def _model(program: Program, model: str, overrides: Mapping[str, Any]) -> PipelineCosts:
    _check_absent(CONSTANTS, overrides, "cannot be combined with --model, which provides the times")
    options = ModelledCosts(**overrides)
    samples, rest = divmod(options.batch, program.micro_batches)
    if samples < 1 or rest:
        raise OptionError(
            f"a batch of {options.batch} samples does not split into {program.micro_batches} equal parts."
        )
    chip = options.chip
    given = {"dataflow": options.dataflow} if "dataflow" in overrides else {}
    accelerator = with_settings(chip.applied(Accelerator()), given)
    DESIGNS[options.design]
    dataset_info(options.dataset)
    link = options.link(chip)
    shape = sample_shape(model, options.input, options.image_size, None, options.dataset)
    workload = model_workload(model, options.dataset, shape)
    costs, plain = (
        modelled_costs(workload, accelerator, program.stages, samples, design=design, link=link)
        for design in (options.design, "baseline")
    )
    return PipelineCosts(costs, plain, "cycles", accelerator.clock_hz)


def _check_absent(options: Mapping[str, Option], overrides: Mapping[str, Any], reason: str) -> None:
    for name in options:
        if name in overrides:
            raise OptionError(f"{options[name].flag} {reason}.")


def pipeline_report(timeline: Timeline, setting: PipelineCosts) -> dict[str, Any]:
    """Return the result as plain values with stable names.

    A step is the mean time of a micro-batch's forward pass on a stage, as in the paper; with constant costs, it is their unit.
    `baseline_steps` and `speedup` compare with plain backprop in every batch of the same pipeline. They are missing for a
    schedule from a file whose name is not that of a pipeline.
    """
    program, stages = timeline.program, timeline.costs.stages
    step = 1.0 if setting.clock_hz is None else sum(stage.forward for stage in stages) / len(stages)
    report: dict[str, Any] = {
        "schedule": program.name,
        "devices": len(program.devices),
        "micro_batches": program.micro_batches,
        "phases": [phase.upper() for phase in program.phases],
        "steps": timeline.steps / step,
        "bubble_share": timeline.bubble_share,
        "peak_activations": list(timeline.peak_activations),
    }
    if setting.clock_hz is not None:
        report["cycles"] = timeline.steps
        report["seconds"] = timeline.steps / setting.clock_hz
        report["peak_activation_bytes"] = list(timeline.peak_bytes)
    if program.name in PIPELINES:
        batches = [Phase.BP] * len(program.phases)
        plain = dry_run(generate(program.name, len(program.devices), program.micro_batches, batches), setting.plain)
        report["baseline_steps"] = plain.steps / step
        report["speedup"] = plain.steps / timeline.steps if timeline.steps else 1.0
    return report


def print_gantt(timeline: Timeline, report: dict[str, Any]) -> None:
    """Print the timeline, and a line with the figures of the report."""
    from adagp.cli.terminal import Terminal

    console = Terminal()
    for line in text_gantt(timeline, console.width):
        console.print(line, highlight=False)
    console.print(f"One line per device, time from left to right: {gantt_legend(timeline)}.", highlight=False)
    parts = [f"{report['steps']:,.5g} steps", f"bubble {report['bubble_share']:.1%}"]
    parts.append(f"at most {max(report['peak_activations'])} micro-batches stored on a device")
    if "cycles" in report:
        parts.append(f"{report['cycles']:,.5g} cycles")
    if "speedup" in report:
        parts.append(f"{report['speedup']:.3f}x speed-up over {report['baseline_steps']:,.5g} steps of backprop")
    console.print("; ".join(parts) + ".", highlight=False)
