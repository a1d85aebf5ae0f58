"""The generated programs against the golden files, and against the order in which the papers draw them."""

from pathlib import Path

import pytest

from adagp.errors import OptionError
from adagp.pipe import PIPELINES, generate, parse_phases, parse_program
from adagp.program.compare.modelled_cost import parse_pipeline
from adagp.program.run.parallel import parse_parallel

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.txt"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_programs_are_those_of_the_golden_files(path: Path) -> None:
    """After a wanted change: write `str(generate(...))` into the file, and look at the difference."""
    text = path.read_text("utf-8")
    program = parse_program(text)
    assert str(generate(program.name, len(program.devices), program.micro_batches, program.phases)) == text


def test_there_are_golden_files_of_every_pipeline() -> None:
    assert {path.stem.partition("-4-")[0].partition("-2-")[0] for path in GOLDEN} == set(PIPELINES)
    assert len(GOLDEN) == 24


DRAWN = {
    "gpipe": ["012345674567"] * 4,
    "dapple": ["012345674567", "012345647567", "012345465767", "012344556677"],
    "chimera": ["012435667745", "021346576475", "203164754657", "230617445567"],
}
"""Janfaza et al. 2023, Figures 10c, 11c and 12c: the micro-batches on each device, GP batch 0-3, BP batch 4-7."""


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_micro_batches_come_in_the_order_of_the_figures(name: str) -> None:
    program = generate(name, 4, 4, parse_phases("GP,BP"))
    found = ["".join(str(action.number) for action in row if action.kind != "U") for row in program.devices]
    assert found == DRAWN[name]


def test_wrong_sizes_are_rejected() -> None:
    for devices, micro_batches, message in (
        (0, 4, "a pipeline of 0 devices does nothing; give 1 or more."),
        (4, 0, "a pipeline of 0 micro-batches does nothing; give 1 or more."),
    ):
        with pytest.raises(OptionError) as raised:
            generate("gpipe", devices, micro_batches, parse_phases("BP"))
        assert str(raised.value) == message
    with pytest.raises(OptionError, match=r"^a pipeline of 0 phases does nothing; give 1 or more\.$"):
        generate("gpipe", 4, 4, ())


def test_chimera_needs_pairs() -> None:
    with pytest.raises(OptionError) as raised:
        generate("chimera", 3, 4, parse_phases("BP"))
    assert str(raised.value) == "chimera pairs its devices, two for each stage; 3 is odd. Give an even number."


def test_an_unknown_pipeline_is_answered_with_the_known() -> None:
    with pytest.raises(OptionError) as raised:
        generate("chimaera", 4, 4, parse_phases("BP"))
    known = "chimera, dapple, gpipe, interleaved, zb-h1, zb-v"
    assert str(raised.value) == f"unknown pipeline 'chimaera'. Did you mean 'chimera'? Choose from: {known}."


def test_the_usual_name_of_dapple_is_accepted() -> None:
    phases = parse_phases("bp,gp")
    assert generate("1f1b", 3, 4, phases) == generate("1F1B", 3, 4, phases) == generate("dapple", 3, 4, phases)
    assert str(parse_parallel("pipeline:1f1b")) == "pipeline:dapple"
    assert parse_pipeline("1f1b,devices=4").schedule == "dapple"
