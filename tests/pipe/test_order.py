"""What makes a program invalid, with the words in which it is said."""

import pytest

from adagp.errors import OptionError
from adagp.pipe import parse_program, validate

HEAD = "mine: 2 micro-batches, phases"
GOOD = f"{HEAD} BP,GP\n0F0 0F1 0B0 0B1 0U0 0F2 0F3 0U1\n1F0 1B0 1F1 1B1 1U0 1F2 1F3 1U1\n"


def rejection(text: str) -> str:
    with pytest.raises(OptionError) as raised:
        validate(parse_program(text))
    return str(raised.value)


def test_a_good_program_is_good() -> None:
    validate(parse_program(GOOD))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0F1 0B0", "0F1 0F1 0B0", "0F1 is in the program twice; each action is done once."),
        ("1U1", "1U1 1U1", "1U1 is in the program twice; each action is done once."),
        ("0B0 0B1", "0B1", "0B0 is missing from the program."),
        (
            "0F2",
            "0F2 0B2",
            "0B2 has no place in 2 stages, 2 micro-batches per batch and the phases BP,GP.",
        ),
        (
            "1F1 1B1",
            "1F1 2F0 1B1",
            "2F0 has no place in 2 stages, 2 micro-batches per batch and the phases BP,GP.",
        ),
        (
            "0B1 0U0 0F2",
            "0B1 0F2 0U0",
            "device 0 does 0F2 before any update of its copy; with strict synchronisation it must come after 0U0.",
        ),
        (
            "0B0 0B1 0U0",
            "0B0 0U0 0B1",
            "device 0 does 0B1 after 0U0 of its copy; with strict synchronisation it must come before any update.",
        ),
        ("1F0 1B0", "1B0 1F0", "device 1 does 1B0 before 1F0, or without it."),
    ],
)
def test_what_is_wrong_is_said(old: str, new: str, message: str) -> None:
    assert old in GOOD
    assert rejection(GOOD.replace(old, new)) == message


def test_a_backward_stays_with_its_forward() -> None:
    text = f"{HEAD} BP\n0F0 0F1 0B0 0U0 1F0 1B0 1U0\n1F1 1B1 1U0 0B1 0U0\n"
    assert rejection(text) == "device 1 does 0B1 before 0F1, or without it."


def test_every_copy_is_updated() -> None:
    text = f"{HEAD} BP\n0F0 0B0 0U0 1F1 1B1 1U0\n0F1 0B1 1F0 1B0 1U0\n"
    assert rejection(text) == "device 1 holds stage 0 but never does 0U0."


def test_who_waits_for_whom_in_a_deadlock_is_said() -> None:
    text = f"{HEAD} BP\n0F0 0B0 0F1 0B1 0U0\n1F1 1F0 1B0 1B1 1U0\n"
    assert rejection(text) == (
        "the program never ends: device 0 stands before 0B0 and waits for 1B0 of device 1; "
        "device 1 stands before 1F1 and waits for 0F1 of device 0."
    )
