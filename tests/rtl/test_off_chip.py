"""Off-chip memory that answers late: the same weights to the bit, and as many cycles more as the element unit was held."""

import pytest
from tests.marks import slow
from tests.rtl.test_training import CONVOLVED, blueprint

from adagp.rtl.assembler import Code, Operand
from adagp.rtl.formats import FORMATS
from adagp.rtl.instructions import REMOTE, Store
from adagp.rtl.network import random_state
from adagp.rtl.simulation import Counts, InterpretedChip, simulate_chip
from adagp.rtl.training import run_batch

pytestmark = pytest.mark.medium


@pytest.mark.parametrize("stages", [0, slow(1)])
def test_a_late_memory_costs_stalls_and_changes_nothing_else(stages: int) -> None:
    with simulate_chip(blueprint("low", stages=stages)) as chip:
        counts: dict[tuple[str, int], Counts] = {}
        for latency in (0, 1, 9):
            chip.set_latency(latency)
            state = random_state(CONVOLVED, FORMATS["int16"], 5)
            for phase in ("bp", "gp"):
                result = run_batch(chip, CONVOLVED, state, phase)
                assert result.equal, result.differences
                counts[phase, latency], state = result.counts, result.state
    for phase in ("bp", "gp"):
        prompt = counts[phase, 0]
        assert prompt.stalls == 0
        for latency in (1, 9):
            late = counts[phase, latency]
            assert late.elapsed - prompt.elapsed == late.element_cycles - prompt.element_cycles == late.stalls
        assert counts[phase, 9].stalls > counts[phase, 1].stalls > 0


@pytest.mark.parametrize("latency", [0, 3])
def test_words_are_copied_from_off_chip_to_off_chip(latency: int) -> None:
    """Each step writes the word that it has just read, so that requests and answers meet in every order."""
    design = blueprint("low")
    code = Code(design.core)
    away = Operand(Store.ROW_VALUES + REMOTE, 0, 0, (0, 0, 1))
    code.elements((1, 1, 20), Operand(away.memory, 0, 40, away.strides), away)
    code.halt()
    words = FORMATS["int16"].encode([0.25 * number for number in range(20)])
    chip = InterpretedChip(design)
    chip.set_latency(latency)
    chip.write(1, Store.ROW_VALUES, 0, 0, words)
    chip.load([code.program])
    counts = chip.run()
    assert list(chip.read(1, Store.ROW_VALUES, 0, 40, 20)) == list(words)
    assert (counts.stalls > 0) == (latency > 0)
