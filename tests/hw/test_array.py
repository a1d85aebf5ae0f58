import pytest

from adagp.errors import OptionError
from adagp.hw import Array, parse_array, shaped_like


def test_reads_rows_and_columns() -> None:
    assert parse_array(" 12x15 ") == Array(12, 15)
    assert str(Array(12, 15)) == "12x15"
    assert Array(12, 15).pes == 180


@pytest.mark.parametrize("text", ["0x5", "5x0", "-1x5"])
def test_refuses_an_array_without_pes(text: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_array(text)
    assert str(raised.value) == (
        f"array {text} is not allowed: rows and columns must be at least 1, for example 12x15."
    )


@pytest.mark.parametrize("text", ["", "12", "12x", "12X15", "axb", "12x15x3"])
def test_refuses_what_is_no_array(text: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_array(text)
    assert str(raised.value) == f"cannot read the array '{text}'; write ROWSxCOLUMNS, for example 12x15."


def test_refuses_an_absurd_array() -> None:
    with pytest.raises(OptionError) as raised:
        parse_array("12x1000000")
    assert str(raised.value) == "array 12x1000000 is not allowed: rows and columns must be at most 65,536."


def test_shapes_to_choose_from_stay_within_budget_and_shape() -> None:
    found = shaped_like(Array(12, 15), 1.1)
    assert found[0] == Array(12, 15)
    assert {Array(11, 18), Array(11, 16), Array(15, 12), Array(9, 20)} <= set(found)
    assert all(array.pes <= 198 and 0.4 <= array.rows / array.columns <= 1.6 for array in found)
    assert len(set(found)) == len(found)
