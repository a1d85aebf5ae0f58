"""The accelerator: arrays, dataflow, clock, word widths, memories, and the shape of a gradient predictor. Frozen values."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import ceil, inf
from typing import Protocol

from adagp.errors import OptionError, unknown_name
from adagp.hw.dataflows import DATAFLOWS, OBJECTIVES, SYSTOLIC, TIMED, Array, Memory, array_cost
from adagp.hw.energy import EnergyModel, Technology, mac
from adagp.hw.product import FREE_ACCESSES, NOTHING, Bits, Cost, Operation, Product, Window, total
from adagp.hw.workload import ArrayLayer

KERNEL = 3
"""Side of the predictor's convolution."""
MOST_FEATURES = 1 << 20


@dataclass(frozen=True)
class PredictorShape:
    """The gradient predictor as work for the array, by the side of its pooled grid and the channels of its convolution.

    It sees one sample for each output channel (or neuron) of a layer: the batch-mean output pooled to a small grid. One
    3x3 convolution makes `channels` feature maps of the grid; one fully connected layer makes from them the gradient of
    the channel's weights. The fully connected layer is as wide as the widest layer needs; for narrower layers the surplus
    outputs are not computed.
    """

    grid: int = 4
    channels: int = 4

    def __post_init__(self) -> None:
        if self.grid < 1 or self.channels < 1:
            raise OptionError(
                f"a predictor of grid {self.grid} and {self.channels} channels is not allowed: both must be at least 1."
            )
        if self.features > MOST_FEATURES:
            raise OptionError(
                f"a predictor of grid {self.grid} and {self.channels} channels has {self.features:,} features; "
                f"at most {MOST_FEATURES:,} are allowed."
            )

    def __str__(self) -> str:
        return f"{self.grid}x{self.channels}"

    @property
    def features(self) -> int:
        """Inputs of the fully connected layer."""
        return self.channels * self.grid**2

    def weights(self, layer: ArrayLayer) -> int:
        """Predictor weights in words that are used for `layer`."""
        return KERNEL**2 * self.channels + self.features * (layer.weights // layer.samples)

    def parameters(self, width: int) -> int:
        """Return its weights and biases for a model whose widest row of a weight gradient has `width` numbers."""
        return (KERNEL**2 + 1) * self.channels + (self.features + 1) * width

    def products(self, layer: ArrayLayer) -> tuple[Product, Product]:
        """Return the convolution and the fully connected layer that predict the gradient of `layer`."""
        window = Window(layer.samples, (KERNEL, KERNEL), (self.grid, self.grid))
        convolution = Product(layer.samples * self.grid**2, KERNEL**2, self.channels, window=window)
        return convolution, Product(layer.samples, self.features, layer.weights // layer.samples)

    def training(self, layer: ArrayLayer) -> tuple[Product, ...]:
        """Return the products that train the predictor on `layer`; its convolution needs no input gradient."""
        convolution, connected = self.products(layer)
        return (
            connected.gradient(Operation.INPUT_GRADIENT),
            connected.gradient(Operation.WEIGHT_GRADIENT),
            convolution.gradient(Operation.WEIGHT_GRADIENT),
        )


def parse_predictor(text: str) -> PredictorShape:
    """Return the predictor that `text` (`4x4`) describes."""
    match = re.fullmatch(r"(-?\d+)x(-?\d+)", text.strip())
    if match is None:
        raise OptionError(f"cannot read the predictor '{text}'; write GRIDxCHANNELS, for example 4x4.")
    return PredictorShape(int(match[1]), int(match[2]))


MAIN_ARRAY = Array(12, 15)
"""ADA-GP's 180 PEs; their arrangement is ours."""

PREDICTOR_ARRAY = Array(8, 10)
"""The 80 multipliers that ADA-GP's largest design has over the baseline."""

BACKWARD = ("in-place", "same-dataflow")
"""How gradients run: where the forward pass placed their matrices, or as ordinary products of the same dataflow."""

MOST_ENLARGED = 4
"""The most PEs of baselines of equal power and area, over those of `array`."""

WIDEST = 64
"""Bits of a word at most."""


class ArrayArithmetic(Protocol):
    """Arithmetic other than that of words, in which the cells of an array multiply; hashable."""

    @property
    def mac_picojoules(self) -> float:
        """The energy of what counts as one multiply-accumulate."""

    def cost(self, product: Product, array: Array, dataflow: str, memory: Memory | None) -> Cost:
        """Return the cost of a product without stalls, from and to off-chip memory or, without `memory`, on chip."""

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Accelerator:
    """All assumptions about the hardware. The defaults are those of `docs/hardware.md`.

    `bandwidth` is off-chip, in bytes per second, infinite if memory is never to stall the array. `buffer_port` is how many bits
    enter or leave the global buffer in a cycle, infinite if it has as many banks as the array can use.
    `accumulator_kilobytes` hold partial sums next to the array; with 0 they are in the global buffer. `word_bits` holds for
    weights, activations and gradients that have no width of their own; partial sums are at least 32 bits wide by default.

    `predictor` is the network that a design with extra hardware is built for, `predictor_array` its array, if it has one.
    `optimizer_words` are the words of optimizer state for each weight: 1 for SGD with momentum, 2 for Adam. `fusion` lets
    element-wise work use words that are on chip anyway. `backward` is one of `BACKWARD`. `zero_insertion` makes
    every dataflow run the gradients of strided convolutions over zeros at the input's resolution, as arrays without
    support for backpropagation do (BP-im2col, arXiv 2209.09434), instead of over the output's gradient alone.

    `equal_power_pes` and `equal_area_pes` are the PEs of baselines that have the power and the area of a design with extra
    hardware, over those of `array` (`adagp rtl` finds them for chips of our own). `arithmetic` replaces that of words.

    `tiling` is what a product's tiling is chosen for, one of `adagp.hw.dataflows.OBJECTIVES`. `vector_lanes` are the elements
    that the vector unit handles in a cycle, infinite if its work takes no time of its own. `fused_attention` keeps attention's
    scores on chip and computes them again in the backward pass. The optimizer's words have `state_bits`, the weights' width
    unless given; with `master_bits` it also has a copy of the weights in that width.
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
    weight_bits: int | None = None
    activation_bits: int | None = None
    gradient_bits: int | None = None
    sum_bits: int | None = None
    buffer_port: float = inf
    accumulator_kilobytes: float = 0
    fusion: bool = True
    backward: str = "in-place"
    equal_power_pes: float = 1.10
    equal_area_pes: float = 1.11
    arithmetic: ArrayArithmetic | None = None
    tiling: str = OBJECTIVES[0]
    vector_lanes: float = inf
    fused_attention: bool = False
    state_bits: int | None = None
    master_bits: int | None = None

    def __post_init__(self) -> None:
        DATAFLOWS[self.dataflow]
        self._check_rates_and_memories()
        self._check_optimizer()
        if self.backward not in BACKWARD:
            raise unknown_name("backward pass", self.backward, BACKWARD)
        if self.tiling not in OBJECTIVES:
            raise unknown_name("objective of the tiling", self.tiling, OBJECTIVES)
        for name in ("weights", "activations", "gradients", "sums"):
            if not 1 <= self.width(name) <= WIDEST:
                raise OptionError(f"{name} are {self.width(name)} bits wide; it must be 1 to {WIDEST}.")
        for name in ("equal_power_pes", "equal_area_pes"):
            if not 1 <= getattr(self, name) <= MOST_ENLARGED:
                raise OptionError(f"{name} is {getattr(self, name):g}; it must be 1 to {MOST_ENLARGED}.")
        mac(self.technology, self.multiplier_bits)  # raises if the energy table has no such word
        self._check_pe_energy()

    def _check_pe_energy(self) -> None:
        measured = self.technology.pe_cycle
        if measured is None:
            return
        if self.dataflow not in SYSTOLIC or self.arithmetic is not None:
            other = f"dataflow {self.dataflow}" if self.arithmetic is None else "cells of another arithmetic"
            raise OptionError(
                f"the energy of a PE was measured on a systolic array (ws, os or is); it does not hold for {other}."
            )
        if measured.bits != self.multiplier_bits:
            raise OptionError(
                f"the energy of a PE was measured with words of {measured.bits} bits; the accelerator multiplies "
                f"{self.multiplier_bits}. Give --word-bits {measured.bits}, or measure another chip."
            )

    def _check_optimizer(self) -> None:
        if self.optimizer_words < 0:
            raise OptionError(f"optimizer_words is {self.optimizer_words}; it must be 0 or more.")
        for name, bits in (
            ("the optimizer's state is", self.state_bits),
            ("the copy of the weights is", self.master_bits),
        ):
            if bits is not None and not 1 <= bits <= WIDEST:
                raise OptionError(f"{name} {bits} bits wide; it must be 1 to {WIDEST}.")
        if self.state_bits is not None and not self.optimizer_words:
            raise OptionError("the optimizer has no state, so the width of its state has no effect; leave it out.")
        if self.master_bits is not None and self.master_bits <= self.width("weights"):
            raise OptionError(
                f"a copy of the weights in {self.master_bits} bits has no effect: the weights have {self.width('weights')}."
            )

    def _check_rates_and_memories(self) -> None:
        for name, value, unit in (
            ("clock", self.clock_hz / 1e6, "megahertz"),
            ("bandwidth", self.bandwidth / 1e9, "gigabytes per second"),
            ("buffer", self.buffer_kilobytes, "kilobytes"),
            ("buffer port", self.buffer_port, "bits"),
            ("vector unit", self.vector_lanes, "lanes"),
        ):
            if not value > 0:
                raise OptionError(f"{name} is {value:g} {unit}; it must be more than 0.")
        if self.buffer_kilobytes == inf or self.clock_hz == inf:
            raise OptionError("buffer and clock must be finite.")
        if not 0 <= self.accumulator_kilobytes < inf:
            raise OptionError(f"accumulators are {self.accumulator_kilobytes:g} kilobytes; they must be 0 or more.")

    def width(self, what: str) -> int:
        """Return the bits of a word of `weights`, `activations`, `gradients` or partial `sums`."""
        return self._widths[what]

    @cached_property
    def _widths(self) -> dict[str, int]:
        explicit = {
            "weights": self.weight_bits,
            "activations": self.activation_bits,
            "gradients": self.gradient_bits,
            "sums": self.sum_bits,
        }
        usual = {"sums": max(32, self.word_bits)}
        return {what: usual.get(what, self.word_bits) if bits is None else bits for what, bits in explicit.items()}

    @property
    def multiplier_bits(self) -> int:
        """The width of the PEs' multipliers: that of the widest factor."""
        return max(self.width("weights"), self.width("activations"), self.width("gradients"))

    def bits(self, operation: Operation, second_is_activation: bool = False) -> Bits:
        """Return the widths of a product's matrices; the second factor of attention is an activation."""
        return self._bits[operation, second_is_activation]

    @cached_property
    def _bits(self) -> dict[tuple[Operation, bool], Bits]:
        weights, activations, gradients, sums = self._widths.values()
        widths = {}
        for attention, second in ((False, weights), (True, activations)):
            widths[Operation.FORWARD, attention] = Bits(activations, second, activations, sums)
            widths[Operation.INPUT_GRADIENT, attention] = Bits(gradients, second, gradients, sums)
            widths[Operation.WEIGHT_GRADIENT, attention] = Bits(activations, gradients, gradients, sums)
        return widths

    def trained_with(self, product: Product, operation: Operation, attention: bool = False) -> Product:
        """Return one of the three products of training as the accelerator runs it: its mapping and its words' widths."""
        ordinary = self.backward == "same-dataflow"
        return _trained(product, operation, self.zero_insertion, ordinary, self.bits(operation, attention))

    def tiled_cost(self, *products: Product) -> Cost:
        """Return the cost of products, one after the other, whose matrices come from off-chip memory and go there.

        Each has the tiling that suits it best. Stalls are not among the cycles yet.
        """
        costs = [_tiled(product, self.array, self.dataflow, self.memory, self.arithmetic) for product in products]
        return costs[0] if len(costs) == 1 else total(costs)

    def resident_cost(self, products: Iterable[Product]) -> Cost:
        """Return the cost of products whose matrices are on chip, one after the other."""
        arithmetic = self.arithmetic
        if arithmetic is not None:
            return total(arithmetic.cost(product, self.array, self.dataflow, None) for product in products)
        return total(array_cost(self.dataflow, product, self.array) for product in products)

    @cached_property
    def bits_per_cycle(self) -> float:
        """Off-chip bits in a cycle of the array."""
        return self.bandwidth * 8 / self.clock_hz

    @cached_property
    def memory(self) -> Memory:
        """What limits the tiling of a product, and what it is chosen for."""
        energies = FREE_ACCESSES if self.tiling in TIMED else self.energy_model().access_energies
        sizes = self.buffer_kilobytes * 8192, self.accumulator_kilobytes * 8192
        return Memory(*sizes, self.bits_per_cycle, self.tiling, energies)

    def optimizer_traffic(self, weights: int) -> tuple[Cost, Cost]:
        """Return what updating `weights` moves while they are on chip, and what brings weights and gradient there.

        With a wider copy of the weights the update is of that copy, so that the weights need not come back.
        """
        words, copy = weights * self.width("weights"), weights * (self.master_bits or 0)
        state = self.optimizer_words * weights * (self.state_bits or self.width("weights"))
        gradient = weights * self.width("gradients")
        update = NOTHING.moving(state + copy, state + copy + words)
        return update, NOTHING.moving(gradient + (0 if copy else words), 0)

    def vector_cycles(self, operations: int) -> int:
        """Return the cycles of element operations on the vector unit."""
        return ceil(operations / self.vector_lanes)

    def stall(self, cost: Cost) -> tuple[int, str]:
        """Return for how many cycles memory stalls `cost`, and the cause: `off-chip`, `buffer port` or an empty text."""
        cycles, _, buffer_reads, buffer_writes, dram_reads, dram_writes, own_reads, own_writes, *_ = cost
        off_chip = ceil((dram_reads + dram_writes) / self.bits_per_cycle)
        port = ceil(max(buffer_reads + buffer_writes, own_reads + own_writes) / self.buffer_port)
        if max(off_chip, port) <= cycles:
            return 0, ""
        return (off_chip - cycles, "off-chip") if off_chip >= port else (port - cycles, "buffer port")

    def with_stalls(self, cost: Cost) -> Cost:
        """Return `cost` with the longest of its compute, transfer and port cycles, as with double buffering."""
        stalled, _ = self.stall(cost)
        return cost.with_cycles(cost.cycles + stalled) if stalled else cost

    def in_parallel(self, cost: Cost, other: Cost) -> Cost:
        """Return the cost of both at the same time on two arrays, which share the off-chip pins and the buffer's port."""
        return self.with_stalls((cost + other).with_cycles(max(cost.cycles, other.cycles)))

    def energy_model(self, predictor_weights: int = 0, pes: int | None = None) -> EnergyModel:
        """Return the energy model; `predictor_weights` in words is what the predictor memory holds, 0 if there is none.

        `pes` are the PEs that have a clock; those of the main array, unless given.
        """
        return EnergyModel(
            self.technology,
            self.multiplier_bits,
            self.clock_hz,
            self.buffer_kilobytes,
            predictor_weights * self.width("weights") / 8192,
            self.array.pes if pes is None else pes,
            None if self.arithmetic is None else self.arithmetic.mac_picojoules,
            "systolic" if self.dataflow in SYSTOLIC else "pe",
        )


@lru_cache(maxsize=1 << 14)
def _trained(product: Product, operation: Operation, zero_insertion: bool, ordinary: bool, bits: Bits) -> Product:
    """Return `Accelerator.trained_with`, cached (as is `_tiled`): layers and designs have many products in common."""
    return replace(product.gradient(operation, zero_insertion, ordinary), bits=bits)


@lru_cache(maxsize=1 << 14)
def _tiled(product: Product, array: Array, dataflow: str, memory: Memory, arithmetic: ArrayArithmetic | None) -> Cost:
    if arithmetic is not None:
        return arithmetic.cost(product, array, dataflow, memory)
    from adagp.hw.tiling import best_tiling  # numpy, which `adagp --help` does without

    tiling = best_tiling(product, array, dataflow, memory)
    return array_cost(dataflow, replace(product, tile=tiling.tile), array).moving(tiling.reads, tiling.writes)
