import math
from typing import Any

import pytest

from adagp.core.options import Option
from adagp.errors import OptionError


@pytest.mark.parametrize(
    ("bounds", "good", "bad", "message"),
    [
        ({"low": 1}, 1, 0, "--some-thing is 0; it must be 1 or more."),
        ({"above": 0}, 0.1, 0.0, "--some-thing is 0.0; it must be above 0."),
        ({"below": 1}, 0.9, 1.0, "--some-thing is 1.0; it must be below 1."),
        ({"high": 5}, 5, 6, "--some-thing is 6; it must be at most 5."),
        ({"low": 0, "below": 1, "allowed": "0 to 1"}, 0.0, 1.0, "--some-thing is 1.0; it must be 0 to 1."),
        ({}, 1.0, math.nan, "--some-thing is nan; it must be a finite number."),
        ({"choices": ("ab", "cd")}, "ab", "abc", "unknown some thing 'abc'. Did you mean 'ab'? Choose from: ab, cd."),
        ({"choices": lambda: ["x"]}, "x", "y", "unknown some thing 'y'. Choose from: x."),
    ],
)
def test_values_in_and_out_of_range(bounds: dict[str, Any], good: Any, bad: Any, message: str) -> None:
    option = Option("some_thing", type(good), good, "Help.", **bounds)
    option.check(good)
    option.check(None)
    with pytest.raises(OptionError) as caught:
        option.check(bad)
    assert str(caught.value) == message


def test_words_of_a_command_line() -> None:
    assert Option("some_thing", int, 1, "Help.").words(3) == ["--some-thing", "3"]
    switch = Option("some_thing", bool, False, "Help.")
    assert (switch.words(True), switch.words(False)) == (["--some-thing"], ["--no-some-thing"])
