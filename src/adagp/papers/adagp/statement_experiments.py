"""What ADA-GP and the notes on it state in their text about networks and accelerators; Figures 3, 13 and 14.

Nothing is trained: networks are counted, and costed by the accelerator model.
"""

from collections.abc import Mapping
from functools import cache
from statistics import mean
from typing import TYPE_CHECKING, Any

from adagp.core.plan import Step
from adagp.hw import Accelerator, scheduled_run, simulate
from adagp.hw.simulate import predictor_weights
from adagp.hw.workload import Convolution
from adagp.papers.adagp.accelerator_experiments import BATCH, PREDICTING, average, simulations
from adagp.program.figures.style import grouped_bars, subplots
from adagp.program.reproduce.experiment import Conclusion, Experiment, Part, Workspace, add_experiment
from adagp.program.reproduce.published import Section, published
from adagp.program.reproduce.verdict import Terms, Verdict, compare, judge
from adagp.program.run.documents import MODERATE, POSITIVE, record_of
from adagp.program.workloads import model_workload
from adagp.schedules import parse_schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATEMENTS, FIGURE_3, FIGURE_14 = "adagp-statements", "adagp-figure3", "adagp-figure14"
FACTS, CHECKS = "notes-facts", "notes-checks"
MODELS = ("vgg13", "resnet50", "densenet121", "mobilenet_v2")
DESIGNS = ("baseline", "low", "efficient", "max")
COUNTED_DESIGNS = ("baseline", "efficient", "max")
SAMPLES, FIGURE_BATCH = 1024, 128
"""Of Figure 3: the size of the data set, and that of a batch."""
MINUTES = {"quick": 0.1, "standard": 0.1, "full": 0.1}


def count_statements(part: Part, workspace: Workspace) -> dict[str, Any]:
    """Return what the text states about a network on ImageNet's pictures, counted and modelled for a batch of 128."""
    workload = model_workload(part.options["model"], "imagenet")
    always = scheduled_run(parse_schedule("100:1", 1, 0), 1, 100 * BATCH, BATCH)
    simulation = simulate(workload, Accelerator(), always, ("efficient", "max"))
    sites = [stage for stage in simulation.stages if stage.is_site]
    predicted = [(stage.predictions.forward.cycles, stage.forward.cycles) for stage in sites if stage.predictions]
    accelerator = simulation.accelerator
    mixed = simulate(workload, accelerator, scheduled_run(parse_schedule("1:1", 1, 0), 1, 100 * BATCH, BATCH))
    return {
        "sites": len(sites),
        "more_weights": sum(stage.layer.weights > stage.layer.output_words for stage in sites),
        "quicker_predictions": sum(own < forward for own, forward in predicted),
        "always_efficient": simulation.speedup("efficient"),
        "always_max": simulation.speedup("max"),
        "predictor_bits": predictor_weights(workload, accelerator) * accelerator.width("weights"),
        "buffer_bits": 8192 * accelerator.buffer_kilobytes,
        **{f"{name}_dram": mixed.outcomes[name].cost.dram_bits for name in COUNTED_DESIGNS},
        **{f"{name}_macs_a_cycle": outcome.cost.macs / outcome.cost.cycles for name, outcome in mixed.outcomes.items()},
        "pes": accelerator.array.rows * accelerator.array.columns,
        "predictor_pes": accelerator.predictor_array.rows * accelerator.predictor_array.columns,
    }


_COUNTED = record_of(
    {
        **dict.fromkeys(("always_efficient", "always_max", "pes", "predictor_pes"), POSITIVE),
        **{f"{design}_{what}": POSITIVE for design in COUNTED_DESIGNS for what in ("dram", "macs_a_cycle")},
        **dict.fromkeys(("sites", "more_weights", "quicker_predictions", "predictor_bits", "buffer_bits"), MODERATE),
    },
    others=MODERATE,
)


@cache
def _counts() -> dict[str, Part]:
    return {model: Part(count_statements, model, {"model": model}, 3.0, _COUNTED) for model in MODELS}


def _results(workspace: Workspace) -> dict[str, dict[str, Any]]:
    return {model: workspace.result(part) for model, part in _counts().items()}


def conclude_statements(budget: str, workspace: Workspace) -> Conclusion:
    """Check the statements of sections 1 and 3 by counting layers and modelling batches that are all predicted."""
    section, results = published(STATEMENTS), _results(workspace)
    sites, more, quicker = (
        {model: int(result[name]) for model, result in results.items()}
        for name in ("sites", "more_weights", "quicker_predictions")
    )
    always = mean(result["always_max"] for result in results.values())
    speeds = ", ".join(f"{model} {result['always_max']:.2f}" for model, result in results.items())
    verdicts = [
        compare(
            "speed-up if every batch is predicted, MAX",
            section.number("always", "speedup"),
            always,
            "modelled",
            Terms(reduced=f"{speeds}; ImageNet, batch {BATCH}"),
        ),
        judge(
            "weights and output activations", section.claim("many"), any(more.values()), _of(more, sites), "computed"
        ),
        judge("latency of predictions", section.claim("latency"), quicker == sites, _of(quicker, sites), "modelled"),
        *_example(),
        *_storage(section),
    ]
    rows = [{"model": model, **result} for model, result in results.items()]
    return Conclusion(rows, verdicts, lambda: _draw(rows, ("always_efficient", "always_max"), "modelled speed-up"))


def _of(counts: Mapping[str, int], sites: Mapping[str, int]) -> str:
    return ", ".join(f"{model} {counts[model]} of {sites[model]} layers" for model in counts) + "; ImageNet"


def _example() -> list[Verdict]:
    """Compare the example of section 3.6 with VGG13 itself."""
    section = published(STATEMENTS)
    convolutions = [
        layer for layer in model_workload("vgg13", "imagenet").array_layers if isinstance(layer, Convolution)
    ]
    place, layer = next(
        (place, layer)
        for place, layer in enumerate(convolutions, 1)
        if (layer.in_channels, layer.out_channels) == (128, 256)
    )
    terms = Terms(reduced="counted in VGG13 with pictures of 224x224")
    return [
        compare(f"example of section 3.6: {words}", section.number("example", *path), ours, "computed", terms)
        for words, path, ours in (
            ("which layer", ("layer", "number"), place),
            ("side of its maps", ("output", "side"), layer.output_size[0]),
            ("its weights", ("weights", "count"), layer.weights),
        )
    ]


def _storage(section: Section) -> list[Verdict]:
    """Count the words of one predictor for all layers, of one for each, and of the single layer that section 3.6 rules out."""
    shape = Accelerator().predictor
    shared, separate = {}, {}
    for model in MODELS:
        sites = [layer for layer in model_workload(model, "imagenet").array_layers if layer.trainable]
        words = [shape.weights(layer) for layer in sites]
        shared[model], separate[model] = max(words), sum(words)
    counts = ", ".join(f"{model} {shared[model]:,} in place of {separate[model]:,} words" for model in MODELS)
    example = section.content["example"]
    outputs, weights = EXAMPLE_CHANNELS * int(example["output"]["side"]) ** 2, int(example["weights"]["count"])
    text = f"{outputs:,} outputs of a sample, {weights:,} gradients: {outputs * weights:,} weights; "
    text += f"our predictor of VGG13 has {shared['vgg13']:,} words"
    return [
        judge(
            "one predictor for all layers",
            section.claim("storage"),
            all(shared[model] < separate[model] for model in MODELS),
            f"{counts}; ImageNet",
            "computed",
        ),
        judge(
            "a single fully connected layer",
            section.claim("naive"),
            outputs * weights > SUBSTANTIAL * shared["vgg13"],
            text,
            "computed",
        ),
    ]


EXAMPLE_CHANNELS = 256
"""Output channels of the example of section 3.6."""
SUBSTANTIAL = 100
"""Times the predictor's own words that count as substantial memory."""


def conclude_checks(budget: str, workspace: Workspace) -> Conclusion:
    """Answer the notes' third check, traffic and use of the PEs, and look for a predictor that is larger than the buffer."""
    section, results = published(CHECKS), _results(workspace)
    verdicts = [
        _judge_traffic(section, results),
        _judge_use(section, results),
        _judge_size(section, results),
        _judge_low(section, workspace),
    ]
    rows = [{"model": model, **result} for model, result in results.items()]
    columns = [f"{design}_macs_a_cycle" for design in ("baseline", "efficient", "max")]
    return Conclusion(rows, verdicts, lambda: _draw(rows, columns, "modelled MACs in a cycle"))


def _judge_low(section: Section, workspace: Workspace) -> Verdict:
    """Compare what LOW gains with what MAX gains, over the thirteen CNNs on ImageNet, weight stationary."""
    gains = {design: average(workspace, "imagenet", "speedup", design) - 1 for design in PREDICTING}
    text = ", ".join(f"{design} {1 + gain:.3f} times" for design, gain in gains.items())
    holds = gains["low"] <= LITTLE * gains["max"]
    return judge("speed-up of LOW", section.claim("low"), holds, f"{text}; 13 CNNs on ImageNet, ws", "modelled")


LITTLE = 0.5
"""Of what MAX gains counts as little."""
TRAFFIC_TOLERANCE = 0.06
"""How far from a third the saved traffic may be: as far as the energy of Figure 21."""


def _judge_traffic(section: Section, results: Mapping[str, Mapping[str, Any]]) -> Verdict:
    saved = {
        design: mean(1 - result[f"{design}_dram"] / result["baseline_dram"] for result in results.values())
        for design in ("efficient", "max")
    }
    text = ", ".join(f"{design} {share:.0%} less" for design, share in saved.items())
    text += f" off-chip traffic on average over {', '.join(results)}, 1:1 without warm-up"
    holds = all(abs(share - 1 / 3) < TRAFFIC_TOLERANCE for share in saved.values())
    return judge("off-chip traffic", section.claim("traffic"), holds, text, "modelled")


def _judge_use(section: Section, results: Mapping[str, Mapping[str, Any]]) -> Verdict:
    used = {
        design: mean(
            result[f"{design}_macs_a_cycle"] / (result["pes"] + (result["predictor_pes"] if design == "max" else 0))
            for result in results.values()
        )
        for design in COUNTED_DESIGNS
    }
    text = ", ".join(f"{design} {share:.0%}" for design, share in used.items()) + " of the PEs at work in a cycle"
    return judge("use of the PEs", section.claim("utilisation"), used["max"] < used["efficient"], text, "modelled")


def _judge_size(section: Section, results: Mapping[str, Mapping[str, Any]]) -> Verdict:
    larger = any(result["predictor_bits"] > result["buffer_bits"] for result in results.values())
    sizes = ", ".join(f"{model} {result['predictor_bits'] / 8192:,.0f} KB" for model, result in results.items())
    text = f"{sizes}; the global buffer has {next(iter(results.values()))['buffer_bits'] / 8192:,.0f} KB"
    return judge("size of the predictor", section.claim("resources"), larger, text, "modelled")


def _draw(rows: list[dict[str, Any]], columns: Any, label: str) -> "Figure":
    figure, axes = subplots(1, 1, (8, 4))
    grouped_bars(
        axes[0][0], [str(row[next(iter(row))]) for row in rows], {name: [row[name] for row in rows] for name in columns}
    )
    axes[0][0].set(ylabel=label)
    return figure


def conclude_figure_3(budget: str, workspace: Workspace) -> Conclusion:
    """Count the weight updates and losses of an epoch for gradient descent, its variants, and ADA-GP at 1:1."""
    section = published(FIGURE_3)
    batches = {"gd": 1, "sgd": SAMPLES, "mbgd": SAMPLES // FIGURE_BATCH, "adagp": SAMPLES // FIGURE_BATCH}
    schedule = parse_schedule("1:1", 1, 0)
    plans = [schedule.plan(Step(0, batch)) for batch in range(batches["adagp"])]
    losses = batches | {"adagp": sum(plan.has_true_gradients for plan in plans)}
    rows: list[dict[str, Any]] = [
        {"learning": name, "updates": batches[name], "losses": losses[name]} for name in batches
    ]
    verdicts = [
        compare(f"{figure} in an epoch, {name}", section.number(figure, name), counts[name], "computed")
        for figure, counts in (("updates", batches), ("losses", losses))
        for name in batches
    ]
    free = [plan for plan in plans if not plan.has_true_gradients]
    text = f"{len(free)} of {len(plans)} batches have a plan without backprop; their weights are updated all the same"
    verdicts.append(judge("updates in Phase GP", section.claim("parallel"), bool(free), text, "computed"))
    return Conclusion(rows, verdicts, lambda: _draw(rows, ("updates", "losses"), "in an epoch"))


def conclude_figure_14(budget: str, workspace: Workspace) -> Conclusion:
    """Compare what our chips of the four designs consist of with the pictures of the baseline and of the three designs."""
    from adagp.hw.dataflows import parse_array
    from adagp.rtl.blueprint import make_blueprint
    from adagp.rtl.formats import find_format

    section = published(FIGURE_14)
    rows: list[dict[str, Any]] = []
    for design in DESIGNS:
        blueprint = make_blueprint(
            design, parse_array("12x15"), find_format("int16"), predictor_array=parse_array("8x10")
        )
        predictor = blueprint.predictor
        rows.append(
            {
                "design": design,
                "arrays": len(blueprint.cores),
                "elements": sum(core.array.rows * core.array.columns for core in blueprint.cores),
                "predictor_memories": int(predictor is not None or blueprint.core.predictor_words > 0),
                "memory_kilobits": blueprint.memory_bits / 1024,
            }
        )
    verdicts = [
        compare(
            f"{figure.replace('_', ' ')}, {row['design']}",
            section.number(figure, row["design"]),
            row[figure],
            "computed",
        )
        for figure in ("arrays", "predictor_memories")
        for row in rows
    ]
    verdicts.append(compare("PEs, baseline", section.number("elements", "baseline"), rows[0]["elements"], "computed"))
    return Conclusion(rows, verdicts, lambda: _draw(rows, ("memory_kilobits",), "kilobits of memory on the chip"))


def conclude_facts(budget: str, workspace: Workspace) -> Conclusion:
    """Compare the notes' quick facts with the paper that they summarise."""
    section = published(FACTS)
    ours = {
        ("models", "count"): section.set_up("models"),
        ("references", "count"): section.set_up("references"),
        ("speedup", "average"): published("adagp-headline").number("average").value,
        ("energy", "average"): published("adagp-figure21").number("saving", "average").value,
    }
    terms = Terms(reduced="counted in the paper")
    verdicts = [
        compare(f"{path[0]}, {path[1]}", section.number(*path), value, "computed", terms)
        for path, value in ours.items()
    ]
    rows = [{"fact": path[0], "paper": value, "notes": section.number(*path).value} for path, value in ours.items()]
    return Conclusion(rows, verdicts, lambda: _draw(rows, ("paper", "notes"), "figure"))


for _experiment in (
    Experiment(
        STATEMENTS,
        "what the text states about layers and predictions",
        MINUTES,
        lambda budget: tuple(_counts().values()),
        conclude_statements,
    ),
    Experiment(
        FIGURE_3, "updates and losses of an epoch by kind of learning", MINUTES, lambda budget: (), conclude_figure_3
    ),
    Experiment(
        FIGURE_14, "what the baseline and the three designs consist of", MINUTES, lambda budget: (), conclude_figure_14
    ),
    Experiment(
        FACTS, "the quick facts of the notes on ADA-GP, against the paper", MINUTES, lambda budget: (), conclude_facts
    ),
    Experiment(
        CHECKS,
        "traffic and use of the PEs of MAX and Efficient, and the speed-up of LOW",
        MINUTES,
        lambda budget: (*_counts().values(), *simulations().values()),
        conclude_checks,
    ),
):
    add_experiment(_experiment)
