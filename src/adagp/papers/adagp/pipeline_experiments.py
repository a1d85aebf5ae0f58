"""Figure 20: ADA-GP over three pipelines of four devices. All of it is modelled or computed; nothing is run."""

from collections.abc import Sequence
from functools import cache
from statistics import mean
from typing import TYPE_CHECKING, Any

from adagp.hw import Accelerator
from adagp.papers.adagp.accelerator_experiments import BATCH, PREDICTING, judge_order, published_speedups
from adagp.pipe import Costs, constant_costs, generate, parse_phases, simulate
from adagp.pipe.modelled import modelled_costs
from adagp.program.figures.style import legend_beside, subplots
from adagp.program.reproduce.bars import grouped_bars, published_lines
from adagp.program.reproduce.experiment import Conclusion, Experiment, add_experiment
from adagp.program.reproduce.parts import Part, Place
from adagp.program.reproduce.published import Section, published
from adagp.program.reproduce.verdict import Terms, compare
from adagp.program.run.documents import POSITIVE, record_of
from adagp.program.workloads import PAPER_MODELS, model_workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE_20 = "adagp-figure20"
PIPELINES = ("gpipe", "dapple", "chimera")
DEVICES = MICRO_BATCHES = 4


def steps(pipeline: str, phases: str, costs: Costs) -> float:
    """Return the steps of batches of `phases` on four devices with four micro-batches."""
    return simulate(generate(pipeline, DEVICES, MICRO_BATCHES, parse_phases(phases)), costs).steps


def pipeline_model(part: Part, place: Place) -> dict[str, Any]:
    """Return one model's speed-up by pipeline and design: two BP batches over a GP and a BP batch with the predictor."""
    workload = model_workload(part.options["model"], part.options["dataset"])
    designs = ("baseline", *PREDICTING)
    costs = {
        design: modelled_costs(workload, Accelerator(), DEVICES, BATCH // MICRO_BATCHES, design=design)
        for design in designs
    }
    return {
        name: {
            design: steps(name, "BP,BP", costs["baseline"]) / steps(name, "GP,BP", costs[design])
            for design in PREDICTING
        }
        for name in PIPELINES
    }


SPEEDUPS = record_of(dict.fromkeys(PIPELINES, record_of(dict.fromkeys(PREDICTING, POSITIVE))))


@cache
def _models() -> dict[str, Part]:
    return {
        model: Part(pipeline_model, model, {"model": model, "dataset": "imagenet"}, weight=2.0, shape=SPEEDUPS)
        for model in PAPER_MODELS
    }


def conclude(budget: str, place: Place) -> Conclusion:
    """Compare steps with constant costs, and speed-ups of the thirteen CNNs with modelled costs."""
    section = published(FIGURE_20)
    found = {model: place.result(part) for model, part in _models().items()}
    rows = [
        {
            "model": model,
            "pipeline": name,
            **{f"{design}_modelled_speedup": speedups[name][design] for design in PREDICTING},
        }
        for model, speedups in found.items()
        for name in PIPELINES
    ]
    verdicts = []
    terms = Terms(reduced="stages are cut where the modelled cycles balance; how the paper cuts is not stated")
    for name in PIPELINES:
        speedups = [speedup[name]["max"] for speedup in found.values()]
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
            compare(
                f"average speed-up, {name}, MAX", section.number("average", name), mean(speedups), "modelled", terms
            ),
            compare(
                f"largest speed-up, {name}, MAX", section.number("maximum", name), max(speedups), "modelled", terms
            ),
        ]
    verdicts.append(judge_order(section, rows, "models and pipelines"))
    return Conclusion(rows, verdicts, lambda: _draw(rows, section))


def _draw(rows: Sequence[dict[str, Any]], section: Section) -> "Figure":
    figure, (axes,) = subplots(1, 3, (17, 4.4), share_y=True)
    for axis, name in zip(axes, PIPELINES, strict=True):
        here = [row for row in rows if row["pipeline"] == name]
        speedups = {design: [row[f"{design}_modelled_speedup"] for row in here] for design in PREDICTING}
        grouped_bars(axis, [row["model"] for row in here], speedups, legend=False)
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
        lambda budget: tuple(_models().values()),
        conclude,
    ),
):
    add_experiment(_experiment)
