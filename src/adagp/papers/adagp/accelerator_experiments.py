"""Figures 16 to 21: the accelerator model over the thirteen CNNs, alone and in pipelines of four devices.

Nothing here is measured: cycles and joules are the model's (`adagp.hw`, `adagp.pipe`), the same at every budget.
"""

from collections.abc import Sequence
from functools import cache
from statistics import geometric_mean, mean
from typing import TYPE_CHECKING, Any

from adagp.core.plan import Phase
from adagp.hw import Accelerator, Run, Simulation, scheduled_run, simulate
from adagp.hw.simulate import predictor_weights
from adagp.papers.adagp import PAPER_MODELS
from adagp.pipe import Costs, constant_costs, generate, parse_phases
from adagp.pipe import simulate as simulate_pipeline
from adagp.pipe.modelled import modelled_costs
from adagp.program.figures.style import COLOURS, PHASE_COLOURS, grouped_bars, legend_beside, published_lines, subplots
from adagp.program.reproduce.experiment import Conclusion, Experiment, Part, Workspace, add_experiment
from adagp.program.reproduce.published import Section, published
from adagp.program.reproduce.verdict import Terms, Verdict, compare, judge, noted
from adagp.program.run.documents import (
    ABSENT,
    MODERATE,
    POSITIVE,
    SWITCH,
    TEXT,
    WHOLE,
    Both,
    Fields,
    ListOf,
    Plain,
    record_of,
)
from adagp.program.workloads import dataset_info, model_workload
from adagp.schedules import parse_schedule
from adagp.schedules.ladder import PAPER_RUNGS, PAPER_WARMUP

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETS = ("cifar10", "cifar100", "imagenet")
FIGURES = {"adagp-figure17": "ws", "adagp-figure18": "rs", "adagp-figure19": "is"}
HEADLINE_FIGURE = "adagp-figure17"
"""Whose dataflow the abstract's average is taken in."""
FIGURE_16, FIGURE_21 = "adagp-figure16", "adagp-figure21"
PREDICTING = ("low", "efficient", "max")
ENLARGED = ("equal-power", "equal-area")
EPOCHS, BATCH = 90, 128
"""Of the paper's runs: 90 epochs are what it plots; it states no batch size."""


def paper_run(samples: int, epochs: int = EPOCHS, batch: int = BATCH, ratio: str = "paper") -> Run:
    """Return the run of the paper's ladder, or of another ratio after the same warm-up."""
    warmup = None if ratio == "paper" else 10
    return scheduled_run(parse_schedule(ratio, epochs, warmup), epochs, samples, batch)


def simulate_model(part: Part, workspace: Workspace) -> dict[str, Any]:
    """Cost one model on one data set: every dataflow and design, and by layer for weight stationary."""
    dataset = part.options["dataset"]
    workload = model_workload(part.options["model"], dataset)
    run = paper_run(dataset_info(dataset).train)
    simulations = {
        dataflow: simulate(
            workload, Accelerator(dataflow=dataflow), run, PREDICTING + (ENLARGED if dataflow == "ws" else ())
        )
        for dataflow in FIGURES.values()
    }
    return {
        "dataflows": {dataflow: _designs(simulation) for dataflow, simulation in simulations.items()},
        "layers": _layers(simulations["ws"]),
        "predictor_words": predictor_weights(workload, simulations["ws"].accelerator),
        "word_bits": simulations["ws"].accelerator.width("weights"),
    }


def _designs(simulation: Simulation) -> dict[str, dict[str, float]]:
    return {
        name: {
            "cycles": outcome.cost.cycles,
            "speedup": simulation.speedup(name),
            "memory_joules": outcome.energy.memory,
            "memory_saving": simulation.memory_energy_saving(name),
        }
        for name, outcome in simulation.outcomes.items()
    }


def _layers(simulation: Simulation) -> list[dict[str, Any]]:
    outcomes = simulation.outcomes
    return [
        {
            "layer": stage.layer.name,
            "convolution": stage.layer.kind == "convolution",
            **{
                name: {str(phase): cost.cycles for phase, cost in outcomes[name].by_layer[index].items()}
                for name in ("baseline", "efficient")
            },
        }
        for index, stage in enumerate(simulation.stages)
    ]


_DESIGN = record_of({"cycles": POSITIVE, "speedup": POSITIVE, "memory_joules": POSITIVE, "memory_saving": MODERATE})
_CYCLES = Plain("a number from 0 to 1e+18", lambda value: MODERATE.accepted(value) and value >= 0)
_BY_PHASE = Fields({str(phase): _CYCLES for phase in Phase}, others=ABSENT)
_LAYER = record_of({"layer": TEXT, "convolution": SWITCH, "baseline": _BY_PHASE, "efficient": _BY_PHASE})
SIMULATED = record_of(
    {
        "dataflows": record_of(
            {
                dataflow: record_of(
                    dict.fromkeys(("baseline", *PREDICTING, *(ENLARGED if dataflow == "ws" else ())), _DESIGN)
                )
                for dataflow in FIGURES.values()
            }
        ),
        "layers": Both(ListOf(_LAYER), Plain("a list that is not empty", bool)),
        "predictor_words": WHOLE,
        "word_bits": WHOLE,
    }
)
"""The shape of a model's figures."""


@cache
def simulations() -> dict[tuple[str, str], Part]:
    """Return the parts by model and data set."""
    return {
        (model, dataset): Part(
            simulate_model, f"{model}-{dataset}", {"model": model, "dataset": dataset}, 4.0, SIMULATED
        )
        for dataset in SETS
        for model in PAPER_MODELS
    }


def simulate_ideal(part: Part, workspace: Workspace) -> dict[str, Any]:
    """Return the speed-up of MAX as the paper's text has it: the larger of both times in every step."""
    options = part.options
    accelerator = Accelerator(dataflow=options["dataflow"])
    run = paper_run(dataset_info(options["dataset"]).train)
    simulation = simulate(model_workload(options["model"], options["dataset"]), accelerator, run, ("max-ideal",))
    return {"speedup": simulation.speedup("max-ideal")}


@cache
def ideal_simulations(dataflow: str) -> tuple[Part, ...]:
    """Return the parts that cost MAX as the paper's text has it, on ImageNet."""
    return tuple(
        Part(
            simulate_ideal,
            f"{model}-{dataflow}",
            {"model": model, "dataset": "imagenet", "dataflow": dataflow},
            1.5,
            record_of({"speedup": POSITIVE}),
        )
        for model in PAPER_MODELS
    )


def average(workspace: Workspace, dataset: str, figure: str, design: str, dataflow: str = "ws") -> float:
    """Return the mean over the thirteen CNNs of one figure of a design."""
    return mean(_figures(workspace, dataset, figure, design, dataflow))


def _figures(workspace: Workspace, dataset: str, figure: str, design: str, dataflow: str) -> list[float]:
    parts = [simulations()[model, dataset] for model in PAPER_MODELS]
    return [float(workspace.result(part)["dataflows"][dataflow][design][figure]) for part in parts]


def conclude_speedups(name: str, workspace: Workspace) -> Conclusion:
    """Compare the average and the largest speed-up in one dataflow; check the order of the designs."""
    section, dataflow = published(name), FIGURES[name]
    rows = _speedup_rows(workspace, dataflow)
    averages = {design: average(workspace, "imagenet", "speedup", design, dataflow) for design in PREDICTING}
    text = ", ".join(f"{design} {value:.3f}" for design, value in averages.items())
    verdicts = [
        *_compare_speedups(section, workspace, dataflow),
        judge_order(section, rows, f"models and data sets; averages on ImageNet {text}"),
    ]
    if name == HEADLINE_FIGURE:
        values = [value for dataset in SETS for value in _figures(workspace, dataset, "speedup", "max", dataflow)]
        number = published("adagp-headline").number("average")
        text = f"geometric mean {geometric_mean(values):.3f}; 13 CNNs on three data sets"
        verdicts.append(
            compare("average speed-up, MAX (abstract)", number, mean(values), "modelled", Terms(reduced=text))
        )
    if "reuse" in section.content["claims"]:
        verdicts.append(_judge_reuse(section, workspace))
    return Conclusion(rows, verdicts, lambda: _draw_speedups(rows, dataflow, section))


def _judge_reuse(section: Section, workspace: Workspace) -> Verdict:
    """Compare the energy of the baseline's memory accesses in the three dataflows of the figures."""
    joules = {
        dataflow: sum(sum(_figures(workspace, dataset, "memory_joules", "baseline", dataflow)) for dataset in SETS)
        for dataflow in FIGURES.values()
    }
    text = ", ".join(f"{dataflow} {value / joules['rs']:.2f} times" for dataflow, value in joules.items())
    text += " the memory energy of rs, baseline, 13 CNNs on three data sets"
    return judge(
        "memory energy by dataflow",
        section.claim("reuse"),
        min(joules, key=joules.__getitem__) == "rs",
        text,
        "modelled",
    )


def _speedup_rows(workspace: Workspace, dataflow: str) -> list[dict[str, Any]]:
    return [
        {
            "model": model,
            "dataset": dataset,
            "dataflow": dataflow,
            **{f"{design}_modelled_speedup": designs[design]["speedup"] for design in PREDICTING},
            **{f"{design}_modelled_cycles": designs[design]["cycles"] for design in ("baseline", *PREDICTING)},
        }
        for (model, dataset), part in simulations().items()
        for designs in (workspace.result(part)["dataflows"][dataflow],)
    ]


def _compare_speedups(section: Section, workspace: Workspace, dataflow: str) -> list[Verdict]:
    """Compare the published average and largest speed-ups of MAX, as far as there are any."""
    verdicts: list[Verdict] = []
    reasons = {
        "average": "backward and forward cycles follow from the products' shapes, not from a ratio of 2",
        "maximum": "the ladder allows it only if a backward pass takes 3.4 times its forward; in place none gets far beyond 2 "
        "(see adagp-hypotheses)",
    }
    for figure, reduce in (("average", mean), ("maximum", max)):
        for dataset in SETS if figure in section.content else ():
            value = reduce(_figures(workspace, dataset, "speedup", "max", dataflow))
            number = section.number(figure, dataset)
            quantity = f"{figure} speed-up, {dataset}, MAX"
            verdict = compare(quantity, number, value, "modelled", Terms(reduced=reasons[figure]))
            if dataset == "imagenet":
                ideal = reduce([workspace.result(part)["speedup"] for part in ideal_simulations(dataflow)])
                verdict = noted(
                    verdict, f"the larger of both times in every step, as the text has it, gives {ideal:.3f}"
                )
            verdicts.append(verdict)
    return verdicts


def judge_order(section: Section, rows: Sequence[dict[str, Any]], words: str) -> Verdict:
    """Return the verdict on the order of the designs in all rows; `words` describe the rows."""
    ordered = [row for row in rows if _in_order(row)]
    holds = len(ordered) == len(rows)
    # Efficient does what LOW does without moving the predictor's words; MAX falls back to Efficient's way where that is faster.
    text = f"{len(ordered)} of {len(rows)} {words}; our designs have this order by construction"
    return judge("order of the designs", section.claim("order"), holds, text, "modelled")


def _in_order(row: dict[str, Any]) -> bool:
    low, efficient, most = (row[f"{design}_modelled_speedup"] for design in PREDICTING)
    return bool(low <= efficient <= most)


def _draw_speedups(rows: Sequence[dict[str, Any]], dataflow: str, section: Section) -> "Figure":
    figure, axes = subplots(1, 3, (17, 4.4), share_y=True)
    for axis, dataset in zip(axes[0], SETS, strict=True):
        here = [row for row in rows if row["dataset"] == dataset]
        speedups = {design: [row[f"{design}_modelled_speedup"] for row in here] for design in PREDICTING}
        speedups = {design: [*values, geometric_mean(values)] for design, values in speedups.items()}
        grouped_bars(axis, [*(row["model"] for row in here), "geomean"], speedups, legend=False)
        axis.axhline(1, color=COLOURS[-1], linewidth=0.8)
        axis.set(title=f"{dataset}, {dataflow}", ylim=(0, 2))
        published_lines(axis, published_speedups(section, dataset))
    legend_beside(axes[0][-1])
    axes[0][0].set_ylabel("modelled speed-up over the baseline")
    return figure


def published_speedups(section: Section, name: str) -> dict[str, float]:
    """Return the published average and maximum of a data set or a pipeline, as far as there are any."""
    return {
        figure: section.number(figure, name).value for figure in ("average", "maximum") if figure in section.content
    }


def conclude_layers(budget: str, workspace: Workspace) -> Conclusion:
    """Compare VGG13's cycles by layer: baseline against Efficient, split by phase; data set ImageNet."""
    section = published(FIGURE_16)
    layers = workspace.result(simulations()["vgg13", "imagenet"])["layers"]
    rows = [
        {
            "layer": layer["layer"],
            "baseline_modelled_cycles": sum(layer["baseline"].values()),
            **{f"efficient_{phase}_modelled_cycles": layer["efficient"].get(phase, 0) for phase in PHASE_COLOURS},
        }
        for layer in layers
    ]
    convolutions = [layer for layer in layers if layer["convolution"]]
    cheaper = [layer for layer in convolutions if sum(layer["efficient"].values()) < sum(layer["baseline"].values())]
    largest = max(row["baseline_modelled_cycles"] for row in rows)
    text = f"{len(cheaper)} of {len(convolutions)} convolutions; ImageNet, {EPOCHS} epochs"
    verdicts = [
        compare(
            "largest cycles of a layer, baseline",
            section.number("cycles", "largest_layer"),
            largest,
            "modelled",
            Terms(
                reduced=f"ImageNet, {EPOCHS} epochs; the paper states neither data set nor epochs, nor the buffer's port"
            ),
        ),
        judge("cycles by layer", section.claim("cheaper"), len(cheaper) == len(convolutions), text, "modelled"),
    ]

    return Conclusion(rows, verdicts, lambda: _draw_layers(rows))


def _draw_layers(rows: Sequence[dict[str, Any]]) -> "Figure":
    figure, axes = subplots(1, 1, (11, 4.5))
    axis, bottom = axes[0][0], [0] * len(rows)
    left, right = ([index + shift for index in range(len(rows))] for shift in (-0.2, 0.2))
    axis.bar(left, [row["baseline_modelled_cycles"] for row in rows], 0.4, color="#d3d3d3", label="baseline")
    for phase, colour in PHASE_COLOURS.items():
        heights = [row[f"efficient_{phase}_modelled_cycles"] for row in rows]
        axis.bar(right, heights, 0.4, bottom=bottom, color=colour, label=f"efficient, {phase}")
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axis.set_xticks(range(len(rows)), [row["layer"] for row in rows], rotation=45, ha="right", fontsize=8)
    axis.set(ylabel="modelled cycles in the run", title="VGG13 on ImageNet, by layer")
    legend_beside(axis)
    return figure


def conclude_energy(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the energy of memory accesses, weight stationary; the paper does not state the data set."""
    section = published(FIGURE_21)
    rows: list[dict[str, Any]] = [
        {"model": model, "dataset": dataset, **_energies(workspace.result(part)["dataflows"]["ws"])}
        for (model, dataset), part in simulations().items()
    ]
    verdicts = [
        compare(
            f"average saving, {dataset}, {design}",
            section.number("saving", "average"),
            100 * average(workspace, dataset, "memory_saving", design),
            "modelled",
            Terms(reduced="node, memory sizes, word width and DRAM are not stated"),
        )
        for dataset in SETS
        for design in ("efficient", "max")
    ]
    largest = max(rows, key=lambda row: row["baseline_modelled_joules"])
    least = [min(row["efficient_modelled_saving"], row["max_modelled_saving"]) for row in rows]
    saving = sum(value > 0 for value in least)
    verdicts += [
        compare(
            "largest energy, baseline",
            section.number("energy", "largest"),
            largest["baseline_modelled_joules"],
            "modelled",
            Terms(reduced=f"ours is {largest['model']} on {largest['dataset']}; the paper states no data set"),
        ),
        judge(
            "saving of every model",
            section.claim("every"),
            saving == len(rows),
            f"{saving} of {len(rows)} models and data sets; the least saving is {min(least):.1%}",
            "modelled",
        ),
        _judge_own_memory(section, workspace),
    ]

    return Conclusion(rows, verdicts, lambda: _draw_energy(rows))


def _judge_own_memory(section: Section, workspace: Workspace) -> Verdict:
    """Compare time and memory energy of Efficient, whose predictor has a memory of its own, with those of LOW."""
    designs = [workspace.result(part)["dataflows"]["ws"] for part in simulations().values()]
    saved = {
        words: [1 - each["efficient"][name] / each["low"][name] for each in designs]
        for words, name in (("cycles", "cycles"), ("memory energy", "memory_joules"))
    }
    text = ", ".join(f"{mean(values):.2%} less {words} (at least {min(values):.3%})" for words, values in saved.items())
    holds = all(value > 0 for values in saved.values() for value in values)
    return judge("Efficient over LOW", section.claim("own"), holds, f"{text}; 13 CNNs on three data sets", "modelled")


def _energies(designs: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the columns of a model's energy."""
    joules = {f"{name}_modelled_joules": designs[name]["memory_joules"] for name in ("baseline", "efficient", "max")}
    return joules | {f"{name}_modelled_saving": designs[name]["memory_saving"] for name in ("efficient", "max")}


def _draw_energy(rows: Sequence[dict[str, Any]]) -> "Figure":
    figure, axes = subplots(1, 1, (11, 4.5))
    here = [row for row in rows if row["dataset"] == "imagenet"]
    joules = {name: [row[f"{name}_modelled_joules"] for row in here] for name in ("baseline", "efficient", "max")}
    grouped_bars(axes[0][0], [row["model"] for row in here], joules)
    axes[0][0].set(ylabel="modelled joules of memory accesses", title="ImageNet, 90 epochs, weight stationary")
    return figure


EXACT = {"quick": 0.5, "standard": 0.5, "full": 0.5}
"""Minutes for all simulations of the thirteen CNNs, which these experiments share."""


def every_simulation(budget: str) -> Sequence[Part]:
    """Return the parts of the thirteen CNNs on three data sets, the same at every budget."""
    return tuple(simulations().values())


def _speedups(name: str, words: str) -> Experiment:
    shows = f"modelled speed-up of 13 CNNs on three data sets, {words}"
    return Experiment(
        name,
        shows,
        EXACT,
        lambda budget: (*simulations().values(), *ideal_simulations(FIGURES[name])),
        lambda budget, workspace: conclude_speedups(name, workspace),
    )


for _experiment in (
    Experiment(
        FIGURE_16,
        "modelled cycles of VGG13 by layer and phase",
        {"quick": 0.1, "standard": 0.1, "full": 0.1},
        lambda budget: (simulations()["vgg13", "imagenet"],),
        conclude_layers,
    ),
    _speedups("adagp-figure17", "weight stationary"),
    _speedups("adagp-figure18", "row stationary"),
    _speedups("adagp-figure19", "input stationary"),
    Experiment(FIGURE_21, "modelled energy of memory accesses, 13 CNNs", EXACT, every_simulation, conclude_energy),
):
    add_experiment(_experiment)


FIGURE_20 = "adagp-figure20"
PIPELINES = ("gpipe", "dapple", "chimera")
DEVICES = MICRO_BATCHES = 4
CUTS = "stages are cut where the modelled cycles balance; how the paper cuts is not stated"
LONG_PHASE = 100
"""Batches in a row, to see what one takes without the beginning and the end of the row."""


def steps(pipeline: str, phases: str, costs: Costs) -> float:
    """Return the steps of batches of `phases` on four devices with four micro-batches."""
    return simulate_pipeline(generate(pipeline, DEVICES, MICRO_BATCHES, parse_phases(phases)), costs).steps


def whole_run(pipeline: str, costs: Costs, baseline: Costs) -> float:
    """Return the speed-up over a whole run: the warm-up by backprop, then the rungs of the paper's ladder, 90 epochs in all."""
    batch = steps(pipeline, "BP,BP", baseline) / 2
    spent = PAPER_WARMUP * steps(pipeline, "BP,BP", costs) / 2
    left = EPOCHS - PAPER_WARMUP
    for rung in PAPER_RUNGS:
        epochs = left if rung.epochs is None else rung.epochs
        left -= epochs
        phases = ",".join(["GP"] * rung.predicted + ["BP"] * rung.true)
        spent += epochs * steps(pipeline, phases, costs) / (rung.predicted + rung.true)
    return EPOCHS * batch / spent


def pipeline_run(part: Part, workspace: Workspace) -> dict[str, Any]:
    """Return one model's speed-up by pipeline and design over a whole run with warm-up and ladder."""
    costs = _pipeline_costs(part)
    return {
        name: {design: whole_run(name, costs[design], costs["baseline"]) for design in PREDICTING} for name in PIPELINES
    }


def pipeline_model(part: Part, workspace: Workspace) -> dict[str, Any]:
    """Return one model's speed-up by pipeline and design: two BP batches over a GP and a BP batch with the predictor."""
    costs = _pipeline_costs(part)
    return {
        name: {
            design: steps(name, "BP,BP", costs["baseline"]) / steps(name, "GP,BP", costs[design])
            for design in PREDICTING
        }
        for name in PIPELINES
    }


def _pipeline_costs(part: Part) -> dict[str, Costs]:
    workload = model_workload(part.options["model"], part.options["dataset"])
    return {
        design: modelled_costs(workload, Accelerator(), DEVICES, BATCH // MICRO_BATCHES, design=design)
        for design in ("baseline", *PREDICTING)
    }


SPEEDUPS = record_of(dict.fromkeys(PIPELINES, record_of(dict.fromkeys(PREDICTING, POSITIVE))))


@cache
def _pipelines() -> dict[str, Part]:
    return {
        model: Part(pipeline_model, model, {"model": model, "dataset": "imagenet"}, weight=2.0, shape=SPEEDUPS)
        for model in PAPER_MODELS
    }


@cache
def _pipeline_runs() -> dict[str, Part]:
    return {
        model: Part(pipeline_run, model, {"model": model, "dataset": "imagenet"}, weight=2.0, shape=SPEEDUPS)
        for model in PAPER_MODELS
    }


def conclude_pipelines(budget: str, workspace: Workspace) -> Conclusion:
    """Compare steps with constant costs, and speed-ups of the thirteen CNNs with modelled costs."""
    section = published(FIGURE_20)
    results = {model: workspace.result(part) for model, part in _pipelines().items()}
    whole = {model: workspace.result(part) for model, part in _pipeline_runs().items()}
    rows = [
        {
            "model": model,
            "pipeline": name,
            **{f"{design}_modelled_speedup": speedups[name][design] for design in PREDICTING},
            **{f"{design}_modelled_speedup_of_a_run": whole[model][name][design] for design in PREDICTING},
        }
        for model, speedups in results.items()
        for name in PIPELINES
    ]
    verdicts = _phase_claims(section)
    for name in PIPELINES:
        speedups = [speedup[name]["max"] for speedup in results.values()]
        over_run = [speedup[name]["max"] for speedup in whole.values()]
        terms, run = Terms(reduced=CUTS), "over a whole run with warm-up and ladder"
        plain = constant_costs(DEVICES)
        verdicts += [
            compare(
                f"steps of a batch, {name}", section.number("steps_bp", name), steps(name, "BP", plain), "computed"
            ),
            compare(
                f"steps of a GP and a BP batch, {name}",
                section.number("steps_gp_bp", name),
                steps(name, "GP,BP", plain),
                "computed",
            ),
            noted(
                compare(
                    f"average speed-up, {name}, MAX", section.number("average", name), mean(speedups), "modelled", terms
                ),
                f"of a GP and a BP batch, as the paper counts; {run} {mean(over_run):.3f}",
            ),
            noted(
                compare(
                    f"largest speed-up, {name}, MAX", section.number("maximum", name), max(speedups), "modelled", terms
                ),
                f"of a GP and a BP batch, as the paper counts; {run} {max(over_run):.3f}",
            ),
        ]
    verdicts.append(judge_order(section, rows, "models and pipelines"))
    return Conclusion(rows, verdicts, lambda: _draw_pipelines(rows, section))


def _phase_claims(section: Section) -> list[Verdict]:
    """Check that Phase GP has no gaps, and that a change of phases takes no steps of its own."""
    plain = constant_costs(DEVICES)
    gp, many = ({name: steps(name, ",".join(["GP"] * count), plain) for name in PIPELINES} for count in (1, LONG_PHASE))
    each = {name: (many[name] - gp[name]) / (LONG_PHASE - 1) for name in PIPELINES}
    forward = {name: steps(name, "BP,GP", plain) - steps(name, "BP", plain) for name in PIPELINES}
    back = {name: steps(name, "GP,BP", plain) - steps(name, "BP", plain) for name in PIPELINES}
    gaps = ", ".join(f"{name} {value:g}" for name, value in each.items())
    changes = ", ".join(f"{name} {back[name]:g} and {forward[name]:g}" for name in PIPELINES)
    free = all(round(value, 6) <= MICRO_BATCHES for value in (*forward.values(), *back.values()))
    return [
        judge(
            "gaps in Phase GP",
            section.claim("gaps"),
            all(round(value, 6) == MICRO_BATCHES for value in each.values()),
            f"steps of a further GP batch of {MICRO_BATCHES} micro-batches: {gaps}",
            "computed",
        ),
        judge(
            "change of phases",
            section.claim("transition"),
            free,
            f"steps that a GP batch adds before and after a BP batch, where {MICRO_BATCHES} have no gap: {changes}",
            "computed",
        ),
    ]


def _draw_pipelines(rows: Sequence[dict[str, Any]], section: Section) -> "Figure":
    figure, (axes,) = subplots(1, 3, (17, 4.4), share_y=True)
    for axis, name in zip(axes, PIPELINES, strict=True):
        here = [row for row in rows if row["pipeline"] == name]
        speedups = {design: [row[f"{design}_modelled_speedup"] for row in here] for design in PREDICTING}
        speedups = {design: [*values, geometric_mean(values)] for design, values in speedups.items()}
        grouped_bars(axis, [*(row["model"] for row in here), "geomean"], speedups, legend=False)
        axis.set(title=f"over {name}", ylim=(0, 2))
        published_lines(axis, published_speedups(section, name))
    legend_beside(axes[-1])
    axes[0].set_ylabel("modelled speed-up over the pipeline")
    return figure


for _experiment in (
    Experiment(
        FIGURE_20,
        "steps and modelled speed-ups over GPipe, DAPPLE and Chimera",
        {"quick": 0.1, "standard": 0.1, "full": 0.1},
        lambda budget: (*_pipelines().values(), *_pipeline_runs().values()),
        conclude_pipelines,
    ),
):
    add_experiment(_experiment)
