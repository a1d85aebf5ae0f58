"""A small network trained on a simulated chip: single batches against the golden model, and runs of many.

In a run weights stay in the chip's banks; the host writes samples and the program of a phase. The digits for it are pictures
of 4 x 4 pixels with 4 channels: a pixel is a block of 2 x 2 pixels of the digit, so that the receptive field of three 3 x 3
convolutions covers the whole digit.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagp.errors import OptionError
from adagp.hw.dataflows import array_cost
from adagp.rtl.assembler import Contents, Matrix
from adagp.rtl.blueprint import Blueprint
from adagp.rtl.compiler import CompiledBatch, Compiler
from adagp.rtl.formats import NumberFormat, Words
from adagp.rtl.instructions import Store
from adagp.rtl.network import PHASES, SmallNetwork, State, golden_batch, golden_forward, random_state
from adagp.rtl.products import fetch
from adagp.rtl.simulation import Counts, SimulatedChip, simulate_chip


@dataclass(frozen=True)
class BatchReport:
    """What a batch left on the chip and in the golden model, what it took, and the cycles that adagp.hw gives its products."""

    state: State
    golden: State
    counts: Counts
    model_cycles: int
    model_predictor_cycles: int

    @property
    def differences(self) -> dict[str, int]:
        """Words that differ, by matrix."""
        weights = zip(self.state.weights, self.golden.weights, strict=True)
        pairs = {f"layer {index + 1}": pair for index, pair in enumerate(weights)}
        pairs |= {name: (getattr(self.state, name), getattr(self.golden, name)) for name in ("kernel", "readout")}
        return {name: int(np.count_nonzero(simulated != golden)) for name, (simulated, golden) in pairs.items()}

    @property
    def equal(self) -> bool:
        """Whether all words and cycles are equal."""
        cycles = (self.counts.cycles, self.counts.predictor_cycles)
        return not any(self.differences.values()) and cycles == (self.model_cycles, self.model_predictor_cycles)


def run_batch(
    chip: SimulatedChip, network: SmallNetwork, state: State, phase: str, dataflow: str = "ws"
) -> BatchReport:
    """Run one batch on the chip."""
    blueprint = chip.blueprint
    job = Compiler(blueprint, network, phase, dataflow).compile(state)
    write_matrices(chip, job.contents)
    chip.load(job.programs)
    counts = chip.run()
    number = blueprint.core.single
    golden = golden_batch(network, number, state, phase)
    if blueprint.design == "baseline":  # which has no predictor to change
        golden = State(golden.weights, state.kernel, state.readout, state.inputs, state.targets)
    return BatchReport(read_state(chip, job, state), golden, counts, *model_cycles(job))


def write_matrices(chip: SimulatedChip, contents: Contents) -> None:
    """Write matrices into the chip's banks."""
    for core, matrix, content in contents:
        for line, words in enumerate(content):
            lane, address = matrix.at(line)
            chip.write(core, matrix.memory, lane, address, words)


def model_cycles(job: CompiledBatch) -> tuple[int, int]:
    """Return the cycles that adagp.hw gives the products of a batch: of the layers' array, and of the predictor's own."""
    cycles = [
        sum(array_cost(flow, product, code.sizes.array).cycles + code.sizes.stages for flow, product in code.products)
        for code in job.codes
    ]
    return cycles[0], sum(cycles[1:])


def read_state(chip: SimulatedChip, job: CompiledBatch, state: State) -> State:
    """Return `state` with the weights that are on the chip, the predictor's too."""
    weights = tuple(_weights(chip, taps, job.straight) for taps in job.weights)
    kernel, readout = state.kernel, state.readout
    if job.kernel is not None and job.readout is not None:
        if chip.blueprint.design == "low":
            text = chip.read(1, Store.ROW_VALUES, 0, 0, kernel.size + readout.size)
            kernel, readout = _cut(text, kernel, readout)
        else:
            kernel, readout = (
                fetch(chip, region.memory, region.base, (region.lines, region.extent), job.predictor_core).T
                for region in (job.kernel, job.readout)
            )
    return State(weights, kernel, readout, state.inputs, state.targets)


def _weights(chip: SimulatedChip, taps: Sequence[Matrix], straight: bool) -> Words:
    """Return a layer's weights, the taps of an input next to each other."""
    stored = [fetch(chip, region.memory, region.base, (region.lines, region.extent)) for region in taps]
    turned = [matrix if straight else matrix.T for matrix in stored]
    return np.stack(turned, axis=1).reshape(-1, turned[0].shape[1])


def _cut(text: Words, kernel: Words, readout: Words) -> tuple[Words, Words]:
    return text[: kernel.size].reshape(kernel.T.shape).T, text[kernel.size :].reshape(readout.T.shape).T


def check_batches(
    blueprint: Blueprint,
    network: SmallNetwork,
    phases: Sequence[str],
    dataflow: str = "ws",
    seed: int = 0,
    memory_latency: int = 0,
) -> dict[str, Any]:
    """Return what some batches took in hardware, and whether all weights are the golden model's. Off-chip memory is up to
    `memory_latency` cycles late."""
    number = blueprint.core.single
    if memory_latency and blueprint.design != "low":
        raise OptionError(
            f"design '{blueprint.design}' has no off-chip memory that could be late; choose low, or a latency of 0."
        )
    state = random_state(network, number, seed)
    for phase in phases:  # before anything is built
        Compiler(blueprint, network, phase, dataflow).compile(state)
    rows = []
    with simulate_chip(blueprint) as chip:
        chip.set_latency(memory_latency)
        for phase in phases:
            result = run_batch(chip, network, state, phase, dataflow)
            rows.append(
                {
                    "phase": phase,
                    "equal": result.equal,
                    "different_words": result.differences,
                    "model_cycles": result.model_cycles,
                    "model_predictor_cycles": result.model_predictor_cycles,
                    **asdict(result.counts),
                }
            )
            state = result.state
    widths = "-".join(map(str, network.widths))
    about = {
        "network": widths,
        "picture": "x".join(map(str, network.picture)),
        "kernel": network.kernel,
        "dataflow": dataflow,
        "design": blueprint.design,
        "array": str(blueprint.core.array),
        "format": number.name,
    }
    return {"equal": all(row["equal"] for row in rows), **about, "batches": rows}


SIDE, BLOCK = 4, 2
"""Pixels of a digit's picture on each side, and pixels of the digit on each side of one of them."""
CLASSES = 10


class ChipRun:
    """Trains on a chip from `state` on. All designs with a predictor, weight stationary."""

    def __init__(self, chip: SimulatedChip, network: SmallNetwork, state: State) -> None:
        self.chip = chip
        self._start, self._loaded = state, ""
        self._compilers = {phase: Compiler(chip.blueprint, network, phase) for phase in PHASES}
        self._jobs = {phase: compiler.compile(state) for phase, compiler in self._compilers.items()}
        first, *others = self._jobs.values()
        assert all(job.weights == first.weights for job in others), "the phases must find weights at the same place"
        write_matrices(chip, first.contents)

    def batch(self, phase: str, inputs: Words, targets: Words) -> Counts:
        """Train one batch; return what it took."""
        write_matrices(self.chip, self._compilers[phase].samples(inputs, targets))
        if phase != self._loaded:
            self.chip.load(self._jobs[phase].programs)
            self._loaded = phase
        return self.chip.run()

    def model_cycles(self, phase: str) -> tuple[int, int]:
        """Return the cycles of a batch by adagp.hw: of the layers' array, and of the predictor's."""
        return model_cycles(self._jobs[phase])

    def state(self) -> State:
        """Return the weights that are on the chip now."""
        return read_state(self.chip, self._jobs[PHASES[0]], self._start)


def digit_pictures(part: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the packaged digits of `part` (train, test), samples x pixels x channels around zero, and their classes."""
    with np.load(str(files("adagp.data") / "digits.npz")) as archive:
        pixels, classes, train = archive[f"x_{part}"], archive[f"y_{part}"], archive["x_train"]
    blocks = pixels.reshape(-1, SIDE, BLOCK, SIDE, BLOCK).transpose(0, 1, 3, 2, 4)
    pictures = blocks.reshape(len(pixels), SIDE**2, BLOCK**2).astype(np.float64)
    return (pictures - train.mean()) / train.max(), classes.astype(np.int64)


def class_targets(classes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the target output at every pixel of each sample: 1 for its class; samples x pixels x classes."""
    return np.repeat(np.eye(CLASSES)[classes][:, None], SIDE**2, axis=1)


def accuracy(network: SmallNetwork, number: NumberFormat, state: State, part: str = "test") -> float:
    """Return the share of digits whose class has the largest mean output over the pixels, by the golden model."""
    pictures, classes = digit_pictures(part)
    whole = replace(network, batch=len(pictures))
    _, outputs, _ = golden_forward(whole, number, state.weights, number.encode(pictures.reshape(-1, BLOCK**2)))
    scores = number.decode(outputs[-1]).reshape(len(pictures), SIDE**2, CLASSES).sum(axis=1)
    return float(np.mean(scores.argmax(axis=1) == classes))
