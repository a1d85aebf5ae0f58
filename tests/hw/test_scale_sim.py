"""Ours against SCALE-Sim, where there is one: an interpreter that has it, in ADAGP_SCALE_SIM_PYTHON, or this one."""

import os
import sys
from importlib.util import find_spec

import pytest
from benchmarks.check_scale_sim import compare

from adagp.hw import Array, Convolution, Product

PYTHON = os.environ.get("ADAGP_SCALE_SIM_PYTHON", sys.executable if find_spec("scalesim") else "")


@pytest.mark.skipif(not PYTHON, reason="SCALE-Sim is not installed; see benchmarks/check_scale_sim.py")
def test_cycles_and_accesses_of_odd_layers_and_of_their_gradients_are_scale_sims() -> None:
    layers = [
        Convolution("strided", 7, 19, (3, 5), (13, 17), (6, 7), (2, 2)),
        Convolution("pointwise", 11, 23, (1, 1), (9, 9), (5, 5), (2, 2)),
    ]
    compared, wrong = compare(PYTHON, Array(9, 20), layers, [Product(37, 41, 23), Product(5, 70, 3)])
    assert compared == 3 * (2 + 6)
    assert wrong == []
