"""Products on simulated arrays: values against numpy, cycles and accesses against adagp.hw and SCALE-Sim's closed forms."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.marks import slow
from tests.rtl.conftest import STAGED

from adagp.errors import OptionError, ToolError
from adagp.hw.dataflows import Array
from adagp.rtl.blueprint import make_blueprint
from adagp.rtl.chip import chip_modules
from adagp.rtl.formats import FORMATS, Integers
from adagp.rtl.instructions import Store
from adagp.rtl.mapping import OPERATIONS, PLACEMENTS, check_fits, find_mapping
from adagp.rtl.products import check_product, draw_matrices, expected, model_cost, run_product
from adagp.rtl.simulation import InterpretedChip, SimulatedChip, VerilatedChip
from adagp.rtl.tools import verilator

pytestmark = pytest.mark.medium

ChipOf = Callable[[str], SimulatedChip]
SIZES = st.integers(1, 17)


def check(chip: SimulatedChip, dataflow: str, operation: str, sizes: tuple[int, int, int], seed: int) -> None:
    number = chip.blueprint.core.single
    mapping = find_mapping(dataflow, operation, *sizes)
    matrices = draw_matrices(number, sizes, seed)
    del matrices[mapping.result]
    found, counts = run_product(chip, mapping, matrices)
    assert np.array_equal(found, expected(number, operation, matrices))
    if isinstance(number, Integers):
        x, w, y = (number.decode(matrices[one]) if one in matrices else None for one in "xwy")
        product = {"forward": lambda: x @ w, "dx": lambda: y @ w.T, "dw": lambda: x.T @ y}[operation]()  # type: ignore[operator,union-attr]
        assert np.array_equal(number.decode_sums(found), product)
    cost = model_cost(chip.blueprint.core, dataflow, operation, *sizes)
    assert counts.cycles == counts.span == cost.cycles
    assert (counts.reads, counts.writes) == (cost.buffer_reads, cost.buffer_writes)


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
@pytest.mark.parametrize("dataflow", sorted(PLACEMENTS))
@pytest.mark.parametrize("name", ["int8", "int16", STAGED, *map(slow, sorted(set(FORMATS) - {"int8", "int16"}))])
def test_products(name: str, dataflow: str, operation: str, chip_of: ChipOf) -> None:
    chip = chip_of(name)

    @settings(max_examples=8)
    @given(SIZES, SIZES, SIZES, st.integers(0, 1000))
    def products(rows: int, depth: int, columns: int, seed: int) -> None:
        check(chip, dataflow, operation, (rows, depth, columns), seed)

    products()


@pytest.mark.parametrize("name", ["int8", STAGED, *map(slow, ["int16", "fp16"])])
def test_products_are_added_to_sums(name: str, chip_of: ChipOf) -> None:
    """In every mode: to what the host wrote, and part by part of the summed index to what the part before left there."""
    chip = chip_of(name)
    number = chip.blueprint.core.single

    @settings(max_examples=12)
    @given(st.sampled_from(sorted(PLACEMENTS)), st.sampled_from(sorted(OPERATIONS)), SIZES, SIZES, SIZES)
    def products(dataflow: str, operation: str, rows: int, depth: int, columns: int) -> None:
        sizes = (rows, depth, columns)
        mapping = find_mapping(dataflow, operation, *sizes)
        matrices = draw_matrices(number, sizes, sum(sizes))
        start = number.promote(matrices.pop(mapping.result))
        cost = model_cost(chip.blueprint.core, dataflow, operation, *sizes, adds=True)
        sums, counts = run_product(chip, mapping, matrices, start)
        assert np.array_equal(sums, expected(number, operation, matrices, start))
        assert (counts.cycles, counts.reads, counts.writes) == (cost.cycles, cost.buffer_reads, cost.buffer_writes)

    products()


@pytest.mark.parametrize("name", ["int8", STAGED])
@pytest.mark.parametrize("dataflow", sorted(PLACEMENTS))
def test_weight_gradients_of_micro_batches_are_those_of_the_batch(name: str, dataflow: str, chip_of: ChipOf) -> None:
    """Sums are added sample after sample, so that even floats have the same bits. No word leaves the banks in between."""
    chip, (rows, depth, columns) = chip_of(name), (11, 5, 7)
    number = chip.blueprint.core.single
    matrices = draw_matrices(number, (rows, depth, columns), 3)
    parts = [{"x": matrices["x"][part], "y": matrices["y"][part]} for part in (slice(4), slice(4, 5), slice(5, rows))]
    sums = None
    for part in parts:
        sums, _ = run_product(chip, find_mapping(dataflow, "dw", len(part["x"]), depth, columns), part, sums)
    assert sums is not None
    assert np.array_equal(sums, expected(number, "dw", matrices))


@pytest.mark.parametrize("name", ["int8", "int16", STAGED])
def test_the_host_writes_sums(name: str, chip_of: ChipOf) -> None:
    chip = chip_of(name)
    bits = chip.blueprint.core.number.sum_bits
    words = np.random.default_rng(0).integers(0, 1 << bits, 6)
    for memory in (Store.ROW_SUMS, Store.COLUMN_SUMS):
        chip.write(0, memory, 1, 7, words)
        assert np.array_equal(chip.read(0, memory, 1, 7, len(words)), words)


@pytest.mark.parametrize(("dataflow", "folds", "cycles"), [("ws", (5, 7), "2R+C+T-2"), ("os", (5, 9), "R+C+T-2")])
def test_cycles_are_scale_sims(dataflow: str, folds: tuple[int, int], cycles: str, chip_of: ChipOf) -> None:
    """20 x 17 x 33 on 4 x 4: SCALE-Sim's compute cycles, written out."""
    chip = chip_of("int8")
    mapping = find_mapping(dataflow, "forward", 20, 17, 33)
    matrices = draw_matrices(FORMATS["int8"], (20, 17, 33), 0)
    del matrices["y"]
    _, counts = run_product(chip, mapping, matrices)
    each = 2 * 4 + 4 + 20 - 2 if dataflow == "ws" else 4 + 4 + 17 - 2
    number = 5 * 9  # ceil(17 / 4) x ceil(33 / 4); ceil(20 / 4) x ceil(33 / 4)
    assert counts.span == number * each


def test_amaranths_own_simulator_agrees() -> None:
    words: dict[str, Any] = {"value_words": 64, "sum_words": 64, "program_words": 4}
    chip = InterpretedChip(make_blueprint("baseline", Array(2, 3), FORMATS["int8"], **words))
    for place, (dataflow, operation) in enumerate((one, other) for one in PLACEMENTS for other in OPERATIONS):
        check(chip, dataflow, operation, (3, 4, 5), place)


FAULTS = (("$add", "$sub"), ("$and", "$or"), ("$not", "$pos"), ("$eq", "$ne"), ("$mul", "$add"), ("$mux", "$bwmux"))
"""Cells of a PE, and what they are exchanged for; one for each PE of the array."""


@pytest.mark.skipif(verilator() is None, reason="needs Verilator")
@pytest.mark.parametrize("place", [0, *map(slow, range(1, 6))])
def test_a_fault_in_any_pe_is_found(place: int) -> None:
    """One cell of one PE exchanged for another: some product is no longer right."""
    words: dict[str, Any] = {"value_words": 64, "sum_words": 64, "program_words": 4}
    blueprint = make_blueprint("baseline", Array(2, 3), FORMATS["int8"], **words)
    texts = chip_modules(blueprint, simulated=True)
    was, becomes = (f"cell {kind} " for kind in FAULTS[place][:2])
    name = f"element_{place // 3}_{place % 3}"
    assert was in texts["element"]
    assert f"cell \\element \\{name}\n" in texts["core"]
    wrong = texts["element"].replace(was, becomes, 1)
    if becomes == "cell $bwmux ":  # which has a selector for each bit: the inputs the other way round instead
        wrong = re.sub(
            r"(cell \$mux .*?connect )\\A(.*?connect )\\B", r"\1\\B\2\\A", texts["element"], count=1, flags=re.S
        )
    assert wrong != texts["element"]
    core = texts["core"].replace(f"cell \\element \\{name}\n", f"cell \\wrong_element \\{name}\n")
    texts = {
        "element": texts["element"],
        "wrong": wrong.replace("module \\element\n", "module \\wrong_element\n").replace("attribute \\top 1\n", ""),
        **{kind: text for kind, text in texts.items() if kind != "element"},
        "core": core,
    }
    chip = VerilatedChip(blueprint, rtlil="\n".join(texts.values()))
    with pytest.raises(AssertionError):
        for seed, (dataflow, operation) in enumerate((one, other) for one in PLACEMENTS for other in OPERATIONS):
            check(chip, dataflow, operation, (5, 4, 5), seed)


@pytest.mark.slow
def test_waves_are_written(tmp_path: Path) -> None:
    words: dict[str, Any] = {"value_words": 64, "sum_words": 64, "program_words": 4}
    blueprint = make_blueprint("baseline", Array(2, 2), FORMATS["int8"], **words)
    path = tmp_path / os.fsdecode(b"wave \xff.vcd")  # a name that is not UTF-8
    report = check_product(blueprint, "ws", "forward", (3, 2, 2), vcd=path)
    assert report["equal"]
    text = path.read_text()
    assert "$enddefinitions" in text
    assert "step" in text
    for full, reason in (("/dev/full", "No space left on device"), ("/nowhere/x.vcd", "No such file or directory")):
        with pytest.raises(ToolError) as caught:
            check_product(blueprint, "ws", "forward", (3, 2, 2), vcd=Path(full))
        assert str(caught.value) == f"cannot write the waveforms '{full}': {reason}."
    assert Path("/dev/full").exists()


def test_what_does_not_fit_is_rejected() -> None:
    core = make_blueprint("baseline", Array(2, 2), FORMATS["int8"], value_words=16, sum_words=64).core
    with pytest.raises(OptionError) as error:
        check_fits(core, find_mapping("ws", "forward", 10, 4, 4))
    assert str(error.value) == (
        "the product needs 20 words in each bank of values; there are 16. Give larger banks or a smaller product."
    )
    with pytest.raises(OptionError, match=r"^pipeline stages is 2; it must be 0 or 1.$"):
        make_blueprint("baseline", Array(2, 2), FORMATS["int8"], stages=2)
    with pytest.raises(OptionError, match=r"^depth of a product is 0; it must be 1 to 65535.$"):
        find_mapping("ws", "forward", 1, 0, 1)
    with pytest.raises(OptionError, match=r"^unknown dataflow in hardware 'rs'. Choose from: is, os, ws.$"):
        find_mapping("rs", "forward", 1, 1, 1)
    with pytest.raises(OptionError, match=r"^unknown operation 'dz'. "):
        find_mapping("ws", "dz", 1, 1, 1)
