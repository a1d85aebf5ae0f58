import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.errors import RunError
from adagp.program.run.documents import (
    AMOUNT,
    ANYTHING,
    COUNT,
    DEPTH,
    FIGURE,
    HIGHEST,
    SCALAR,
    TEXT,
    Fields,
    ListOf,
    TableOf,
    parse_document,
    read_document,
)

RUN = Fields({"epochs": COUNT, "names": ListOf(TEXT), "seconds": TableOf(AMOUNT)}, others=SCALAR, required=("epochs",))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[]", "it holds []; it must be a table."),
        ("{}", "'epochs' is missing."),
        ('{"epochs": 1.5}', "'epochs' is 1.5; it must be a whole number from 0 on."),
        ('{"epochs": true}', "'epochs' is true; it must be a whole number from 0 on."),
        ('{"epochs": 1, "names": {}}', "'names' is {}; it must be a list."),
        ('{"epochs": 1, "names": ["a", 3]}', "'names[1]' is 3; it must be text."),
        ('{"epochs": 1, "seconds": {"bp": -1}}', "'seconds.bp' is -1; it must be a number from 0 on."),
        ('{"epochs": 1, "lr": [1]}', "'lr' is [1]; it must be text, a number, true, false or null."),
        ('{"epochs": 1e400}', "it holds a number beyond 9.2e+18."),
        (f'{{"epochs": 1{"0" * 30}}}', "it holds a number beyond 9.2e+18."),
        ('{"epochs": 1, "a": "\\ud800"}', "it holds an unpaired surrogate, half of a character."),
        ("[" * 40 + "]" * 40, "it is nested more than 32 levels deep."),
        ("[" * 100_000 + "]" * 100_000, "it is nested more than 32 levels deep."),
        ("", "it is not JSON (Expecting value: line 1 column 1 (char 0))."),
    ],
)
def test_the_first_fault_is_told_in_a_sentence(text: str, fault: str) -> None:
    with pytest.raises(RunError) as caught:
        parse_document(text, RUN)
    assert str(caught.value) == fault


def test_long_values_are_cut() -> None:
    with pytest.raises(RunError) as caught:
        parse_document('{"epochs": "' + "x" * 100 + '"}', RUN)
    assert str(caught.value) == f"'epochs' is \"{'x' * 36}...; it must be a whole number from 0 on."


def test_figures_that_are_not_finite_are_not_there() -> None:
    assert parse_document('{"a": NaN, "b": -Infinity}', TableOf(FIGURE)) == {"a": None, "b": None}


def test_names_of_files_may_hold_any_bytes() -> None:
    name = os.fsdecode(b"\xff")
    assert parse_document('"\\udcff"', TEXT) == name


def test_files_are_read_within_limits(tmp_path: Path) -> None:
    path = tmp_path / "file.json"

    def fault() -> str:
        with pytest.raises(RunError) as caught:
            read_document(path, ANYTHING, 10)
        return str(caught.value)

    assert fault() == f"cannot read '{path}': there is no such file."
    path.write_text("[1, 2, 3, 4, 5]")
    assert fault() == f"cannot read '{path}': it has more than 10 bytes."
    path.write_bytes(b'"\xff"')
    assert fault() == f"cannot read '{path}': it is not text in UTF-8."
    path.unlink()
    os.mkfifo(path)
    assert fault() == f"cannot read '{path}': it is not a regular file."
    path.unlink()
    path.symlink_to("/dev/zero")
    assert fault() == f"cannot read '{path}': it is not a regular file."
    path.unlink()
    path.write_text("[1, 2]")
    assert read_document(path, ANYTHING, 10) == [1, 2]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.medium
@given(VALUES | st.text())
def test_any_text_is_read_or_rejected(value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    with suppress(RunError):  # and nothing else
        parse_document(text, RUN)


def nesting(value: Any) -> int:
    """Return how deep tables and lists are nested, the slow way."""
    parts = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    inner = [nesting(part) for part in parts if isinstance(part, dict | list)]
    return 1 + max(inner) if inner else 0


@given(st.integers(0, 40), st.integers(0, 40), st.booleans(), st.text(alphabet="[{}]", max_size=40))
def test_the_depth_is_checked_however_many_brackets_there_are(depth: int, width: int, table: bool, name: str) -> None:
    value: Any = [name]
    for _ in range(depth):
        value = {name: value} if table else [value]
    value = [*([[]] * width), value]
    text = json.dumps(value)
    if nesting(value) <= DEPTH:
        assert parse_document(text, ANYTHING) == value
    else:
        with pytest.raises(RunError, match=r"^it is nested more than 32 levels deep\.$"):
            parse_document(text, ANYTHING)


@given(
    st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["1e309", "-1E+999"])
)
def test_numbers_are_checked_while_they_are_read(number: Any) -> None:
    text = number if isinstance(number, str) else json.dumps(number)
    if isinstance(number, float) or (isinstance(number, int) and abs(number) <= HIGHEST):
        assert parse_document(f'{{"a": [{text}]}}', ANYTHING) == {"a": [number]}
    else:
        with pytest.raises(RunError, match=r"^it holds a number beyond 9\.2e\+18\.$"):
            parse_document(f'{{"a": [{text}]}}', ANYTHING)
