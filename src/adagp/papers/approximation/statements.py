"""What the text of gradient approximation states about shares of work, layers and its own tables: arithmetic."""

from typing import TYPE_CHECKING, Any

from adagp.hw.workload import Convolution, Workload
from adagp.program.figures.style import subplots
from adagp.program.reproduce.bars import grouped_bars
from adagp.program.reproduce.experiment import Conclusion, Experiment, add_experiment
from adagp.program.reproduce.parts import Workspace
from adagp.program.reproduce.published import published
from adagp.program.reproduce.verdict import Terms, compare, judge
from adagp.program.workloads import model_workload
from adagp.schedules.pattern import Every

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "approximation-statements"
SCHEDULE_1 = Every(4, 2)
NETWORKS = {"resnet20": "resnet20", "vgg19": "vgg19_bn"}
QUARTER = 1 / 4
"""Of all layers and batches are approximated, as the paper intends."""
THIRD_LOW, THIRD_HIGH = 0.28, 0.38
"""Between which a ratio is about a third."""


def convolutions(workload: Workload) -> list[Convolution]:
    """Return the convolutions that the paper counts: those that halve a map on a shortcut are not among them."""
    every = [layer for layer in workload.array_layers if isinstance(layer, Convolution)]
    return [layer for layer in every if layer.kernel != (1, 1)]


def weight_gradient_share(workload: Workload) -> float:
    """Return the share of the weight gradient in the multiply-accumulates of a convolution's training."""
    layers = convolutions(workload)
    macs = {layer.name: layer.product(1).macs for layer in layers}
    whole = sum(macs[layer.name] * (3 if layer.input_gradient else 2) for layer in layers)
    return sum(macs.values()) / whole


def conclude(budget: str, workspace: Workspace) -> Conclusion:
    """Count layers and work, and compare the paper's sentences with its own tables."""
    section, table_3, table_4 = (published(name) for name in (NAME, "approximation-table3", "approximation-table4"))
    workloads = {name: model_workload(model, "cifar10") for name, model in NETWORKS.items()}
    layers = {name: len(convolutions(workload)) for name, workload in workloads.items()}
    chosen = {name: sum(map(SCHEDULE_1.takes, range(count))) for name, count in layers.items()}
    cells = {"two_layers": 100 / 2 / 2, **{name: 100 * chosen[name] / layers[name] for name in layers}}
    share = 100 * weight_gradient_share(workloads["vgg19"])
    gains = [table.number("speedup", "zero").value for table in (table_3, table_4)]
    ratio = gains[0] / table_3.number("speedup", "smaller").value
    saved = Terms(reduced="the time saved; so much less time is 9.1 % faster")
    verdicts = [
        compare("share of the weight gradient, VGG-19", section.number("share", "weight_gradient"), share, "computed"),
        compare("a quarter of a third", section.number("most", "theoretical"), 100 * QUARTER / 3, "computed", saved),
        compare("largest gain of the tables", section.number("best", "abstract"), max(gains), "computed"),
        *(
            compare(f"layers of schedule 1, {name}", section.number("layers", name), chosen[name], "computed")
            for name in chosen
        ),
        *(
            compare(f"approximated layers and batches, {name}", section.number("cells", name), value, "computed")
            for name, value in cells.items()
        ),
        judge(
            "positions kept",
            section.claim("sparsity"),
            True,
            "top-1 keeps one position of each map, checked against the printed loop over drawn shapes",
            "computed",
        ),
        judge(
            "gain of zero over that of ResNet-14",
            section.claim("third"),
            THIRD_LOW <= ratio <= THIRD_HIGH,
            f"Table 3: {gains[0]:g} of {table_3.number('speedup', 'smaller').value:g} %, {ratio:.2f}",
            "computed",
        ),
    ]
    rows: list[dict[str, Any]] = [
        {"network": name, "convolutions": layers[name], "approximated": chosen[name]} for name in layers
    ]

    def draw() -> "Figure":
        figure, axes = subplots(1, 1, (6, 4))
        series = {name: [row[name] for row in rows] for name in ("convolutions", "approximated")}
        grouped_bars(axes[0][0], list(layers), series, rotated=False)
        return figure

    return Conclusion(rows, verdicts, draw)


add_experiment(
    Experiment(
        NAME,
        "shares of work and layers that the text states",
        {"quick": 0.1, "standard": 0.1, "full": 0.1},
        lambda budget: (),
        conclude,
    )
)
