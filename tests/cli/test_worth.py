"""`adagp worth`: from a comparison's folder to tables, JSON and a picture."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.program.compare.test_worth import document

from adagp.program.compare.worth import Price, worth_record
from adagp.program.run.metrics import ACCURACY


@pytest.fixture
def comparison(program: Any) -> Path:
    """Return the folder of a finished comparison."""
    found = worth_record(document(), ACCURACY, {"feedback": {"accelerator": Price(0.3, 0.02, None, "max,ws,12x15")}})
    folder = Path("compared")
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps({"worth": found}))
    return folder


def test_tables_json_and_a_picture(program: Any, comparison: Path) -> None:
    ended = program("worth", comparison, "--plot", "worth.png")
    assert (ended.code, ended.err) == (0, "")
    assert "where feedback pays" in ended.out
    assert "too close to say" not in ended.out
    assert Path("worth.png").stat().st_size > 1000
    found = json.loads(program("worth", comparison, "--json").out)["methods"]["feedback"]
    assert found["interval"][0] < found["worth"] < found["interval"][1]
    on_accelerator = found["platforms"]["accelerator"]
    assert (on_accelerator["price"], on_accelerator["overhead"], on_accelerator["verdict"]) == (0.3, 0.02, "pays")


def test_what_tells_no_worth_is_rejected(program: Any, comparison: Path) -> None:
    ended = program("worth", "nowhere")
    assert (ended.code, ended.err) == (2, "error: 'nowhere' holds no finished comparison: it has no report.json.\n")
    (comparison / "report.json").write_text('{"worth": null}')
    ended = program("worth", comparison)
    assert (ended.code, ended.err) == (
        2,
        "error: 'compared' has no break-even: that needs backprop at several lengths. Repeat the "
        "comparison with --curve 0.5,0.75,1.25; its finished runs are kept.\n",
    )
    assert program("worth", comparison, "--plot", "worth.txt").code == 2


def parts_of(value: Any, path: tuple[Any, ...] = ()) -> Any:
    """Yield the path of each part of a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield (*path, name)
        yield from parts_of(inner, (*path, name))


@pytest.mark.medium
def test_a_report_of_another_shape_is_named(program: Any, comparison: Path) -> None:
    """Every part of the report is replaced by a value of another kind, and left out."""
    path = comparison / "report.json"
    whole = path.read_text()
    answers = set()
    for *outer, name in list(parts_of(json.loads(whole))):
        for value in (None, "x"):
            content = json.loads(whole)
            inner = content
            for step in outer:
                inner = inner[step]
            if value is None and isinstance(inner, dict):
                del inner[name]
            else:
                inner[name] = value
            path.write_text(json.dumps(content))
            ended = program("worth", comparison)
            assert ended.code in (0, 2), ended.err
            if ended.code:
                assert ended.err.startswith(
                    ("error: cannot read 'compared/report.json': ", "error: 'compared' has no ")
                )
                answers.add(ended.err)
    assert (
        "error: cannot read 'compared/report.json': 'worth.methods.feedback.interval' is \"x\"; it must be a list.\n"
        in answers
    )


def test_a_map_of_several_comparisons(program: Any, comparison: Path) -> None:
    content = json.loads((comparison / "report.json").read_text())
    more = {"model": "net", "dataset": "digits", "methods": ["bp", "feedback"], "regimes": {"batches": {"methods": {}}}}
    (comparison / "report.json").write_text(json.dumps(content | more))
    ended = program("worth", "--map", comparison, "nowhere", "--plot", "map.png")
    assert ended.code == 0
    assert ended.err == "left out: 'nowhere' holds no finished comparison: it has no report.json.\n"
    assert "net on digits: feedback" in ended.out
    assert Path("map.png").stat().st_size > 1000
    (point,) = json.loads(program("worth", "--map", comparison, "--json").out)["points"]
    assert (point["platform"], point["step_limited"], point["noise_limited"]) == ("accelerator", "pays", None)
    ended = program("worth", comparison, comparison)
    assert (ended.code, ended.err) == (2, "error: 2 folders were given; several can be shown with --map only.\n")
