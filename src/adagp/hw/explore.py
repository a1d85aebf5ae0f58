"""A design space: simulates every point of some axes in several processes, and finds the Pareto-optimal points.

Silicon area is simple and stated: the PEs' arithmetic and registers, and the bits of the memories.

    arithmetic   an exact 8-bit multiplier of 618 um2 at 45 nm (mul8_364 of EvoApprox8b, FreePDK45), wider ones by the square of
                 the width; an adder's bit is assumed to be as large as a flip-flop
    registers    two operands and a sum for each PE in flip-flops of 4.522 um2 (DFF_X1, NanGate 45 nm open cell library); row
                 stationary has Eyeriss' scratchpads too: 12 inputs, 224 weights and 24 sums (JSSC 2017)
    memories     CACTI 7: 0.439 to 0.462 um2 a bit for 64 kB to 1 MB of lstp cells with a 64-bit port at 45 nm; 0.222 to 0.269
                 at 32 nm, 0.105 to 0.127 at 22 nm

Logic at other nodes, and memories at nodes that are not in the table, scale by the square of the node, which is ideal. Control,
network, clock tree and pads are left out, so areas compare designs with each other, not with chips.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

from adagp.core.registry import load_installed_plugins, load_plugin, loaded_plugins
from adagp.errors import OptionError, unknown_name
from adagp.hw.accelerator import Accelerator
from adagp.hw.axes import AXES, Axis
from adagp.hw.dataflows import Array
from adagp.hw.hardware_file import Hardware
from adagp.hw.runs import Run
from adagp.hw.simulate import DESIGNS, predictor_weights, simulate
from adagp.hw.workload import Workload

MULTIPLIER_8 = 618.0
"""Square micrometres of an exact 8-bit multiplier at 45 nm."""
FLIP_FLOP = 4.522
SCRATCHPAD = 12 + 224 + 24
MEMORY_BIT = {45: 0.448, 32: 0.248, 22: 0.117}
"""Square micrometres of a memory's bit by node: the mean over CACTI's results for several sizes."""
NODE = 45


def mac_area(bits: int, sum_bits: int) -> float:
    """Return the square micrometres of a multiplier and an adder at 45 nm."""
    return MULTIPLIER_8 * (bits / 8) ** 2 + sum_bits * FLIP_FLOP


def array_area(array: Array, accelerator: Accelerator) -> float:
    """Return the square millimetres of an array of this accelerator's PEs at its node."""
    words, sums = 2 + (SCRATCHPAD if accelerator.dataflow == "rs" else 0), accelerator.width("sums")
    registers = (words * accelerator.word_bits + sums) * FLIP_FLOP
    pe = mac_area(accelerator.multiplier_bits, sums) + registers
    return array.pes * pe * 1e-6 * (accelerator.technology.node / NODE) ** 2


def memory_area(kilobytes: float, node: int) -> float:
    """Return the square millimetres of a memory."""
    nearest = min(MEMORY_BIT, key=lambda known: abs(known - node))
    return kilobytes * 8192 * MEMORY_BIT[nearest] * 1e-6 * (node / nearest) ** 2


def design_area(name: str, array: Array, accelerator: Accelerator, workload: Workload) -> float:
    """Return the square millimetres of a design on `array`, including a predictor's memory and array if it has them."""
    design, node = DESIGNS[name], accelerator.technology.node
    area = array_area(array, accelerator) + memory_area(accelerator.buffer_kilobytes, node)
    if design.predictor_memory:
        area += memory_area(predictor_weights(workload, accelerator) * accelerator.width("weights") / 8192, node)
    if design.predictor_array:
        area += array_area(accelerator.predictor_array, accelerator)
    return area


OBJECTIVES = {
    "cycles": "cycles",
    "seconds": "seconds",
    "energy": "energy_joules",
    "area": "area_mm2",
    "dram": "dram_bytes",
}
"""What can be minimised, and its column."""
ENERGIES = ("read_pj", "write_pj", "word_bits", "leakage_mw")
"""The last part of the names of fields that are an access's energy."""
CHUNK = 8
"""Simulations that a process gets at a time."""
FEW = 48
"""Simulations below which starting processes does not pay."""


@dataclass(frozen=True)
class Point:
    """One design on one accelerator, for a whole run; `settings` are its values on all axes, by their columns."""

    settings: Mapping[str, Any]
    cycles: int
    seconds: float
    speedup: float
    energy_joules: float
    area_mm2: float
    dram_bytes: int

    @property
    def row(self) -> dict[str, Any]:
        """All columns of the point."""
        return {**self.settings, **{name: getattr(self, name) for name in FIGURES}}


FIGURES = tuple(field.name for field in fields(Point) if field.name != "settings")
"""The figures of a point, by the names of its columns."""


@dataclass(frozen=True)
class Space:
    """A workload, and what to try with it: accelerators, runs (one for each batch size) and designs."""

    workload: Workload
    accelerators: tuple[Accelerator, ...]
    runs: tuple[Run, ...]
    designs: tuple[str, ...]
    labels: "Labels" = field(default_factory=dict)

    @property
    def simulations(self) -> int:
        """Simulations; each covers all designs."""
        return len(self.accelerators) * len(self.runs)

    @property
    def points(self) -> int:
        """Points of the space."""
        return self.simulations * len(self.designs)


def parse_objectives(text: str) -> tuple[str, ...]:
    """Return the objectives that `text` names."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in OBJECTIVES:
            raise unknown_name("objective", name, OBJECTIVES)
    if not names:
        raise OptionError("--objective is empty; give at least one name.")
    return names


def accelerators(base: Accelerator, values: Mapping[str, Sequence[Any]]) -> tuple[Accelerator, ...]:
    """Return `base` with every combination of those axes that are settings of an accelerator."""
    fields = {axis.field: values[axis.name] for axis in AXES if axis.field and axis.name in values}
    # Neighbours share dataflow and array, whose costs are kept.
    order = sorted(fields, key=lambda field: field not in ("dataflow", "array"))
    return tuple(
        replace(base, **dict(zip(order, choice, strict=True))) for choice in product(*(fields[name] for name in order))
    )


Labels = Mapping[Accelerator, Mapping[str, Any]]
"""The values of the varied fields of each accelerator, by name."""


def varied(
    machines: Sequence[Accelerator], hardware: Hardware, variations: Mapping[str, Sequence[Any]]
) -> dict[Accelerator, dict[str, Any]]:
    """Return every accelerator with every combination of values of fields of a hardware file, and these values.

    An access energy is only valid with its other fields, so the energies that `hardware` has are applied, too.
    """
    energies = {name: value for name, value in hardware.fields.items() if name.endswith(ENERGIES)}
    choices = [dict(zip(variations, choice, strict=True)) for choice in product(*variations.values())]
    variants: dict[Accelerator, dict[str, Any]] = {}
    for machine in machines:
        for choice in choices:
            changed = Hardware("--vary", energies)
            for name, value in choice.items():
                changed = changed.with_field(name, value)
            variants[changed.applied(machine)] = choice
    if len(variants) < len(machines) * len(choices):
        raise OptionError(f"--vary {', '.join(variations)}: some values make no difference to the accelerator.")
    return variants


def explore(space: Space, workers: int, progress: Callable[[int], None] = lambda _: None) -> list[Point]:
    """Return all points, in the order of the space; `progress` is called with the simulations done since its last call."""
    all_points: list[Point] = []
    for points in _chunks(space, workers):
        all_points += points
        progress(len(points) // len(space.designs))
    return all_points


def _chunks(space: Space, workers: int) -> Iterator[list[Point]]:
    starts = range(0, len(space.accelerators), CHUNK)
    if workers == 1 or space.simulations < FEW:
        for start in starts:
            yield _points(space, start)
        return
    context = multiprocessing.get_context("spawn")
    try:
        context.Lock()  # a semaphore, which is a file there
    except OSError as error:
        raise OptionError(
            f"cannot start processes: {error.strerror}. The system needs a writable /dev/shm; or give --workers 1."
        ) from None
    with ProcessPoolExecutor(workers, context, _begin, (space, loaded_plugins())) as pool:
        try:
            yield from pool.map(_work, starts)
        finally:
            pool.shutdown(cancel_futures=True)


_space: Space | None = None


def _begin(space: Space, plugins: list[str]) -> None:
    """Prepare a process: what the space may name, and the space itself, which travels once."""
    global _space
    load_installed_plugins()
    for name in plugins:
        load_plugin(name)
    _space = space


def _work(start: int) -> list[Point]:
    assert _space is not None
    return _points(_space, start)


def _points(space: Space, start: int) -> list[Point]:
    chosen = space.accelerators[start : start + CHUNK]
    return [point for accelerator in chosen for run in space.runs for point in _simulate(space, accelerator, run)]


def _simulate(space: Space, accelerator: Accelerator, run: Run) -> Iterator[Point]:
    simulation = simulate(space.workload, accelerator, run, space.designs)
    settings = {**axis_values(accelerator), **space.labels.get(accelerator, {})}
    for design in space.designs:
        outcome = simulation.outcomes[design]
        yield Point(
            settings={**settings, "array": str(outcome.array), "batch": run.batch, "design": design},
            cycles=outcome.cost.cycles,
            seconds=outcome.seconds,
            speedup=simulation.speedup(design),
            energy_joules=outcome.energy.joules,
            area_mm2=design_area(design, outcome.array, accelerator, space.workload),
            dram_bytes=outcome.cost.dram_bits // 8,
        )


def axis_values(accelerator: Accelerator) -> dict[str, Any]:
    """Return an accelerator's values on all axes, by column; None for axes that are none of its settings."""
    return {axis.column: _setting(accelerator, axis) for axis in AXES}


def _setting(accelerator: Accelerator, axis: Axis) -> Any:
    if not axis.field:
        return None
    value = getattr(accelerator, axis.field)
    return value / axis.scale if axis.scale != 1 else value


def pareto_front(values: Sequence[Sequence[float]]) -> list[bool]:
    """Return which rows are on the Pareto front; less is better in every column.

    A row is off the front if another is at most as large everywhere and smaller somewhere; equal rows stay together.
    Rows come in lexicographic order, so none can beat one that came before.
    """
    import numpy as np  # which `adagp --help` does without

    table = np.asarray(values, dtype=float)
    if table.size == 0:
        return []
    rows, inverse = np.unique(table, axis=0, return_inverse=True)
    on_front = np.zeros(len(rows), dtype=bool)
    front = np.empty_like(rows)
    size = 0
    for number, row in enumerate(rows):
        if not (front[:size] <= row).all(axis=1).any():
            front[size] = row
            size += 1
            on_front[number] = True
    return [bool(on) for on in on_front[inverse.reshape(-1)]]
