"""Hypotheses about ADA-GP's accelerator: candidates for what the paper leaves open, compared with its printed figures.

A set of hypotheses fixes how many features the predictor has, how gradients run on the array, how wide the buffer's port is,
and how long, in what batches and of what size the two models of Tables 2 and 3 were trained. Each set is costed for all of the
paper's figures that the accelerator model gives. A set that comes near them is a hypothesis, never a default: there is
no other evidence for it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from itertools import product as combinations
from math import inf
from statistics import mean
from typing import TYPE_CHECKING, Any

from adagp.hw import Accelerator, Convolution, PredictorShape, Simulation, Workload, simulate
from adagp.papers.adagp import PAPER_MODELS
from adagp.papers.adagp.accelerator_experiments import FIGURES, paper_run
from adagp.papers.adagp.synthesis_experiments import BLOCK_BITS
from adagp.program.figures.style import subplots
from adagp.program.reproduce.experiment import Conclusion, Experiment, Part, Workspace, add_experiment
from adagp.program.reproduce.published import Number, published
from adagp.program.reproduce.verdict import WITHIN, Terms, compare, judge
from adagp.program.run.documents import MODERATE, WHOLE, Shape, record_of
from adagp.program.workloads import dataset_info, model_workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "adagp-hypotheses"
SETS = ("cifar10", "imagenet")
"""CIFAR-100 differs from CIFAR-10 in the last layer only."""
LARGER_ON = "cifar10"
"""Where larger baselines are tried: choosing a shape takes longest, and data sets differ little in it."""
SHAPES = {64: (4, 4), 320: (8, 5), 512: (8, 8)}
"""Grid and channels of predictors by their features."""
BACKWARD = ("in-place", "same-dataflow")
PORTS = (0, 64)
"""Bits of the buffer's port; 0: as wide as the array needs."""


@dataclass(frozen=True)
class Training:
    """How one of the two models that are not image classifiers may have been trained, and on which design.

    `hidden` features of a feed-forward layer and sentences of `length` word pieces are a Transformer's; None: the zoo's.
    """

    epochs: int
    batch: int
    design: str = "max"
    hidden: int | None = None
    length: int | None = None


_SMALL = Training(18, 128, "efficient", hidden=512, length=27)
TASKS = {
    "as assumed": {"transformer": Training(90, 128), "yolov3": Training(90, 32)},
    "short, small batches": {"transformer": Training(18, 128), "yolov3": Training(100, 4)},
    "short, small Transformer": {"transformer": _SMALL, "yolov3": Training(100, 4)},
}
"""Trainings of the models of Tables 2 and 3. Table 2 does not state of which design its speed-up is."""
_SAMPLES = {"transformer": ("multi30k", 29_000), "yolov3": ("voc", 16_551)}


@dataclass(frozen=True)
class Hypotheses:
    """One set."""

    features: int = 64
    backward: str = "in-place"
    port: int = 0
    tasks: str = "as assumed"

    def __str__(self) -> str:
        port = f"a port of {self.port} bits" if self.port else "a port as wide as needed"
        return f"{self.features} features, backward {self.backward}, {port}, tasks {self.tasks}"


def every_set() -> list[Hypotheses]:
    """Return all sets, the defaults first."""
    return [Hypotheses(*choice) for choice in combinations(SHAPES, BACKWARD, PORTS, TASKS)]


def try_hypotheses(part: Part, workspace: Workspace) -> dict[str, Any]:
    """Cost the paper's figures under one set; both ways to train the tasks."""
    options = part.options
    accelerators = {
        dataflow: Accelerator(
            dataflow=dataflow,
            predictor=PredictorShape(*SHAPES[options["features"]]),
            backward=options["backward"],
            buffer_port=options["port"] or inf,
        )
        for dataflow in FIGURES.values()
    }
    figures: dict[str, float] = {}
    for dataset in SETS:
        run = paper_run(dataset_info(dataset).train)
        workloads = [model_workload(model, dataset) for model in PAPER_MODELS]
        for dataflow, accelerator in accelerators.items():
            larger = ("equal-power", "equal-area") if (dataflow, dataset) == ("ws", LARGER_ON) else ()
            simulations = [simulate(workload, accelerator, run, ("max", *larger)) for workload in workloads]
            figures |= _speedups(simulations, dataflow, dataset)
            if dataflow == "ws":
                figures |= _further(simulations, dataset)
    return {"figures": figures, "tasks": {name: _tasks(terms, accelerators["ws"]) for name, terms in TASKS.items()}}


def widest_convolution(part: Part, workspace: Workspace) -> dict[str, Any]:
    """Return the most inputs that a filter has in the paper's CNNs: as wide as a predictor for convolutions must be."""
    layers = [layer for model in PAPER_MODELS for layer in model_workload(model, "imagenet").array_layers]
    return {"inputs": max(layer.weights // layer.samples for layer in layers if isinstance(layer, Convolution))}


def _speedups(simulations: Sequence[Simulation], dataflow: str, dataset: str) -> dict[str, float]:
    speedups = [simulation.speedup("max") for simulation in simulations]
    figures = {f"average speed-up, {dataflow}, {dataset}": mean(speedups)}
    return figures if dataflow == "is" else figures | {f"maximum speed-up, {dataflow}, {dataset}": max(speedups)}


def _further(simulations: Sequence[Simulation], dataset: str) -> dict[str, float]:
    if dataset != LARGER_ON:
        return {"energy saving": 100 * mean(simulation.memory_energy_saving("max") for simulation in simulations)}
    return {
        f"{design} gain, {dataset}": 100 * (mean(simulation.speedup(design) for simulation in simulations) - 1)
        for design in ("equal-power", "equal-area")
    }


def _tasks(terms: Mapping[str, Training], accelerator: Accelerator) -> dict[str, float]:
    figures: dict[str, float] = {}
    for model, training in terms.items():
        run = paper_run(_SAMPLES[model][1], training.epochs, training.batch)
        simulation = simulate(task_workload(model, training), accelerator, run)
        figures |= {f"{model} {design} speed-up": simulation.speedup(design) for design in ("efficient", "max")}
        figures |= {
            f"{model} speed-up": simulation.speedup(training.design),
            f"{model} cycles": simulation.baseline.cost.cycles,
        }
    return figures


def task_workload(model: str, training: Training) -> Workload:
    """Return the zoo's model, or the Transformer with feed-forward layers and sentences of another size."""
    if training.hidden is None or training.length is None:
        return model_workload(model, _SAMPLES[model][0])
    import torch

    from adagp.models.example import VOCABULARY
    from adagp.models.transformer import SIZE, Transformer
    from adagp.tracing.tracer import BATCH, trace

    with torch.device("meta"):
        transformer = Transformer(VOCABULARY, SIZE, training.hidden)
        tokens = torch.ones(BATCH, training.length, dtype=torch.long)
    return trace(transformer, (tokens, tokens), model)


@cache
def published_numbers() -> dict[str, Number]:
    """Return the published number of each figure by its name."""
    numbers: dict[str, Number] = {}
    for name, dataflow in FIGURES.items():
        for dataset in SETS:
            numbers[f"average speed-up, {dataflow}, {dataset}"] = published(name).number("average", dataset)
            if dataflow != "is":
                numbers[f"maximum speed-up, {dataflow}, {dataset}"] = published(name).number("maximum", dataset)
    numbers[f"equal-power gain, {LARGER_ON}"] = published("adagp-table4").number("equal_power", LARGER_ON)
    numbers[f"equal-area gain, {LARGER_ON}"] = published("adagp-table5").number("equal_area", LARGER_ON)
    numbers["energy saving"] = published("adagp-figure21").number("saving", "average")
    numbers["predictor blocks"] = published("adagp-table4").number("predictor_memory", "extra")
    table2, table3 = published("adagp-table2"), published("adagp-table3")
    numbers["transformer speed-up"] = table2.number("speedup", "adagp")
    numbers["transformer cycles"] = table2.number("cycles", "bp")
    for design in ("efficient", "max"):
        numbers[f"yolov3 {design} speed-up"] = table3.number("speedup", design)
    numbers["yolov3 cycles"] = table3.number("cycles", "baseline")
    return numbers


def _shape() -> Shape:
    """Return the shape of a set's figures: all that were published but for the predictor's memory."""
    names = [name for name in published_numbers() if name != "predictor blocks"]
    tasks = [name for name in names if name.startswith(tuple(_SAMPLES))]
    figures = dict.fromkeys((name for name in names if name not in tasks), MODERATE)
    return record_of(
        {
            "figures": record_of(figures),
            "tasks": record_of(dict.fromkeys(TASKS, record_of(dict.fromkeys(tasks, MODERATE)))),
        }
    )


@cache
def _parts() -> dict[tuple[int, str, int], Part]:
    return {
        (features, backward, port): Part(
            try_hypotheses,
            f"{features}-{backward}-{port}",
            {"features": features, "backward": backward, "port": port},
            weight=20.0,
            shape=_shape(),
        )
        for features, backward, port in combinations(SHAPES, BACKWARD, PORTS)
    }


@cache
def _widest() -> Part:
    return Part(widest_convolution, "all", {}, weight=5.0, shape=record_of({"inputs": WHOLE}))


def figures_of(workspace: Workspace, hypotheses: Hypotheses) -> dict[str, float]:
    """Return our figures under a set, by the names of the published ones; the predictor's memory is one for convolutions."""
    result = workspace.result(_parts()[hypotheses.features, hypotheses.backward, hypotheses.port])
    bits = hypotheses.features * workspace.result(_widest())["inputs"] * Accelerator().width("weights")
    figures = {**result["figures"], **result["tasks"][hypotheses.tasks], "predictor blocks": -(-bits // BLOCK_BITS)}
    return {name: figures[name] for name in published_numbers()}


def explained(figures: Mapping[str, float]) -> list[str]:
    """Return the figures that are within the tolerance of the published ones."""
    numbers = published_numbers()
    verdicts = {name: compare(name, numbers[name], value, "modelled").verdict for name, value in figures.items()}
    return [name for name, verdict in verdicts.items() if verdict == WITHIN]


def conclude(budget: str, workspace: Workspace) -> Conclusion:
    """Count the figures that each set explains, and compare those of the set that explains most."""
    figures_by_set = {hypotheses: figures_of(workspace, hypotheses) for hypotheses in every_set()}
    hits = {hypotheses: explained(figures) for hypotheses, figures in figures_by_set.items()}
    best = max(hits, key=lambda hypotheses: len(hits[hypotheses]))  # of equals the first: nearest to the defaults
    default = Hypotheses()
    explaining = Counter(chain.from_iterable(hits.values()))
    never = [name for name in published_numbers() if not explaining[name]]
    section = published(NAME)
    text = (
        f"{best}: {len(hits[best])} of {len(published_numbers())}; the defaults: {len(hits[default])}; "
        f"within no set: {', '.join(never) or 'none'}"
    )
    verdicts = [
        judge(
            "one set explains all figures",
            section.claim("single"),
            len(hits[best]) == len(figures_by_set[best]),
            text,
            "modelled",
        )
    ]
    for name, number in published_numbers().items():
        sets = f"{explaining[name]} of {len(hits)} sets come within"
        terms = Terms(reduced=f"the defaults give {figures_by_set[default][name]:.4g}; {sets}")
        verdicts.append(compare(f"{name}, under the best set", number, figures_by_set[best][name], "modelled", terms))
    rows = [
        {
            "hypotheses": str(hypotheses),
            "within": len(hits[hypotheses]),
            **{f"modelled {name}": value for name, value in row.items()},
        }
        for hypotheses, row in figures_by_set.items()
    ]
    return Conclusion(rows, verdicts, lambda: _draw(hits))


def _draw(hits: Mapping[Hypotheses, list[str]]) -> "Figure":
    figure, axes = subplots(1, 1, (11, 9))
    ordered = sorted(hits, key=lambda hypotheses: len(hits[hypotheses]))
    axes[0][0].barh([str(hypotheses) for hypotheses in ordered], [len(hits[hypotheses]) for hypotheses in ordered])
    axes[0][0].set(xlabel=f"figures within the tolerance, of {len(published_numbers())}", title="Sets of hypotheses")
    axes[0][0].tick_params(axis="y", labelsize=7)
    return figure


for _experiment in (
    Experiment(
        NAME,
        "what the paper leaves open about its accelerator, by trial",
        {"quick": 4.0, "standard": 4.0, "full": 4.0},
        lambda budget: (_widest(), *_parts().values()),
        conclude,
    ),
):
    add_experiment(_experiment)
