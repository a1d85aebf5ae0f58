"""What chips of our own say about the accelerator."""

import json
from pathlib import Path

import pytest

from adagp.errors import OptionError
from adagp.hw.accelerator import Accelerator
from adagp.hw.rtl_results import with_rtl


def written(folder: Path, content: object) -> Path:
    path = folder / "chip.json"
    path.write_text(json.dumps(content))
    return path


def test_the_slowest_clock_and_equal_power_are_taken(tmp_path: Path) -> None:
    usual = Accelerator()
    assert with_rtl(usual, None) == usual
    placed = {"designs": {"baseline": {"megahertz": 61.5}, "max": {"megahertz": 48.25}}}
    assert with_rtl(usual, written(tmp_path, placed)).clock_hz == 48.25e6
    measured = {"designs": {"max": {"megahertz": 10.0}}, "equal_power_pes": 1.51}
    found = with_rtl(usual, written(tmp_path, measured))
    assert (found.equal_power_pes, found.clock_hz) == (1.51, usual.clock_hz)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "'{}' has no designs; give a file that `adagp rtl place --json` or `power --json` wrote."),
        (
            {"designs": {"max": 1}},
            "'{}' has no designs; give a file that `adagp rtl place --json` or `power --json` wrote.",
        ),
        ({"designs": {"max": {}}}, "'{}': megahertz of max is None; it must be a number above 0 and below 1,000,000."),
        (
            {"designs": {"max": {}}, "equal_power_pes": None},
            "'{}' has no equal_power_pes, which needs designs baseline and max (--design all).",
        ),
    ],
)
def test_other_files_are_rejected(content: object, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with pytest.raises(OptionError) as caught:
        with_rtl(Accelerator(), path)
    assert str(caught.value) == message.format(path)
    path.write_text("{")
    with pytest.raises(OptionError, match=r"is not JSON.$"):
        with_rtl(Accelerator(), path)
