"""The accelerator: array, predictor array, dataflow, clock, word width, memories. One frozen value, checked at the door."""

from dataclasses import dataclass, field
from math import inf

from adagp.errors import OptionError
from adagp.hw.array import Array
from adagp.hw.dataflows import DATAFLOWS
from adagp.hw.energy import EnergyModel, Technology, mac
from adagp.hw.predictor import PredictorShape
from adagp.hw.product import Cost

MAIN_ARRAY = Array(12, 15)
"""The paper's 180 PEs; their arrangement is ours."""

PREDICTOR_ARRAY = Array(8, 10)
"""The 80 multipliers that ADA-GP-MAX has over the baseline in the paper's Table 4."""


@dataclass(frozen=True)
class Accelerator:
    """All assumptions about the hardware. The defaults are those of `docs/hardware.md`.

    `bandwidth` is off-chip, in bytes a second, infinite if memory is never to stall the array. `predictor_array` is
    the extra array of ADA-GP-MAX; the 80 multipliers that the paper's Table 4 shows for it. `optimizer_words` are the
    words of optimizer state for each weight: 1 for SGD with momentum, 2 for Adam. `zero_insertion` makes
    every dataflow run the gradients of strided convolutions over zeros at the input's resolution, as arrays without
    support for backpropagation do (BP-im2col, arXiv 2209.09434), instead of over the output's gradient alone.
    """

    array: Array = MAIN_ARRAY
    dataflow: str = "ws"
    predictor_array: Array = PREDICTOR_ARRAY
    predictor: PredictorShape = field(default_factory=PredictorShape)
    clock_hz: float = 200e6
    word_bits: int = 16
    buffer_kilobytes: float = 512
    bandwidth: float = 12.8e9
    optimizer_words: int = 1
    zero_insertion: bool = False
    technology: Technology = field(default_factory=Technology)

    def __post_init__(self) -> None:
        DATAFLOWS[self.dataflow]
        for name, value, unit in (
            ("clock", self.clock_hz / 1e6, "megahertz"),
            ("bandwidth", self.bandwidth / 1e9, "gigabytes a second"),
            ("buffer", self.buffer_kilobytes, "kilobytes"),
        ):
            if not value > 0:
                raise OptionError(f"{name} is {value:g} {unit}; it must be more than 0.")
        if self.optimizer_words < 0:
            raise OptionError(f"optimizer_words is {self.optimizer_words}; it must be 0 or more.")
        mac(self.word_bits)

    @property
    def words_per_cycle(self) -> float:
        """Off-chip words in a cycle of the array."""
        return self.bandwidth * 8 / self.word_bits / self.clock_hz

    @property
    def buffer_words(self) -> float:
        """Words that the global buffer holds."""
        return self.buffer_kilobytes * 8192 / self.word_bits

    def with_stalls(self, cost: Cost) -> Cost:
        """Return `cost` with the longer of its compute and its transfer cycles, as double buffering gives."""
        if self.bandwidth == inf:
            return cost
        transfer = -int(-cost.dram_words // self.words_per_cycle)
        return cost if transfer <= cost.cycles else cost.taking(transfer)

    def energy_model(self, predictor_weights: int = 0) -> EnergyModel:
        """Return the energy model; `predictor_weights` in words is what the predictor memory holds, 0 if there is none."""
        kilobytes = predictor_weights * self.word_bits / 8192
        return EnergyModel(self.technology, self.word_bits, self.clock_hz, self.buffer_kilobytes, kilobytes)
