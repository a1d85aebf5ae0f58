import pytest

from adagp.errors import OptionError
from adagp.program.run.parallel import Dimension, ParallelLayout, parse_parallel


@pytest.mark.parametrize(
    ("text", "dimensions"),
    [
        ("none", ()),
        ("data", (Dimension("data"),)),
        ("fsdp=4", (Dimension("fsdp", 4),)),
        ("pipeline:chimera", (Dimension("pipeline", None, "chimera"),)),
        ("data=2,pipeline:zb-v=4", (Dimension("data", 2), Dimension("pipeline", 4, "zb-v"))),
        ("fsdp=2,pipeline:gpipe=2", (Dimension("fsdp", 2), Dimension("pipeline", 2, "gpipe"))),
    ],
)
def test_a_layout_is_read_and_written(text: str, dimensions: tuple[Dimension, ...]) -> None:
    layout = parse_parallel(text)
    assert layout == ParallelLayout(dimensions)
    assert str(layout) == text


def test_a_pipeline_without_a_name_is_the_usual_one() -> None:
    layout = parse_parallel("data=2,pipeline=4")
    assert str(layout) == "data=2,pipeline:dapple=4"
    assert layout.kinds == ("data", "pipeline")
    assert layout.schedule == "dapple"


def test_sizes_are_those_of_the_processes() -> None:
    assert parse_parallel("data").sizes(3) == {"data": 3}
    assert parse_parallel("data=2,pipeline=4").sizes(8) == {"data": 2, "pipeline": 4}
    with pytest.raises(OptionError) as raised:
        parse_parallel("data=2,pipeline=4").sizes(4)
    assert str(raised.value) == "--parallel data=2,pipeline:dapple=4 is for 8 processes; there are 4."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "pipeline=2,data=2",
            "--parallel pipeline=2,data=2: each dimension may appear once, in the order data, fsdp, pipeline.",
        ),
        (
            "data=2,data=2",
            "--parallel data=2,data=2: each dimension may appear once, in the order data, fsdp, pipeline.",
        ),
        (
            "data,pipeline=2",
            "--parallel data,pipeline=2: give the processes of each dimension, for example data=2,pipeline=4.",
        ),
        (
            "data=2,fsdp=2,pipeline=2",
            "--parallel data=2,fsdp=2,pipeline=2: fsdp splits each batch, too, as data does; give one of the two.",
        ),
        ("data=0", "--parallel data=0: a dimension needs 1 process or more."),
    ],
)
def test_what_no_layout_can_be_is_rejected(text: str, message: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_parallel(text)
    assert str(raised.value) == message


@pytest.mark.parametrize("text", ["", "pipeline", "data:dapple", "rows=2", "data=two", "data=2,,pipeline=2"])
def test_what_is_no_form_is_answered_with_the_forms(text: str) -> None:
    forms = "data, data=2,pipeline=4, fsdp, fsdp=2,pipeline=2, none, "
    with pytest.raises(OptionError, match=rf"^unknown parallel '.*Choose from: {forms}"):
        parse_parallel(text)
