"""CAMEL's accelerator: a reversible branch next to a frozen backbone, with embedded DRAM that need not be refreshed; and its
SRAM rival.

Sizes are those that a third party reports of the paper (Zhang et al., HPCA 2024): 6 x 6 cells, each a dot product of nine
pairs a cycle, 500 MHz, 12 x 48 KB of embedded DRAM for activations and gradients, 6 x 8 KB of SRAM for weights; of equal area,
4 x 4 cells, 6 x 48 KB and 2 x 24 KB of SRAM. Values take 58 bits in groups of nine. Cycles of a product are those of a
weight-stationary array; the branch's backward pass runs its functions once more. Ours: 0.15 pJ a multiply-accumulate (8-bit
integers of Horowitz scaled to 6 bits), streaming of weights that do not fit, once for each micro-batch.

Embedded DRAM has cells of three transistors. Its ratios to SRAM are those of Kelle (Xia, Zhang: MICRO 2025, Table 1: 4 MB at
65 nm, Destiny): an access takes 84.8 / 185.9 of an SRAM's energy, leakage is 154 / 415, area 3.2 / 7.3. SRAM is adagp's energy
table. CAMEL's own energies were not available.

How long a datum lives in memory, from its writing to its last reading, in one reversible block: forward,
`y2 = x2 + F1(x1)`, then `y1 = x1 + F2(y2)`; results overwrite what is no longer needed. Backward, given y1, y2 and their
gradients d1, d2:

    F2 at y2 again, which gives x1 = y1 - F2(y2); its two gradients, which give g2 = d2 + v
    F1 at x1 again, which gives x2 = y2 - F1(x1); its two gradients, which give d1 + u

With F and each of its two gradients taking a time t, no datum lives longer than 2 t in the forward pass and 6 t in the backward
pass, and some do live as long (the tests simulate it event by event). That is our reading of the schedule: the text that was
available does not give the topology of a block. Lifetimes are of one sample, or of a micro-batch if F's time is that of
several.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from adagp.errors import ModelError
from adagp.hw.dataflows import Array
from adagp.hw.energy import Technology, find, sram
from adagp.hw.systems import SYSTEMS, LayerRecord, PassCost, System, SystemCost, SystemOptions
from adagp.hw.workload import ArrayLayer, Convolution, Workload

ACCESS, LEAKAGE, AREA = 84.8 / 185.9, 154 / 415, 3.2 / 7.3
"""Embedded DRAM over SRAM of the same size."""


TECHNOLOGY = Technology()


@dataclass(frozen=True)
class OnChipMemory:
    """A memory on the chip. Embedded DRAM is refreshed by a read and a write of what lives in it."""

    kilobytes: float
    embedded_dram: bool
    technology: Technology = TECHNOLOGY

    @property
    def bits(self) -> float:
        """How much it holds."""
        return self.kilobytes * 8192

    def access(self, bits: float) -> float:
        """Return the joules of reading or writing `bits`."""
        entry = sram(self.technology, self.kilobytes)
        return bits * entry.read / entry.bits * 1e-12 * (ACCESS if self.embedded_dram else 1.0)

    def refresh(self, bits: float, times: int) -> float:
        """Return the joules of refreshing live bits."""
        return 2 * times * self.access(bits) if self.embedded_dram else 0.0

    def leakage(self, seconds: float) -> float:
        """Return the joules of idling."""
        watts = sram(self.technology, self.kilobytes).leakage * 1e-3
        return watts * seconds * (LEAKAGE if self.embedded_dram else 1.0)


FORWARD_TIMES, BACKWARD_TIMES = 2, 6
"""Lifetimes of the two passes in units of F's time."""


def lifetimes(time: float) -> tuple[float, float]:
    """Return the longest lifetimes of the forward and of the backward pass, if a block's function takes `time`."""
    return FORWARD_TIMES * time, BACKWARD_TIMES * time


def refreshes(lifetime: float, retention: float) -> int:
    """Return how often a datum must be refreshed: once for each whole retention time that it lives."""
    return int(lifetime // retention)


CLOCK_HZ = 500e6
GROUP = 9
VALUE_BITS = 58 / 9
MAC_JOULES = 0.15e-12


def product_cycles(layer: ArrayLayer, cells: Array, samples: int) -> int:
    """Return the cycles of one product of a layer: folds of loading, streaming and draining."""
    product = layer.product(samples)
    pairs = -(-product.depth // GROUP)
    folds = -(-pairs // cells.rows) * -(-product.columns // cells.columns) * product.count
    return folds * (product.rows + 2 * cells.rows + cells.columns - 2)


def function_of(layer: ArrayLayer) -> str | None:
    """Return the name of the reversible block's function that a layer is part of, if it is."""
    for mark in (".first.", ".second."):
        if mark in layer.name:
            return layer.name[: layer.name.index(mark) + len(mark) - 1]
    return None


def function_times(layers: Iterable[ArrayLayer], cells: Array, samples: int) -> dict[str, int]:
    """Return the cycles of each function of the reversible blocks."""
    times: dict[str, int] = {}
    for layer in layers:
        name = function_of(layer)
        if name is not None:
            times[name] = times.get(name, 0) + product_cycles(layer, cells, samples)
    if not times:
        raise ModelError("CAMEL's designs are for models with reversible blocks, such as duplex: this one has none.")
    return times


class BranchChip:
    """An array with its memories."""

    def __init__(self, cells: Array, activations: OnChipMemory, weights: OnChipMemory) -> None:
        self.cells, self.activations, self.weights = cells, activations, weights

    def cost(
        self, workload: Workload, batch: int, records: Mapping[str, LayerRecord], options: SystemOptions
    ) -> SystemCost:
        """Return the cost of a batch, and how long data live."""
        layers, samples = workload.array_layers, min(options.micro_batch, batch)
        time = max(function_times(layers, self.cells, samples).values()) / CLOCK_HZ * 1e6
        lived = lifetimes(time)
        again = self._refreshes(max(lived), options)
        streamed = sum(layer.weights for layer in layers) * VALUE_BITS > self.weights.bits
        passes = {name: PassCost() for name in ("forward", "input_gradient", "weight_gradient")}
        for layer in layers:
            cycles = product_cycles(layer, self.cells, samples)
            refreshes = again if function_of(layer) else self._refreshes(2 * cycles / CLOCK_HZ * 1e6, options)
            product = self._product(layer, samples, streamed, refreshes) * (batch / samples)
            passes["forward"] += product
            if layer.trainable:
                passes["weight_gradient"] += product
                times = (1 if layer.input_gradient else 0) + (1 if function_of(layer) else 0)  # blocks run again
                passes["input_gradient"] += product * times
        notes: dict[str, float | str] = {
            "T_f, microseconds": lived[0],
            "T_b, microseconds": lived[1],
            "retention, microseconds": options.retention if self.activations.embedded_dram else "SRAM",
            "refreshes of a datum": again,
        }
        return SystemCost(passes, notes)

    def _refreshes(self, lived: float, options: SystemOptions) -> int:
        """Return the refreshes of data by its lifetime in microseconds; in the backbone, while it is written and read."""
        return refreshes(lived, options.retention) if self.activations.embedded_dram else 0

    def _product(self, layer: ArrayLayer, samples: int, streamed: bool, again: int) -> PassCost:
        cycles = product_cycles(layer, self.cells, samples)
        macs = prod((layer.product(samples).rows, layer.product(samples).depth, layer.product(samples).columns))
        moved = samples * (layer.input_words + layer.output_words) * VALUE_BITS
        spilled = moved if moved > self.activations.bits else 0.0
        off_chip = spilled + (layer.weights * VALUE_BITS if streamed else 0.0)
        joules = macs * layer.product(samples).count * MAC_JOULES
        joules += self.activations.access(moved) + self.weights.access(layer.weights * VALUE_BITS)
        joules += self.activations.refresh(min(moved, self.activations.bits), again)
        joules += (self.activations.leakage(cycles / CLOCK_HZ) + self.weights.leakage(cycles / CLOCK_HZ)) + _dram(
            off_chip
        )
        return PassCost(cycles, joules)


def _dram(bits: float) -> float:
    technology = Technology()
    entry = find(technology, "dram", technology.dram, technology.node)
    return bits * entry.read / entry.bits * 1e-12


CAMEL = BranchChip(Array(6, 6), OnChipMemory(12 * 48, embedded_dram=True), OnChipMemory(6 * 8, embedded_dram=False))
CAMEL_SRAM = BranchChip(
    Array(4, 4), OnChipMemory(6 * 48, embedded_dram=False), OnChipMemory(2 * 24, embedded_dram=False)
)

SYSTEMS.add("camel", System("camel", "reversible branch in embedded DRAM", CLOCK_HZ, CAMEL.cost))
SYSTEMS.add("camel-sram", System("camel-sram", "the same with SRAM of equal area", CLOCK_HZ, CAMEL_SRAM.cost))


def published_shape(pixels: int, channels: int = 12) -> Convolution:
    """Return a 3x3 convolution of `channels` channels on square maps: the size at which lifetimes are as published."""
    side = (pixels, pixels)
    return Convolution("blocks.0.first.layer", channels, channels, (3, 3), side, side)
