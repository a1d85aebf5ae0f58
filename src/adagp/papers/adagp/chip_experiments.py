"""A network trained on the chip: the digits on design max in simulated hardware, next to the golden model and to torch.

Three convolutions of 3 x 3, each followed by a ReLU but the last, which gives the class at every pixel; squared error. The same
batches, in the same phases, train the same network in torch: with adagp's engine and its predictor, and by backprop alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from adagp.errors import ToolError
from adagp.program.figures.style import grouped_bars, series_colour, subplots
from adagp.program.reproduce.experiment import Conclusion, Experiment, Part, Workspace, add_experiment
from adagp.program.reproduce.published import Section, published
from adagp.program.reproduce.verdict import judge
from adagp.program.run.documents import ABSENT, AMOUNT, COUNT, MODERATE, TEXT, WHOLE, Either, ListOf, record_of

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from adagp.rtl.network import SmallNetwork, State

NAME = "adagp-chip"
_CHIP: dict[str, Any] = {
    "array": "8x8",
    "predictor_array": "4x4",
    "format": "int16",
    "widths": (4, 16, 16, 10),
    "batch_size": 16,
    "rate": 2**-8,
    "predictor_rate": 2**-8,
    "seed": 0,
}
_SIZES: dict[str, dict[str, Any]] = {
    "quick": {"epochs": 4, "warmup_epochs": 2, "batches": 40},
    "standard": {"epochs": 8, "warmup_epochs": 4, "batches": 89},
    "full": {"epochs": 8, "warmup_epochs": 4, "batches": 89},
}
COUNTED = ("cycles", "predictor_cycles", "element_cycles", "elapsed")
_PHASE = {"batches": WHOLE, "model_cycles": COUNT, "model_predictor_cycles": COUNT, "unequal_batches": COUNT}
TRAINED = Either(
    record_of({"missing": TEXT}, others=ABSENT),
    record_of(
        {
            "epochs": ListOf(
                record_of(
                    {
                        "chip": AMOUNT,
                        "engine": AMOUNT,
                        "backprop": AMOUNT,
                        "different_words": COUNT,
                        "bp": COUNT,
                        "gp": COUNT,
                    }
                )
            ),
            **{phase: record_of(_PHASE | dict.fromkeys(COUNTED, MODERATE)) for phase in ("bp", "gp")},
        },
        others=ABSENT,
    ),
)
"""The shape of a run: accuracies and differences by epoch, cycles by phase."""


@cache
def chip_part(budget: str) -> Part:
    """Return the run of a budget."""
    return Part(train_on_chip, budget, _CHIP | _SIZES[budget], 90, TRAINED)


def train_on_chip(part: Part, workspace: Workspace) -> dict[str, Any] | None:
    """Train the digits on the chip, in the golden model and in torch; where a tool is missing, the result names it."""
    from adagp.rtl.tools import need_amaranth

    try:
        need_amaranth()
        return _train(part.options, workspace)
    except ToolError as error:
        return {"missing": str(error)}


def _train(options: Mapping[str, Any], workspace: Workspace) -> dict[str, Any] | None:
    import numpy as np

    from adagp.hw.dataflows import parse_array
    from adagp.rtl.blueprint import make_blueprint
    from adagp.rtl.formats import find_format
    from adagp.rtl.network import SmallNetwork, golden_batch, random_state
    from adagp.rtl.simulation import simulate_chip
    from adagp.rtl.training import SIDE, ChipRun, accuracy, class_targets, digit_pictures

    array, beside = (parse_array(options[name]) for name in ("array", "predictor_array"))
    blueprint = make_blueprint(
        "max", array, find_format(options["format"]), predictor_array=beside, predictor_words=4096
    )
    number, size = blueprint.core.single, options["batch_size"]
    network = SmallNetwork(
        tuple(options["widths"]),
        size,
        picture=(SIDE, SIDE),
        kernel=3,
        rate=options["rate"],
        predictor_rate=options["predictor_rate"],
    )
    golden = random_state(network, number, options["seed"])
    golden = replace(golden, readout=np.zeros_like(golden.readout))  # an untrained predictor predicts no gradient
    weights = [number.decode(weight) for weight in golden.weights]
    engine, backprop = (TorchRun(network, weights, options, predicts=predicts) for predicts in (True, False))
    pictures, classes = digit_pictures("train")
    counted = {phase: _Counted() for phase in ("bp", "gp")}
    epochs = []
    with simulate_chip(blueprint) as chip:
        run = ChipRun(chip, network, golden)
        for order in _orders(len(pictures), options):
            taken = {"bp": 0, "gp": 0}
            for chosen in order.reshape(-1, size):
                samples, targets = pictures[chosen], class_targets(classes[chosen])
                backprop.batch(samples, targets)
                phase = engine.batch(samples, targets)
                inputs, wanted = (number.encode(one.reshape(network.rows, -1)) for one in (samples, targets))
                counted[phase].add(run.batch(phase, inputs, wanted), run.model_cycles(phase))
                golden = golden_batch(network, number, replace(golden, inputs=inputs, targets=wanted), phase)
                taken[phase] += 1
            if workspace.stop():
                return None
            trained = run.state()
            scores = {
                "chip": accuracy(network, number, trained),
                "engine": engine.accuracy(),
                "backprop": backprop.accuracy(),
            }
            epochs.append({**scores, "different_words": _different_words(trained, golden), **taken})
    return {"epochs": epochs, **{phase: own.summary() for phase, own in counted.items()}}


def _orders(samples: int, options: Mapping[str, Any]) -> "Iterator[NDArray[np.int64]]":
    """Yield the samples of each epoch in the order of its batches."""
    import numpy as np

    rng = np.random.default_rng(options["seed"])
    for _ in range(options["epochs"]):
        yield rng.permutation(samples)[: options["batches"] * options["batch_size"]]


def _different_words(ours: "State", golden: "State") -> int:
    import numpy as np

    pairs = [
        *zip(ours.weights, golden.weights, strict=True),
        (ours.kernel, golden.kernel),
        (ours.readout, golden.readout),
    ]
    return sum(int(np.count_nonzero(one != other)) for one, other in pairs)


class _Counted:
    """What the batches of a phase took on the chip, and what the model says."""

    def __init__(self) -> None:
        self.batches = self.unequal = 0
        self.totals = dict.fromkeys(COUNTED, 0)
        self.model = (0, 0)

    def add(self, counts: Any, model: tuple[int, int]) -> None:
        """Add a batch."""
        self.batches += 1
        self.unequal += (counts.cycles, counts.predictor_cycles) != model
        self.model = (self.model[0] + model[0], self.model[1] + model[1])
        for name in COUNTED:
            self.totals[name] += getattr(counts, name)

    def summary(self) -> dict[str, Any]:
        """Return plain values."""
        cycles = {"model_cycles": self.model[0], "model_predictor_cycles": self.model[1]}
        return {"batches": self.batches, "unequal_batches": self.unequal, **cycles, **self.totals}


class TorchRun:
    """The same network in 32-bit floats, trained by adagp's engine or by backprop alone, with plain SGD."""

    def __init__(
        self,
        network: "SmallNetwork",
        weights: "Sequence[NDArray[np.float64]]",
        options: Mapping[str, Any],
        *,
        predicts: bool,
    ) -> None:
        import torch
        from torch import nn

        import adagp
        from adagp.papers.adagp.source import PredictedSource
        from adagp.sources.learned import LearningOptions

        self.side = network.picture[0]
        layers: list[nn.Module] = []
        for (inputs, outputs), weight in zip(network.layers, weights, strict=True):
            layer = nn.Conv2d(inputs, outputs, network.kernel, padding=network.kernel // 2, bias=False)
            with torch.no_grad():
                layer.weight.copy_(torch.tensor(weight.T).reshape(layer.weight.shape))
            layers += [layer, nn.ReLU()]
        self.model: nn.Module = nn.Sequential(*layers[:-1])
        shape, epochs = network.predictor, options["epochs"]
        source = PredictedSource(LearningOptions(grid=shape.grid), shape.channels)
        self.trainer = adagp.attach(
            self.model,
            torch.optim.SGD(self.model.parameters(), lr=network.rate),
            length=adagp.Epochs(epochs, options["batches"]),
            schedule=adagp.parse_schedule("1:1" if predicts else "bp", epochs, options["warmup_epochs"]),
            sources={"predicted": source} if predicts else {},
        )

    def _picture(self, rows: "NDArray[np.float64]") -> Any:
        import torch

        pictures = torch.tensor(rows, dtype=torch.float32).reshape(len(rows), self.side, self.side, -1)
        return pictures.permute(0, 3, 1, 2)

    def batch(self, samples: "NDArray[np.float64]", targets: "NDArray[np.float64]") -> str:
        """Train a batch; return how it was trained: bp or gp."""
        result = self.trainer.step(
            self._picture(samples),
            self._picture(targets),
            lambda output, wanted: ((output - wanted) ** 2).sum() / 2,
        )
        return "gp" if result.phase == "gp" else "bp"

    def accuracy(self) -> float:
        """Return the share of test digits that are recognised."""
        import torch

        from adagp.rtl.training import digit_pictures

        pictures, classes = digit_pictures("test")
        with torch.no_grad():
            scores = self.model(self._picture(pictures)).sum(dim=(2, 3))
        return float((scores.argmax(dim=1).numpy() == classes).mean())


CURVES = {"chip": "chip, int16", "engine": "torch, adagp's engine", "backprop": "torch, backprop alone"}


def conclude(budget: str, workspace: Workspace) -> Conclusion:
    """Judge bits, cycles and accuracy."""
    section, result = published(NAME), workspace.result(chip_part(budget))
    if "missing" in result:
        return _not_measured(section, result["missing"])
    epochs = result["epochs"]
    rows = [{"epoch": place + 1, **epoch} for place, epoch in enumerate(epochs)]
    phases = {phase: result[phase] for phase in ("bp", "gp")}
    different, unequal = (
        sum(epoch["different_words"] for epoch in epochs),
        sum(own["unequal_batches"] for own in phases.values()),
    )
    taken = ", ".join(f"{own['batches']} batches in {phase.upper()}" for phase, own in phases.items())
    last = {name: 100 * epochs[-1][name] for name in CURVES} if epochs else dict.fromkeys(CURVES, 0.0)
    text = ", ".join(f"{CURVES[name]} {value:.1f}%" for name, value in last.items()) + "; one seed"
    verdicts = [
        judge("words that differ after an epoch", section.claim("bits"), different == 0, f"{different} words; {taken}"),
        judge("batches whose cycles differ", section.claim("cycles"), unequal == 0, f"{unequal} batches; {taken}"),
        judge("accuracy after the last epoch", section.claim("accuracy"), last["chip"] >= last["engine"] - 2, text),
    ]
    return Conclusion(rows, verdicts, lambda: _draw(epochs, phases))


def _not_measured(section: Section, missing: str) -> Conclusion:
    verdicts = [judge(claim, section.claim(claim), None, missing) for claim in ("bits", "cycles", "accuracy")]
    return Conclusion([{"epoch": 0}], verdicts, lambda: _draw([], {}))


def _draw(epochs: Sequence[Mapping[str, Any]], phases: Mapping[str, Mapping[str, Any]]) -> "Figure":
    figure, (axes,) = subplots(1, 2, (10, 3.8))
    for index, (name, label) in enumerate(CURVES.items()):
        values = [100 * epoch[name] for epoch in epochs]
        axes[0].plot(range(1, len(values) + 1), values, "o-", color=series_colour(index), label=label)
    axes[0].set(xlabel="epoch", ylabel="accuracy on test digits, %", title="trained on the chip and in torch")
    axes[0].set_xticks(range(1, len(epochs) + 1))
    axes[0].legend(fontsize=8)
    names = {
        "array, model": "model_cycles",
        "array, chip": "cycles",
        "predictor, model": "model_predictor_cycles",
        "predictor, chip": "predictor_cycles",
        "elements": "element_cycles",
        "all, start to halt": "elapsed",
    }
    bars = {
        f"{phase.upper()} batch": [own[field] / own["batches"] / 1000 for field in names.values()]
        for phase, own in phases.items()
    }
    if bars:
        grouped_bars(axes[1], list(names), bars)
    axes[1].set(ylabel="thousand cycles a batch", title="cycles by phase")
    return figure


add_experiment(
    Experiment(
        NAME,
        "the digits trained on design max in simulated hardware: bits, accuracy by epoch and cycles by phase, next to torch",
        {"quick": 1.5, "standard": 6.0, "full": 6.0},
        lambda budget: [chip_part(budget)],
        conclude,
    )
)
