import socket
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.medium


def test_a_page_about_a_real_run(program: Any, finished: Path) -> None:
    ended = program("report", finished, "--out", "page.html")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("page.html: 1 run, ")
    content = Path("page.html").read_text("utf-8")
    assert "<strong>One method alone:</strong> feedback with " in content
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--watch"], "error: 'nowhere' cannot be watched: there is no such folder.\n"),
        (
            [".", "--watch", "--out", "page.html"],
            "error: --out cannot be combined with --watch, which writes no file.\n",
        ),
        ([".", "--port", "0"], "error: --port needs --watch.\n"),
        ([".", "--watch", "--port", "70000"], "error: --port is 70000; it must be at most 65535.\n"),
    ],
)
def test_a_watch_that_cannot_be_ends_with_a_sentence(program: Any, arguments: list[str], message: str) -> None:
    ended = program("report", *arguments)
    assert (ended.code, ended.out, ended.err) == (2, "", message)


def test_a_busy_port_ends_with_a_sentence(program: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = program("report", ".", "--watch", "--port", str(port))
    reason = "Address already in use. Choose another --port, or 0 for any free port."
    assert (ended.code, ended.out, ended.err) == (2, "", f"error: cannot serve on port {port}: {reason}\n")


def test_plot_takes_folders_with_runs_below_them_as_report_does(program: Any, run_writer: Any) -> None:
    for name in ("study/bp/s0", "study/adagp/s0"):
        run_writer(Path.cwd())(name, method=name.split("/")[1])
    ended = program("plot", "study", "--out", "pictures")
    assert ended.code == 0, ended.err
    drawn = [f"pictures/{name}.{ending}" for name in ("curves", "sites-adagp-s0") for ending in ("png", "svg")]
    assert ended.out.split() == drawn
    assert all(Path(name).is_file() for name in drawn)
