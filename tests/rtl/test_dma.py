"""The DMA: products larger than the banks, against the golden model, the cost model's words and its cycles."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adagp.hw.dataflows import Array
from adagp.hw.tile_steps import TileVisit, double_buffered_cycles, visits
from adagp.rtl.blueprint import Blueprint, make_blueprint
from adagp.rtl.dma import DESCRIPTOR, descriptor_ports
from adagp.rtl.formats import FORMATS
from adagp.rtl.products import draw_matrices, expected, model_cost
from adagp.rtl.tile_mover import memory_ports, slices
from adagp.rtl.tiled_products import DmaCounts, ExternalMemory, SimulatedDmaChip, TiledProduct, plan_product

pytestmark = pytest.mark.medium

CHIPS: dict[str, tuple[Array, int, int, int]] = {
    "int16": (Array(4, 4), 4, 0, 512),
    "int8": (Array(2, 3), 1, 0, 64),
    "bf16": (Array(2, 4), 2, 1, 128),
}
"""Array, values a beat, pipeline stages and words of a bank, by number format."""
LAUNCH, PROGRAM = 11, 5
"""Cycles from a launch to the halt beside those of the array and of emptying it, and of writing an instruction."""


def blueprint(name: str) -> Blueprint:
    array, words, stages, banks = CHIPS[name]
    sizes: dict[str, Any] = {"value_words": banks, "sum_words": banks * 3 // 4, "program_words": 8}
    return make_blueprint("baseline", array, FORMATS[name], dma_words=words, stages=stages, **sizes)


@pytest.fixture(scope="module")
def chip_of() -> Iterator[Callable[[str], SimulatedDmaChip]]:
    chips: dict[str, SimulatedDmaChip] = {}

    def find(name: str) -> SimulatedDmaChip:
        if name not in chips:
            chips[name] = SimulatedDmaChip(blueprint(name))
        return chips[name]

    yield find
    for chip in chips.values():
        chip.close()


def beats(plan: TiledProduct, visit: TileVisit, name: str, sums: bool) -> int:
    """Return the beats of a tile of a matrix: those of a word's lines, for each word, for each part of a sum."""
    core = plan.blueprint.core
    role = next(role for role in ("row", "column", "stationary") if named(plan, role) == name)
    line, word = plan.mapping.layout(role)
    return -(-visit.extents[line] // core.dma_words) * visit.extents[word] * (slices(core) if sums else 1)


def named(plan: TiledProduct, role: str) -> str:
    """Return what adagp.hw calls the matrix at a place."""
    return {"x": "inputs", "w": "weights", "y": "outputs"}[getattr(plan.mapping, role)]


class Schedule:
    """The DMA's control, event by event, without any hardware: the exact cycle in which it is done."""

    def __init__(self, plan: TiledProduct, memory: ExternalMemory) -> None:
        self.plan, self.memory = plan, memory
        self.free = self.answered = 0
        array, stages = plan.blueprint.core.array, plan.blueprint.core.stages
        self.launching = LAUNCH + 2 * (array.rows + array.columns) + stages
        self.result = named(plan, plan.mapping.result_role)

    def move(self, now: int, count: int, *, store: bool) -> int:
        """Move beats; return when the next job can begin. A store first reads a bank."""
        first = max(now + 1 + store, self.free)
        last = first + (count - 1) * self.memory.interval
        self.free = last + self.memory.interval
        if not store:
            self.answered = last + self.memory.latency
        return last + 2

    def load(self, now: int, visit: TileVisit) -> int:
        """Load what a tile needs."""
        order = [named(self.plan, role) for role in ("row", "column", "stationary")]
        for name in sorted(visit.loads, key=order.index):
            now = self.move(now, beats(self.plan, visit, name, sums=False), store=False)
        return self.move(now, beats(self.plan, visit, self.result, sums=True), store=False) if visit.returns else now

    def store(self, now: int, visit: TileVisit) -> int:
        """Store the result of a tile, if it leaves."""
        return (
            self.move(now, beats(self.plan, visit, self.result, sums=not visit.whole), store=True)
            if visit.leaves
            else now
        )

    def array_cycles(self, visit: TileVisit) -> int:
        """Return the cycles of a tile from its launch to the halt."""
        plan, sizes = self.plan, (visit.extents[index] for index in ("rows", "depth", "columns"))
        core, dataflow = plan.blueprint.core, plan.accelerator.dataflow
        return model_cost(core, dataflow, plan.operation, *sizes, adds=visit.adds).cycles + self.launching

    def cycles(self) -> int:
        """Return the cycles of the whole product."""
        walk = list(visits(self.plan.product, self.plan.tiling))
        now, halted, programmed = self.load(1, walk[0]), 0, 0
        for number, visit in enumerate(walk):
            launch = max(now + 1, halted, programmed, self.answered + 1)
            halted, final = launch + self.array_cycles(visit), number + 1 == len(walk)
            now = launch + (2 if final else 3)
            programmed = now + PROGRAM
            now = self.store(now, walk[number - 1]) if number else now
            now = now if final else self.load(now, walk[number + 1])
        return self.store(max(now + 1, halted, self.answered + 1) + 1, walk[-1]) + 2


def run(chip: SimulatedDmaChip, plan: TiledProduct, memory: ExternalMemory, seed: int = 0) -> DmaCounts:
    """Run a product; values must be the golden model's, words the cost model's."""
    number, sizes = chip.blueprint.core.single, (plan.product.rows, plan.product.depth, plan.product.columns)
    matrices = draw_matrices(number, sizes, seed)
    del matrices[plan.mapping.result]
    words = plan.memory(matrices)
    counts = chip.run(plan.descriptor(), words, memory, 10**7)
    assert np.array_equal(plan.result(words), number.convert(expected(number, plan.operation, matrices)))
    bits = number.value_bits
    assert (counts.values_read * bits, counts.values_written * bits) == (plan.cost.dram_reads, plan.cost.dram_writes)
    return counts


sizes = st.integers(1, 40)


@settings(max_examples=40, deadline=None, derandomize=True)
@example(name="int8", shape=(7, 40, 40), dataflow="ws", operation="forward", memory=ExternalMemory(1, 1))
@example(name="int8", shape=(40, 7, 40), dataflow="ws", operation="dx", memory=ExternalMemory(3, 5))
@example(name="bf16", shape=(40, 33, 29), dataflow="ws", operation="dw", memory=ExternalMemory(2, 20))
@example(name="int16", shape=(1, 1, 1), dataflow="os", operation="forward", memory=ExternalMemory(1, 63))
@given(
    name=st.sampled_from(list(CHIPS)),
    shape=st.tuples(sizes, sizes, sizes),
    dataflow=st.sampled_from(["ws", "os", "is"]),
    operation=st.sampled_from(["forward", "dx", "dw"]),
    memory=st.builds(ExternalMemory, st.integers(1, 4), st.integers(1, 30)),
)
def test_values_words_and_every_cycle_are_as_computed(
    chip_of: Callable[[str], SimulatedDmaChip],
    name: str,
    shape: tuple[int, int, int],
    dataflow: str,
    operation: str,
    memory: ExternalMemory,
) -> None:
    """Tiles at the edges are smaller than the others; banks hold a part of most of these products."""
    plan = plan_product(blueprint(name), dataflow, operation, shape, memory.interval)
    schedule = Schedule(plan, memory)
    assert run(chip_of(name), plan, memory).cycles == schedule.cycles()
    walk = list(visits(plan.product, plan.tiling))
    beside = schedule.launching + plan.blueprint.core.stages
    assert plan.tiled.cycles == sum(schedule.array_cycles(visit) - beside for visit in walk)


@pytest.mark.parametrize("name", list(CHIPS))
def test_a_memory_that_is_late_at_random_changes_no_value(
    chip_of: Callable[[str], SimulatedDmaChip], name: str
) -> None:
    plan = plan_product(blueprint(name), "ws", "forward", (35, 37, 39))
    run(chip_of(name), plan, ExternalMemory(1, 3, jitter=7))


SHAPE = (64, 96, 80)


@pytest.mark.parametrize(
    ("operation", "interval", "latency", "bound_by"),
    [
        ("forward", 1, 1, "array"),
        ("forward", 8, 30, "memory"),
        ("dx", 1, 30, "array"),
        ("dx", 4, 30, "memory"),
        ("dw", 2, 30, "array"),
        ("dw", 8, 30, "memory"),
    ],
)
def test_cycles_are_the_cost_models_but_for_some_a_tile(
    chip_of: Callable[[str], SimulatedDmaChip], operation: str, interval: int, latency: int, bound_by: str
) -> None:
    """Weight stationary, in whole beats. The cost model hides every transfer behind any work; tile by tile, as two halves of
    the banks allow, takes a little longer; the DMA as long as that, and a number of cycles a tile."""
    plan = plan_product(blueprint("int16"), "ws", operation, SHAPE, interval)
    core, cost = plan.blueprint.core, plan.cost
    assert max(np.prod(plan.mapping.extents(role)) for role in ("row", "column", "stationary")) > 4 * core.value_words
    counts = run(chip_of("int16"), plan, ExternalMemory(interval, latency))
    assert (counts.beats_read * 4, counts.beats_written * 4) == (counts.values_read, counts.values_written)
    assert (bound_by == "memory") == (plan.accelerator.stall(plan.tiled)[0] > 0)
    ideal = double_buffered_cycles(plan.steps, plan.accelerator.bits_per_cycle)
    drain = 2 * (core.array.rows + core.array.columns) + LAUNCH
    assert cost.cycles <= ideal <= counts.cycles <= ideal + (len(plan.steps) + 2) * max(drain, latency + 16)


def test_the_programmers_page_runs_a_product(chip_of: Callable[[str], SimulatedDmaChip]) -> None:
    """Its descriptor, with sums that leave and come back, gives the golden values. All registers and ports are named."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "rtl-programming.md").read_text("utf-8")
    block = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def descriptor" in block)
    names: dict[str, Any] = {}
    exec(block, names)
    rows, depth, columns = 11, 23, 17
    registers = names["descriptor"](
        rows, depth, columns, {"down": 5, "across": 6, "stream": 4}, ("down", "stream", "across")
    )
    number = FORMATS["int16"]
    matrices = draw_matrices(number, (rows, depth, columns), 3)
    del matrices["y"]
    words = np.concatenate([matrices["x"].ravel(), matrices["w"].ravel(), np.zeros(4 * rows * columns, np.int64)])
    chip_of("int16").run(registers, words, ExternalMemory(1, 7), 10**6)
    found = words[registers["column_base"] : registers["sums_base"]].reshape(rows, columns)
    assert np.array_equal(found, number.convert(expected(number, "forward", matrices)))
    assert sorted(registers) == sorted(DESCRIPTOR)
    for index, name in enumerate(DESCRIPTOR):
        assert re.search(rf"^\| ([\d, ]*\b)?{index}(, \d+)* \|.*`{name}`", page, re.MULTILINE), name
    for name in (*memory_ports(chip_of("int16").blueprint.core), *descriptor_ports()):
        assert f"`{name}`" in page
