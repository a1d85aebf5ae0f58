from math import inf, nan

import pytest

from adagp.errors import OptionError
from adagp.pipe import Costs, StageCosts, constant_costs


@pytest.mark.parametrize("value", [-1.0, inf, nan])
def test_times_are_finite_and_not_negative(value: float) -> None:
    with pytest.raises(OptionError) as raised:
        StageCosts(backward=value)
    assert str(raised.value) == f"backward of a stage is {value}; it must be a finite number of 0 or more."
    with pytest.raises(OptionError) as raised:
        constant_costs(4, alpha=value)
    assert str(raised.value) == f"alpha is {value}; it must be a finite number of 0 or more."


@pytest.mark.parametrize("value", [0.0, -1.0, nan])
def test_links_carry_something(value: float) -> None:
    with pytest.raises(OptionError) as raised:
        Costs((StageCosts(),), bandwidth=value)
    assert str(raised.value) == f"bandwidth is {value}; it must be more than 0 (infinity: transfers take no time)."


def test_latency_is_not_negative() -> None:
    with pytest.raises(OptionError, match=r"^latency is -1; it must be a finite number of 0 or more\.$"):
        Costs((StageCosts(),), latency=-1)
