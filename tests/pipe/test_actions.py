import pytest

from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.pipe import Action, generate, parse_action, parse_phases, parse_program


def test_actions_read_as_they_are_written() -> None:
    assert str(Action(2, "F", 0)) == "2F0"
    assert parse_action("12B345") == Action(12, "B", 345)
    assert parse_action("0U7") == Action(0, "U", 7)


@pytest.mark.parametrize("text", ["", "F0", "2X0", "2f0", "2F", "-1F0", "2F0 "])
def test_other_words_are_no_actions(text: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_action(text)
    wanted = f"cannot read the action '{text}'; write STAGE, F, B, I, W or U, and a number, for example 2F0."
    assert str(raised.value) == wanted


def test_phases_are_read() -> None:
    assert parse_phases("GP, bp") == (Phase.GP, Phase.BP)


@pytest.mark.parametrize("text", ["", "GP,", "GP;BP", "warmup"])
def test_other_phases_are_rejected(text: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_phases(text)
    assert str(raised.value) == f"cannot read the phases '{text}'; write GP and BP, separated by commas."


def test_a_program_reads_back_equal() -> None:
    program = generate("chimera", 4, 6, (Phase.GP, Phase.BP, Phase.GP))
    assert parse_program(str(program)) == program
    assert parse_program("\n" + str(program).replace("\n", "  \n\n")) == program


def test_a_program_without_its_first_line_is_rejected() -> None:
    for text, shown in (("0F0 0U0\n", "0F0 0U0"), ("", "")):
        with pytest.raises(OptionError) as raised:
            parse_program(text)
        wanted = f"cannot read the program's first line '{shown}'; write NAME: N micro-batches, phases GP,BP,..."
        assert str(raised.value) == wanted


def test_a_program_without_devices_is_rejected() -> None:
    with pytest.raises(OptionError, match=r"^a pipeline of 0 devices does nothing; give 1 or more\.$"):
        parse_program("mine: 1 micro-batches, phases GP\n")
