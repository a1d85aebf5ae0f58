"""Programs for one batch of a small network, Phase BP or Phase GP, on each of the designs.

The layers' code and the predictor's code are written once. In `low` and `efficient` both go into one program; in `max` they are
two, which meet where they exchange something.
"""

from dataclasses import dataclass, field

import numpy as np

from adagp.errors import OptionError, unknown_name
from adagp.rtl.chip import Blueprint
from adagp.rtl.code import Code, Contents, Matrix, Operand, lines, zeros
from adagp.rtl.golden import PHASES
from adagp.rtl.instructions import REMOTE, Store
from adagp.rtl.layer_code import POOLING, LayerCode
from adagp.rtl.network import SmallNetwork, State
from adagp.rtl.predictor_code import PredictorCode


@dataclass
class CompiledBatch:
    """Programs, what the host writes before they run, and where it finds the results: weights of each layer by tap; `straight`
    says whether they lie in their matrices as inputs x outputs."""

    programs: list[list[int]]
    contents: Contents
    weights: list[list[Matrix]]
    straight: bool
    kernel: Matrix | None
    readout: Matrix | None
    predictor_core: int
    codes: list[Code] = field(default_factory=list)


class Compiler:
    """Writes the programs of one batch. The layers run in `dataflow`."""

    def __init__(self, blueprint: Blueprint, network: SmallNetwork, phase: str, dataflow: str = "ws") -> None:
        if phase not in PHASES:
            raise unknown_name("phase", phase, PHASES)
        self.predicts = blueprint.design != "baseline"
        if phase == "gp" and not self.predicts:
            raise OptionError("the baseline has no predictor, so it has no Phase GP; choose low, efficient or max.")
        if self.predicts and dataflow not in POOLING and network.picture != (1, 1):
            raise OptionError(
                f"dataflow '{dataflow}' cannot pool pictures: the outputs of a channel leave the array in several lanes. "
                "Choose ws or os, or a picture of 1x1."
            )
        if network.kernel > 1 and dataflow != "ws":
            raise OptionError(
                f"dataflow '{dataflow}' cannot take neighbours of pixels by their addresses, which a kernel of 3x3 needs; "
                "choose ws, or a kernel of 1."
            )
        self.blueprint, self.network, self.phase = blueprint, network, phase
        self.main = Code(blueprint.core)
        self.own = Code(blueprint.predictor) if blueprint.predictor is not None else self.main
        self.layers = LayerCode(self.main, network, dataflow, predicts=self.predicts)
        shared = [layer.gradient for layer in self.layers.layers] if self.own is self.main else None
        self.predictor = PredictorCode(self.own, network, shared) if self.predicts else None
        self.contents: Contents = []

    def compile(self, state: State) -> CompiledBatch:
        """Return the job for a batch that starts from `state`."""
        self._write(state)
        if self.predictor is None:
            self._backprop()
        elif self.phase == "gp":
            self._phase_gp(self.predictor)
        else:
            self._phase_bp(self.predictor)
        codes = [self.main] if self.own is self.main else [self.main, self.own]
        for code in codes:
            code.halt()
        first = self.predictor.predictors[0] if self.predictor is not None else None
        weights = [layer.weights for layer in self.layers.layers]
        return CompiledBatch(
            [code.program for code in codes],
            self.contents,
            weights,
            self.layers.straight("w"),
            first.kernel if first else None,
            first.readout if first else None,
            0 if self.own is self.main else 1,
            codes,
        )

    def _write(self, state: State) -> None:
        """Say what the host writes before the batch."""
        layers, at = self.layers, 0 if self.own is self.main else 1
        self.contents = [
            (0, layers.layers[0].inputs, layers.turned("x", state.inputs)),
            (0, layers.targets, state.targets.T),
        ]
        for layer, weight in zip(layers.layers, state.weights, strict=True):
            for tap, matrix in enumerate(layer.weights):
                self.contents.append((0, matrix, layers.turned("w", weight[tap :: len(layer.weights)])))
        if self.predictor is None:
            return
        for place in self.predictor.predictors:
            self.contents.append((at, place.patches, zeros(place.patches)))
        place = self.predictor.predictors[0]
        if self.blueprint.design == "low":
            text = np.concatenate([state.kernel.T.ravel(), state.readout.T.ravel()])
            off_chip = Matrix(Store.ROW_VALUES, 0, 1, len(text), 1)
            if len(text) > self.main.sizes.off_chip_words:
                raise OptionError(
                    f"the predictor has {len(text)} weights; off-chip memory has {self.main.sizes.off_chip_words} words."
                )
            self.contents.append((1, off_chip, text[None]))
        else:
            self.contents += [(at, place.kernel, state.kernel.T), (at, place.readout, state.readout.T)]

    # The phases

    def _phase_gp(self, predictor: PredictorCode) -> None:
        layers, count = self.layers, len(self.layers.layers)
        if self.own is self.main:
            for place in range(count):
                layers.forward(place, self.phase)
                layers.mean(place, predictor.mean(place))
                self._load_predictor()
                predictor.predict(place)
                layers.update(place, lines(layers.layers[place].gradient))
            return
        for place in range(count):
            layers.forward(place, self.phase)
            self._meet()
            if place:
                layers.update(place - 1, lines(predictor.predictors[place - 1].gradient).remote)
            layers.mean(place, predictor.mean(place).remote)
            self._meet()
            predictor.predict(place)
        self._meet()
        layers.update(count - 1, lines(predictor.predictors[-1].gradient).remote)
        self._meet()

    def _phase_bp(self, predictor: PredictorCode) -> None:
        layers = self.layers
        for place in range(len(layers.layers)):
            layers.forward(place, self.phase)
        for place in reversed(range(len(layers.layers))):
            layers.weight_gradient(place)
            gradient = lines(layers.layers[place].gradient)
            if self.own is not self.main:
                self._meet()
                inputs, outputs = self.network.weights[place]
                there = lines(predictor.predictors[place].gradient).remote
                self.main.elements((outputs, 1, inputs), there, gradient)
                layers.mean(place, predictor.mean(place).remote)
                self._meet()
            layers.input_gradient(place)
            layers.update(place, gradient)
            if self.own is self.main:
                layers.mean(place, predictor.mean(place))
                self._load_predictor()
            predictor.learn(place)
            self._store_predictor()

    def _backprop(self) -> None:
        layers = self.layers
        for place in range(len(layers.layers)):
            layers.forward(place, self.phase)
        for place in reversed(range(len(layers.layers))):
            layers.weight_gradient(place)
            layers.input_gradient(place)
            layers.update(place, lines(layers.layers[place].gradient))

    def _meet(self) -> None:
        self.main.meet()
        self.own.meet()

    def _swapped(self) -> list[tuple[tuple[int, int, int], Operand, Operand]]:
        """Return the predictor's matrices on the chip and off it."""
        if self.predictor is None or self.blueprint.design != "low":
            return []
        regions, start, found = self.predictor.predictors[0], 0, []
        for matrix in (regions.kernel, regions.readout):
            away = Operand(Store.ROW_VALUES + REMOTE, 0, start, (matrix.extent, 0, 1))
            found.append(((matrix.lines, 1, matrix.extent), lines(matrix), away))
            start += matrix.lines * matrix.extent
        return found

    def _load_predictor(self) -> None:
        """In design low, fetch the predictor's weights."""
        for counts, here, away in self._swapped():
            self.main.elements(counts, here, away)

    def _store_predictor(self) -> None:
        """In design low, write the predictor's weights back."""
        for counts, here, away in self._swapped():
            self.main.elements(counts, away, here)
