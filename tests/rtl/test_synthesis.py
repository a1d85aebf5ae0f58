"""Synthesis of small chips: counts of what is known by construction."""

import os
from pathlib import Path
from typing import Any

import pytest

from adagp.errors import OptionError
from adagp.hw.array import Array
from adagp.rtl.designs import make_blueprint
from adagp.rtl.formats import FORMATS
from adagp.rtl.synthesis import OSU018, parse_target, synthesize

pytestmark = pytest.mark.slow

WORDS: dict[str, Any] = {"value_words": 1024, "sum_words": 1024, "predictor_words": 1024, "program_words": 64}


def test_fpga_resources() -> None:
    blueprint = make_blueprint("efficient", Array(2, 3), FORMATS["int16"], **WORDS)
    heard: list[str] = []
    report = synthesize(blueprint, parse_target("xc7"), heard.append)
    assert heard == list(report.modules)
    counts = dict(report.counts)
    assert counts == {"chip": 1, "core": 1, "element": 6, "lane": 2, "wide_lane": 3, "sequencer": 1, "element_unit": 1}
    assert report.modules["element"]["dsp"] == 1
    assert report.totals["dsp"] == 7  # six PEs and the element unit
    # Three registers of 48 bits, two flags of its own, and step, last and tag on their way.
    assert report.modules["element"]["ff"] == 3 * 48 + 5
    blocks = {
        kind: report.modules[kind]["ramb36"] + report.modules[kind]["ramb18"] / 2 for kind in ("lane", "wide_lane")
    }
    assert blocks["wide_lane"] > blocks["lane"] > 0


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


def test_targets(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"^unknown target 'xc8'. Choose from: xc7, liberty, liberty:FILE.$"):
        parse_target("xc8")
    with pytest.raises(OptionError, match=r"^there is no Liberty file '.*none.lib'.$"):
        parse_target(f"liberty:{tmp_path / 'none.lib'}")
