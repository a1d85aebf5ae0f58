"""Products of groups in block floating point: the model, exact to the bit, and the same product on a simulated chip.

Groups lie along the index over which a product sums. A matrix in groups is an array of values, one or two for each group:
see `GroupFormat`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagp.core.block_format import CHUNK_BITS
from adagp.errors import OptionError
from adagp.hw.product import Product
from adagp.papers.fast.chunks import BlockWidths, chunk_serial_cycles, grouped
from adagp.rtl.chip import Blueprint
from adagp.rtl.formats import MOST_CHUNKS, GroupFormat, Words, single_bits
from adagp.rtl.mapping import FACTORS, INDICES, OPERATIONS, PLACES, Mapping, check_fits, find_mapping
from adagp.rtl.products import run_mapped
from adagp.rtl.simulation import Counts, SimulatedChip, simulate_chip

SUMMED = {"forward": "depth", "dx": "columns", "dw": "rows"}
TENSORS = {"x": "activations", "w": "weights", "y": "gradients"}


@dataclass(frozen=True)
class Groups:
    """Lines of numbers in groups: signed `magnitudes` (lines x groups x numbers of a group) and `codes` of exponents (lines x
    groups). A magnitude of 1 is worth 2^(code + `unit`)."""

    magnitudes: Words
    codes: Words
    unit: int
    chunks: int


def to_groups(reals: NDArray[np.float64], number: GroupFormat, mantissa_bits: int) -> Groups:
    """Return lines of numbers in groups, each rounded to the nearest magnitude; the last group is filled up with zeros."""
    lines, length = reals.shape
    padded = np.pad(reals, ((0, 0), (0, -length % number.group))).reshape(lines, -1, number.group)
    largest = np.abs(padded).max(axis=2)
    window = (1 << number.exponent_bits) - 1
    exponents = np.frexp(largest)[1].astype(np.int64) - 1
    top = int(exponents[largest > 0].max(initial=0 if not largest.any() else -(1 << 20)))
    codes = np.where(largest > 0, np.clip(exponents - top + window, 0, window), 0)
    unit = top - window - mantissa_bits + 1
    scaled = np.floor(np.ldexp(np.abs(padded), -(codes + unit)[..., None]) + 0.5)
    magnitudes = np.minimum(scaled, (1 << mantissa_bits) - 1).astype(np.int64)
    return Groups(np.where(padded < 0, -magnitudes, magnitudes), codes, unit, -(-mantissa_bits // CHUNK_BITS))


def to_values(groups: Groups, number: GroupFormat) -> Words:
    """Return the values that hold groups, the lowest chunk first: lines x groups x chunks."""
    values = []
    for chunk in range(groups.chunks):
        bits = np.abs(groups.magnitudes) >> CHUNK_BITS * chunk & (1 << CHUNK_BITS) - 1
        signed = bits | (groups.magnitudes < 0) << CHUNK_BITS
        places = number.exponent_bits + (CHUNK_BITS + 1) * np.arange(number.group)
        values.append(groups.codes | (signed << places).sum(axis=2))
    return np.stack(values, axis=2)


def group_products(left: Groups, right: Groups) -> Words:
    """Return the sums, in fp32, of all lines of `left` with all lines of `right`: group by group, rounded after each."""
    total = np.zeros((len(left.codes), len(right.codes)), np.float32)
    with np.errstate(all="ignore"):
        for group in range(left.codes.shape[1]):
            whole = left.magnitudes[:, group] @ right.magnitudes[:, group].T
            exponents = left.codes[:, None, group] + right.codes[None, :, group] + left.unit + right.unit
            total = total + np.ldexp(whole.astype(np.float64), exponents).astype(np.float32)
    return single_bits(total)


def parse_mantissas(text: str) -> BlockWidths:
    """Return the bits of magnitudes that `text` gives: of weights, activations and gradients, or one for all."""
    allowed = [str(CHUNK_BITS * chunks) for chunks in range(1, MOST_CHUNKS + 1)]
    parts = text.split(",") if "," in text else [text] * len(TENSORS)
    if len(parts) != len(TENSORS) or any(one not in allowed for one in parts):
        raise OptionError(
            f"cannot read the mantissa bits '{text}'; write 2 or 4, or three of them, of weights, activations and gradients, "
            "as 4,2,4."
        )
    return BlockWidths(*map(int, parts))


def run_groups(chip: SimulatedChip, mapping: Mapping, matrices: dict[str, Groups]) -> tuple[Words, Counts]:
    """Run a product of groups on a chip. `matrices` are the factors, by name, lines of groups along the summed index."""
    number = chip.blueprint.core.groups
    assert number is not None
    contents, fields = {}, {"scale": sum(one.unit for one in matrices.values())}
    for place in PLACES:
        name = getattr(mapping, place)
        if name != mapping.result:
            values = to_values(matrices[name], number)
            lines_are_summed = mapping.layout(place)[0] not in INDICES[mapping.result]
            turned = values.transpose(1, 0, 2) if lines_are_summed else values
            contents[place] = turned.reshape(len(turned), -1)
            fields[f"wide_{place}"] = matrices[name].chunks - 1
    return run_mapped(chip, mapping, contents, fields)


def group_mapping(number: GroupFormat, dataflow: str, operation: str, sizes: tuple[int, int, int]) -> Mapping:
    """Return how a product of `sizes` (rows, depth, columns) in numbers runs as one of groups."""
    find_mapping(dataflow, operation, *sizes)  # whose names and sizes are checked
    lengths = dict(zip(("rows", "depth", "columns"), sizes, strict=True))
    lengths[SUMMED[operation]] = -(-lengths[SUMMED[operation]] // number.group)
    return find_mapping(dataflow, operation, **lengths)


def draw_groups(
    number: GroupFormat, operation: str, sizes: tuple[int, int, int], widths: BlockWidths, seed: int
) -> dict[str, Groups]:
    """Return the factors of an operation, drawn from a normal distribution, in groups along the summed index."""
    rng = np.random.default_rng(seed)
    lengths = dict(zip(("rows", "depth", "columns"), sizes, strict=True))
    drawn = {}
    for name in FACTORS[operation][:2]:
        reals = rng.normal(size=[lengths[index] for index in INDICES[name]])
        along = reals if INDICES[name][1] == SUMMED[operation] else reals.T
        drawn[name] = to_groups(along, number, getattr(widths, TENSORS[name]))
    return drawn


def model_cycles(
    blueprint: Blueprint, dataflow: str, operation: str, sizes: tuple[int, int, int], widths: BlockWidths
) -> int:
    """Return what adagp.hw says that the product of groups takes, and a cycle for each pipeline stage."""
    product = grouped(Product(*sizes).gradient(OPERATIONS[operation]), widths)
    return sum(chunk_serial_cycles(product, blueprint.core.array, dataflow, widths)) + blueprint.core.stages


def check_groups(
    blueprint: Blueprint,
    dataflow: str,
    operation: str,
    sizes: tuple[int, int, int],
    widths: BlockWidths,
    seed: int = 0,
    vcd: Path | None = None,
) -> dict[str, Any]:
    """Return cycles and values of a product of groups in hardware, and whether they are the models'."""
    number = blueprint.core.groups
    assert number is not None
    mapping = group_mapping(number, dataflow, operation, sizes)
    chunks = {name: getattr(widths, TENSORS[name]) // CHUNK_BITS for name in FACTORS[operation][:2]}
    check_fits(blueprint.core, mapping, {place: chunks.get(getattr(mapping, place), 1) for place in PLACES})
    matrices = draw_groups(number, operation, sizes, widths, seed)
    with simulate_chip(blueprint, vcd) as chip:
        found, counts = run_groups(chip, mapping, matrices)
        simulator = type(chip).__name__
    left, right = (matrices[name] for name in FACTORS[operation][:2])
    wanted = group_products(left, right)
    wrong = int(np.count_nonzero(found != wanted))
    cycles = model_cycles(blueprint, dataflow, operation, sizes, widths)
    return {
        "cycles": counts.cycles,
        "model_cycles": cycles,
        "elapsed_cycles": counts.elapsed,
        "buffer_reads": counts.reads,
        "buffer_writes": counts.writes,
        "values": found.size,
        "wrong_values": wrong,
        "equal": wrong == 0 and counts.cycles == counts.span == cycles,
        "array": str(blueprint.core.array),
        "dataflow": dataflow,
        "operation": operation,
        "format": number.name,
        "passes": widths.passes(OPERATIONS[operation]),
        "simulator": simulator,
    }
