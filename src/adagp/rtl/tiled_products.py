"""Products that do not fit the banks, on a simulated chip with a DMA: the cost model's tiles, against the cost model."""

import ctypes
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from adagp.errors import OptionError, ToolError
from adagp.hw.accelerator import Accelerator
from adagp.hw.dataflows import array_cost
from adagp.hw.product import Cost, Product
from adagp.hw.tile_steps import TileStep, double_buffered_cycles, tile_steps
from adagp.hw.tiling import Tiling, Tilings, all_tilings, best_tiling
from adagp.rtl.block import to_rtlil
from adagp.rtl.blueprint import Blueprint, CoreSizes
from adagp.rtl.dma import DESCRIPTOR, DmaChip
from adagp.rtl.formats import Words
from adagp.rtl.mapping import INDICES, OPERATIONS, ROLES, Mapping, check_overflow, find_mapping
from adagp.rtl.products import draw_matrices, expected
from adagp.rtl.simulation import LIMIT, compile_verilog
from adagp.rtl.tile_mover import slices
from adagp.rtl.verilog import to_verilog

CLOCK = 1e6
"""Clock of the modelled accelerator in hertz. Its value does not matter, as cycles are compared."""


@dataclass(frozen=True)
class ExternalMemory:
    """A memory that takes a beat each `interval` cycles and answers a read after `latency`; with `jitter`, up to so many
    cycles more of both, at random."""

    interval: int = 1
    latency: int = 1
    jitter: int = 0

    def __post_init__(self) -> None:
        if self.interval < 1 or self.latency < 1 or self.jitter < 0:
            raise OptionError(
                "an external memory has an interval and a latency of at least 1 cycle, and no negative jitter."
            )


@dataclass(frozen=True)
class TiledProduct:
    """A product on a chip with a DMA, cut as the cost model cuts it for `accelerator`."""

    blueprint: Blueprint
    operation: str
    product: Product
    accelerator: Accelerator
    tiling: Tiling
    mapping: Mapping

    @cached_property
    def tiled(self) -> Cost:
        """Its modelled cost, without stalls."""
        accelerator, tiled = self.accelerator, replace(self.product, tile=self.tiling.tile)
        return array_cost(accelerator.dataflow, tiled, accelerator.array).moving(self.tiling.reads, self.tiling.writes)

    @cached_property
    def cost(self) -> Cost:
        """Its modelled cost, with stalls."""
        return self.accelerator.with_stalls(self.tiled)

    @cached_property
    def steps(self) -> list[TileStep]:
        """The same tile by tile."""
        return tile_steps(self.product, self.tiling, self.accelerator.array, self.accelerator.dataflow)

    @cached_property
    def places(self) -> dict[str, int]:
        """Where matrices lie in memory, one behind the other, and behind them the planes of sums."""
        sizes = [np.prod(self.mapping.extents(role)) for role in ROLES]
        ends = np.cumsum(sizes).tolist()
        return dict(zip((*ROLES, "sums"), (0, *ends), strict=True))

    def descriptor(self) -> dict[str, int]:
        """Return the registers of the DMA for it."""
        mapping, places = self.mapping, self.places
        tile = dict(zip(("rows", "depth", "columns"), self.tiling.tile, strict=True))
        tiles = [tile[index] for index in mapping.placement]
        order = [mapping.placement.index(index) for index in self.tiling.order]
        names = ("down", "across", "stream")
        fields = dict(zip(names, mapping.sizes, strict=True))
        fields |= {f"tile_{name}": size for name, size in zip(names, tiles, strict=True)}
        fields |= {"mode": int(mapping.mode), "order": order[0] | order[1] << 2 | order[2] << 4}
        columns = self.blueprint.core.array.columns
        fields["column"] = -(-tiles[1] // columns) * tiles[0] if mapping.result_role == "row" else 0
        for role in ROLES:
            lines, _ = mapping.extents(role)
            fields |= {f"{role}_base": places[role], f"{role}_pitch": lines}
            fields[f"{role}_hop"] = tile[mapping.layout(role)[1]] * lines
        result = np.prod(mapping.extents(mapping.result_role))
        return fields | {"sums_base": places["sums"], "sums_plane": int(result)}

    def memory(self, matrices: dict[str, Words]) -> Words:
        """Return external memory with the factors in it: a matrix word by word, the lines of a word next to each other."""
        size = self.places["sums"] + slices(self.blueprint.core) * self.descriptor()["sums_plane"]
        memory = np.zeros(size, np.int64)
        for role in ROLES:
            if role != self.mapping.result_role:
                matrix = matrices[getattr(self.mapping, role)]
                words = (matrix.T if self._lines_first(role) else matrix).ravel()
                memory[self.places[role] : self.places[role] + words.size] = words
        return memory

    def result(self, memory: Words) -> Words:
        """Return the result from external memory, in the layout of the forward product."""
        role = self.mapping.result_role
        lines, words = self.mapping.extents(role)
        matrix = memory[self.places[role] :][: lines * words].reshape(words, lines)
        return matrix.T if self._lines_first(role) else matrix

    def _lines_first(self, role: str) -> bool:
        return self.mapping.layout(role) == INDICES[getattr(self.mapping, role)]


def plan_product(
    blueprint: Blueprint, dataflow: str, operation: str, sizes: tuple[int, int, int], interval: int = 1
) -> TiledProduct:
    """Return a product cut as the cost model cuts it, of all tilings whose tiles fit half of each bank.

    The model's buffer has the size of all banks; a bank for each lane and kind of word leaves a part of it empty.
    """
    core, number = blueprint.core, blueprint.core.single
    if not core.dma_words:
        raise OptionError("the chip has no DMA; set dma_words, the values that it moves per cycle.")
    mapping = find_mapping(dataflow, operation, *sizes)
    check_overflow(core, mapping)
    lanes = core.array.rows + core.array.columns
    accelerator = Accelerator(
        core.array,
        dataflow,
        word_bits=number.value_bits,
        sum_bits=number.sum_bits,
        clock_hz=CLOCK,
        buffer_kilobytes=lanes * (core.value_words * number.value_bits + core.sum_words * number.sum_bits) / 8192,
        bandwidth=core.dma_words * number.value_bits / interval / 8 * CLOCK,
    )
    product = accelerator.trained_with(Product(*sizes), OPERATIONS[operation])
    allowed = _fits_banks(core, mapping, all_tilings(product))
    tiling = best_tiling(product, core.array, dataflow, accelerator.memory, allowed)
    return TiledProduct(blueprint, operation, product, accelerator, tiling, mapping)


def _fits_banks(core: CoreSizes, mapping: Mapping, tilings: Tilings) -> NDArray[np.bool_]:
    """Return which tilings fit half of each bank."""
    sizes = dict(zip(("rows", "depth", "columns"), (cuts.size for cuts in tilings.loops), strict=True))
    words = {}
    for role in ROLES:
        line, word = (sizes[index] for index in mapping.layout(role))
        words[role] = -(-line // (core.array.rows if role == "row" else core.array.columns)) * word
    fits = words.pop(mapping.result_role) <= core.sum_words // 2
    fits = fits & (words.pop("row", 0) <= core.value_words // 2)
    return tilings.broadcast(fits & (sum(words.values()) <= core.value_words // 2))


@dataclass(frozen=True)
class DmaCounts:
    """Counts of a run: cycles from start to the last word stored, values and beats over the port to memory."""

    cycles: int
    values_read: int
    values_written: int
    beats_read: int
    beats_written: int


class _Memory(ctypes.Structure):
    _fields_ = (
        ("words", ctypes.POINTER(ctypes.c_int64)),
        ("size", ctypes.c_uint64),
        *((name, ctypes.c_int) for name in ("beat_words", "value_bits", "interval", "latency", "jitter")),
    )


class SimulatedDmaChip:
    """A chip with its DMA, compiled by Verilator, and an external memory of at most 64 bits a beat."""

    def __init__(self, blueprint: Blueprint) -> None:
        core = blueprint.core
        if core.dma_words * core.number.value_bits > 64:
            raise OptionError(
                f"simulations have beats of at most 64 bits; {core.dma_words} values of {core.number.name} have "
                f"{core.dma_words * core.number.value_bits}."
            )
        self.blueprint = blueprint
        verilog = to_verilog("\n".join(to_rtlil(DmaChip(blueprint)).values()))
        harness = (files("adagp.rtl") / "dma_harness.cpp").read_text(encoding="utf-8")
        self._library = ctypes.CDLL(str(compile_verilog("dma_chip", verilog, harness)))
        self._library.dma_open.restype = ctypes.c_void_p
        self._bench = ctypes.c_void_p(self._library.dma_open())

    def run(self, descriptor: dict[str, int], words: Words, memory: ExternalMemory, limit: int = LIMIT) -> DmaCounts:
        """Run a descriptor on the memory's `words`, which it changes; return what it took."""
        for name, value in descriptor.items():
            self._library.dma_descriptor(self._bench, DESCRIPTOR.index(name), ctypes.c_uint32(value))
        core = self.blueprint.core
        pointer = words.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))
        rates = (memory.interval, memory.latency, memory.jitter)
        outside = _Memory(pointer, words.size, core.dma_words, core.number.value_bits, *rates)
        counts = (ctypes.c_uint64 * 5)()
        error = self._library.dma_run(self._bench, ctypes.byref(outside), ctypes.c_uint64(limit), counts)
        if error:
            raise ToolError(
                f"the DMA is busy after {limit} cycles." if error == 1 else "the DMA left the memory that it was given."
            )
        return DmaCounts(*map(int, counts))

    def close(self) -> None:
        """End the simulation."""
        self._library.dma_close(self._bench)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def check_tiled_product(
    blueprint: Blueprint,
    dataflow: str,
    operation: str,
    sizes: tuple[int, int, int],
    memory: ExternalMemory,
    seed: int = 0,
) -> dict[str, Any]:
    """Return values, off-chip words and cycles of a product with the DMA, and whether values and words are the models'.

    `model_cycles` are the accelerator model's, `double_buffered_cycles` those tile by tile, without the hardware's overhead for
    each tile.
    """
    plan, number = plan_product(blueprint, dataflow, operation, sizes, memory.interval), blueprint.core.single
    matrices = draw_matrices(number, sizes, seed)
    del matrices[plan.mapping.result]
    words = plan.memory(matrices)
    with SimulatedDmaChip(blueprint) as chip:
        counts = chip.run(plan.descriptor(), words, memory)
    wrong = int(np.count_nonzero(plan.result(words) != number.convert(expected(number, operation, matrices))))
    moved = plan.cost.dram_reads // number.value_bits, plan.cost.dram_writes // number.value_bits
    return {
        "cycles": counts.cycles,
        "model_cycles": plan.cost.cycles,
        "model_stalls": plan.accelerator.stall(plan.tiled)[0],
        "double_buffered_cycles": double_buffered_cycles(plan.steps, plan.accelerator.bits_per_cycle),
        "tiles": len(plan.steps),
        "tile": "x".join(map(str, plan.tiling.tile)),
        "loops": ", ".join(plan.tiling.order),
        "values_read": counts.values_read,
        "model_values_read": moved[0],
        "values_written": counts.values_written,
        "model_values_written": moved[1],
        "values": int(plan.result(words).size),
        "wrong_values": wrong,
        "equal": wrong == 0 and (counts.values_read, counts.values_written) == moved,
        "array": str(blueprint.core.array),
        "dataflow": dataflow,
        "operation": operation,
        "format": number.name,
    }
