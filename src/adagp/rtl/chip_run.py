"""A run of many batches on a simulated chip: weights stay in its banks; the host brings samples and the program of a phase.

The digits for it are pictures of 4 x 4 pixels with 4 channels: a pixel is a block of 2 x 2 pixels of the digit, so that three
convolutions of 3 x 3 see all of it.
"""

from dataclasses import replace
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from adagp.rtl.compiler import Compiler
from adagp.rtl.formats import NumberFormat, Words
from adagp.rtl.network import PHASES, SmallNetwork, State, golden_forward
from adagp.rtl.simulation import Counts, SimulatedChip
from adagp.rtl.training import model_cycles, read_state, write_matrices

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
    """Return what the network should give at every pixel of each sample: 1 for its class; samples x pixels x classes."""
    return np.repeat(np.eye(CLASSES)[classes][:, None], SIDE**2, axis=1)


def accuracy(network: SmallNetwork, number: NumberFormat, state: State, part: str = "test") -> float:
    """Return the share of digits whose class has the largest mean output over the pixels, by the golden model."""
    pictures, classes = digit_pictures(part)
    whole = replace(network, batch=len(pictures))
    _, outputs, _ = golden_forward(whole, number, state.weights, number.encode(pictures.reshape(-1, BLOCK**2)))
    scores = number.decode(outputs[-1]).reshape(len(pictures), SIDE**2, CLASSES).sum(axis=1)
    return float(np.mean(scores.argmax(axis=1) == classes))
