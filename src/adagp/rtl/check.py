"""Checks as plain data: one product, or some batches of a small network, on a simulated chip against the models."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from adagp.errors import OptionError
from adagp.rtl.chip import Blueprint
from adagp.rtl.formats import Integers, NumberFormat, Words
from adagp.rtl.mapping import check_fits, find_mapping
from adagp.rtl.network import SmallNetwork, random_state
from adagp.rtl.products import expected, model_cost, run_product
from adagp.rtl.program import Compiler
from adagp.rtl.simulation import simulate_chip
from adagp.rtl.training import run_batch


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
        found, counts = run_product(chip, mapping, matrices)
        simulator = type(chip).__name__
    cost = model_cost(blueprint.core, dataflow, operation, rows, depth, columns)
    wrong = int(np.count_nonzero(found != expected(number, operation, matrices)))
    same = (counts.cycles, counts.span, counts.reads, counts.writes)
    return {
        "cycles": counts.cycles,
        "model_cycles": cost.cycles,
        "elapsed_cycles": counts.elapsed,
        "buffer_reads": counts.reads,
        "model_buffer_reads": cost.buffer_reads,
        "buffer_writes": counts.writes,
        "model_buffer_writes": cost.buffer_writes,
        "values": found.size,
        "wrong_values": wrong,
        "equal": wrong == 0 and same == (cost.cycles, cost.cycles, cost.buffer_reads, cost.buffer_writes),
        "array": str(blueprint.core.array),
        "dataflow": dataflow,
        "operation": operation,
        "format": number.name,
        "simulator": simulator,
    }


def check_batches(
    blueprint: Blueprint, network: SmallNetwork, phases: Sequence[str], dataflow: str = "ws", seed: int = 0
) -> dict[str, Any]:
    """Return what some batches took in hardware, and whether all weights are the golden model's."""
    number = blueprint.core.single
    state = random_state(network, number, seed)
    for phase in phases:  # before anything is built
        Compiler(blueprint, network, phase, dataflow).compile(state)
    rows = []
    with simulate_chip(blueprint) as chip:
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
