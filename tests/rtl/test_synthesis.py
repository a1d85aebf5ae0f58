"""Synthesis of small chips: counts of what is known by construction."""

import os
from typing import Any

import pytest

from adagp.hw.dataflows import Array
from adagp.rtl.blueprint import make_blueprint
from adagp.rtl.formats import FORMATS
from adagp.rtl.synthesis import OSU018, parse_target, synthesize

pytestmark = pytest.mark.medium

WORDS: dict[str, Any] = {
    "value_words": 1024,
    "sum_words": 1024,
    "predictor_words": 1024,
    "program_words": 64,
    "pool_words": 1024,
}


@pytest.mark.slow
def test_fpga_resources() -> None:
    blueprint = make_blueprint("efficient", Array(2, 3), FORMATS["int16"], **WORDS)
    heard: list[str] = []
    report = synthesize(blueprint, parse_target("xc7"), heard.append)
    assert heard == list(report.modules)
    counts = dict(report.counts)
    banks = {kind: counts.pop(kind) for kind in list(counts) if kind.startswith("bank_")}
    assert counts == {
        "chip": 1,
        "core": 1,
        "element": 6,
        "lane": 2,
        "pooling_wide_lane": 3,
        "sequencer": 1,
        "element_unit": 1,
    }
    # Values and sums of five lanes; the predictor's own values and the totals of three.
    assert {kind: count for kind, count in banks.items() if not kind.startswith("bank_64x")} == {
        "bank_1024x48": 5 + 3,
        "bank_1024x16": 5 + 3,
    }
    assert report.modules["element"]["dsp"] == 1
    # Six PEs; in the element unit one multiplier, and one of 48 by 16 bits that makes means of totals.
    assert report.totals["dsp"] == 6 + report.modules["element_unit"]["dsp"]
    # Three registers of 48 bits, two flags of its own, and step, last and tag on their way.
    assert report.modules["element"]["ff"] == 3 * 48 + 5
    assert report.modules["bank_1024x48"]["ramb36"] + report.modules["bank_1024x48"]["ramb18"] / 2 == 1.5


@pytest.mark.slow
def test_cells_and_area() -> None:
    if not OSU018.is_file():
        if os.environ.get("ADAGP_RTL_TEST") == "required":
            pytest.fail("qflow-tech-osu018 is not installed")
        pytest.skip("needs Debian's qflow-tech-osu018")
    small, large = (make_blueprint("baseline", array, FORMATS["int8"], **WORDS) for array in (Array(2, 2), Array(2, 3)))
    areas = [synthesize(one, parse_target("liberty")) for one in (small, large)]
    assert areas[0].modules["element"] == areas[1].modules["element"]
    assert areas[0].totals["area"] < areas[1].totals["area"]
    assert areas[0].modules["element"]["cells"] > 100
