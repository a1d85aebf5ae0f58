from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_a_page_about_a_real_run(program: Any, finished: Path) -> None:
    ended = program("report", finished, "--out", "page.html")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("page.html: 1 run, ")
    content = Path("page.html").read_text("utf-8")
    assert "Only adagp is here: " in content
    assert "What is missing" not in content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "error: 'nowhere' is not a run folder: there is no such folder.\n"),
        (["."], "error: '.' is not a run folder, and there is none below it: no config.json or metrics.jsonl.\n"),
        (["empty", "--out", "page.txt"], "error: cannot write the report to 'page.txt'; the name must end in .html.\n"),
        (
            ["empty", "--out", "none/a.html"],
            "error: cannot write the report to 'none/a.html': there is no folder 'none'.\n",
        ),
        (
            ["empty", "--phases", "GP,XY"],
            "error: cannot read the phases 'GP,XY'; write GP and BP, separated by commas.\n",
        ),
    ],
)
def test_wrong_input_ends_with_a_sentence(program: Any, arguments: list[str], message: str) -> None:
    Path("empty").mkdir()
    ended = program("report", *arguments)
    assert (ended.code, ended.out, ended.err) == (2, "", message)
    assert not Path("report.html").exists()


def test_an_empty_folder_is_reported_on(program: Any) -> None:
    Path("empty").mkdir()
    assert program("report", "empty").code == 0
    assert "The folder holds no files of a run." in Path("report.html").read_text("utf-8")
