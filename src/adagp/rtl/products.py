"""Matrix products on a simulated chip: writes the factors, runs the product, and compares the result with adagp.hw."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adagp.errors import OptionError
from adagp.hw.dataflows import array_cost
from adagp.hw.product import Bits, Cost, Product
from adagp.rtl.blueprint import Blueprint, CoreSizes
from adagp.rtl.formats import Integers, NumberFormat, Words
from adagp.rtl.instructions import Mode, Opcode, Store
from adagp.rtl.mapping import (
    FACTORS,
    INDICES,
    OPERATIONS,
    ROLES,
    Mapping,
    check_fits,
    find_mapping,
    sum_store,
    value_store,
)
from adagp.rtl.network import matmul
from adagp.rtl.simulation import Counts, SimulatedChip, simulate_chip


def model_cost(
    sizes: CoreSizes, dataflow: str, operation: str, rows: int, depth: int, columns: int, *, adds: bool = False
) -> Cost:
    """Return the cost of the product by adagp.hw, in words of one bit, plus a cycle for each pipeline stage.

    If it `adds` to sums, these are read, too; sums that stay in the PEs are loaded before each fold, in R cycles.
    """
    product = Product(rows, depth, columns, bits=Bits(1, 1, 1, 1)).gradient(OPERATIONS[operation])
    cost = array_cost(dataflow, product, sizes.array)
    cycles, reads, array = cost.cycles + sizes.stages, cost.buffer_reads, sizes.array
    if adds:
        mapping = find_mapping(dataflow, operation, rows, depth, columns)
        lines, words = mapping.extents(mapping.result_role)
        reads += lines * words
        if mapping.mode is Mode.STATIONARY:
            cycles += -(-words // array.rows) * -(-lines // array.columns) * array.rows
    return cost._replace(cycles=cycles, buffer_reads=reads)


def run_product(
    chip: SimulatedChip, mapping: Mapping, matrices: dict[str, Words], sums: Words | None = None
) -> tuple[Words, Counts]:
    """Write the factors into the chip, run the product and return the sums with what it took.

    `matrices` are in the layout of the forward product: x is rows x depth, w depth x columns, y rows x columns. With `sums`,
    in the layout of the result, the product is added to them.
    """
    check_fits(chip.blueprint.core, mapping)
    contents = {}
    for role in ROLES:
        name = getattr(mapping, role)
        if name != mapping.result:
            straight = mapping.layout(role) == INDICES[name]
            contents[role] = matrices[name] if straight else matrices[name].T
    if sums is None:
        return run_mapped(chip, mapping, contents)
    role = mapping.result_role
    _store(chip, sum_store(role), 0, sums if mapping.layout(role) == INDICES[mapping.result] else sums.T)
    return run_mapped(chip, mapping, contents, {"adds": 1})


def run_mapped(
    chip: SimulatedChip, mapping: Mapping, contents: dict[str, Words], more: dict[str, int] | None = None
) -> tuple[Words, Counts]:
    """Run a product of `contents`, the factors by role in the layout of the banks; `more` are further fields of it."""
    sizes = chip.blueprint.core
    down, across, stream = mapping.sizes
    bases = {"row": 0, "stationary": 0, "column": 0}
    if mapping.mode is Mode.DOWN:
        bases["column"] = -(-across // sizes.array.columns) * contents["stationary"].shape[1]
    for role, matrix in contents.items():
        _store(chip, value_store(role), bases[role], matrix)
    fields = {"mode": mapping.mode, "down": down, "across": across, "stream": stream, **bases, **(more or {})}
    encoding = sizes.encoding
    chip.load([[encoding.pack(Opcode.ARRAY, fields), encoding.pack(Opcode.HALT)]])
    counts = chip.run()
    role = mapping.result_role
    result = fetch(chip, sum_store(role), bases[role], mapping.extents(role))
    return (result if mapping.layout(role) == INDICES[mapping.result] else result.T), counts


def _store(chip: SimulatedChip, memory: Store, base: int, matrix: Words) -> None:
    lanes = _lane_count(chip, memory)
    for line, words in enumerate(matrix):
        chip.write(0, memory, line % lanes, base + line // lanes * len(words), words)


def fetch(chip: SimulatedChip, memory: Store, base: int, shape: tuple[int, int], core: int = 0) -> Words:
    """Return a matrix from its banks, the index of its lane first."""
    lanes = _lane_count(chip, memory, core)
    lines = [
        chip.read(core, memory, line % lanes, base + line // lanes * shape[1], shape[1]) for line in range(shape[0])
    ]
    return np.array(lines, np.int64).reshape(shape)


def _lane_count(chip: SimulatedChip, memory: Store, core: int = 0) -> int:
    array = chip.blueprint.cores[core].array
    return array.rows if memory in (Store.ROW_VALUES, Store.ROW_SUMS) else array.columns


def expected(number: NumberFormat, operation: str, matrices: dict[str, Words], sums: Words | None = None) -> Words:
    """Return the product's sums by the format's model: products are added in the order of the index, to zero or to `sums`."""
    left, right = (matrices[name] for name in FACTORS[operation][:2])
    if operation == "dx":
        right = right.T
    elif operation == "dw":
        left = left.T
    return matmul(number, left, right, sums)


def draw_matrices(number: NumberFormat, sizes: Sequence[int], seed: int) -> dict[str, Words]:
    """Return x, w and y: integers from all of their range, floats from a normal distribution."""
    rows, depth, columns = sizes
    rng = np.random.default_rng(seed)
    shapes = {"x": (rows, depth), "w": (depth, columns), "y": (rows, columns)}
    if isinstance(number, Integers):
        return {name: rng.integers(0, 1 << number.value_bits, shape) for name, shape in shapes.items()}
    return {name: number.encode(rng.normal(size=shape)) for name, shape in shapes.items()}


def check_product(
    blueprint: Blueprint,
    dataflow: str,
    operation: str,
    sizes: tuple[int, int, int],
    seed: int = 0,
    vcd: Path | None = None,
    mantissa_bits: str | None = None,
) -> dict[str, Any]:
    """Return cycles, accesses and values of a product in hardware, and whether they are those of the models.

    `mantissa_bits` are for formats of groups.
    """
    if blueprint.core.groups is not None:
        grouped = blueprint.core.groups
        return grouped.check_product(blueprint, dataflow, operation, sizes, mantissa_bits, seed, vcd)
    if mantissa_bits is not None:
        name = blueprint.core.number.name
        raise OptionError(f"--mantissa-bits is for block floating point; the format is {name}.")
    rows, depth, columns = sizes
    mapping = find_mapping(dataflow, operation, rows, depth, columns)
    check_fits(blueprint.core, mapping)
    number = blueprint.core.single
    matrices = draw_matrices(number, sizes, seed)
    del matrices[mapping.result]
    with simulate_chip(blueprint, vcd) as chip:
        result, counts = run_product(chip, mapping, matrices)
        simulator = chip.simulator
    cost = model_cost(blueprint.core, dataflow, operation, rows, depth, columns)
    wrong = int(np.count_nonzero(result != expected(number, operation, matrices)))
    same = (counts.cycles, counts.span, counts.reads, counts.writes)
    return {
        "cycles": counts.cycles,
        "model_cycles": cost.cycles,
        "elapsed_cycles": counts.elapsed,
        "buffer_reads": counts.reads,
        "model_buffer_reads": cost.buffer_reads,
        "buffer_writes": counts.writes,
        "model_buffer_writes": cost.buffer_writes,
        "values": result.size,
        "wrong_values": wrong,
        "equal": wrong == 0 and same == (cost.cycles, cost.cycles, cost.buffer_reads, cost.buffer_writes),
        "array": str(blueprint.core.array),
        "dataflow": dataflow,
        "operation": operation,
        "format": number.name,
        "simulator": simulator,
    }
