"""The live view: a real server, a real browser, and run folders that grow, come and go meanwhile."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

import adagp
from adagp.errors import OptionError, RunError
from adagp.program.report import live
from adagp.program.report.live import LiveReport, LiveServer, Watch, WatchedRun, duration, run_status, time_left
from adagp.program.run.folder import PROGRESS, ProgressFile, RunProgress, locked
from adagp.program.run.record import collect

pytestmark = pytest.mark.medium

if TYPE_CHECKING:
    from playwright.sync_api import Page

DESKTOP, PHONE = (1280, 900), (390, 844)
OpenPage = Callable[..., "Page"]
Serve = Callable[[Path], LiveServer]
Answer = tuple[int, http.client.HTTPMessage, str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that serves the live view of a folder on a free port until the test ends."""
    running: list[tuple[LiveServer, Thread]] = []

    def started(path: Path) -> LiveServer:
        server = LiveServer(LiveReport([path]), 0)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        running.append((server, thread))
        return server

    yield started
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(server: LiveServer, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, headers=headers or {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


def lengthen(run: Path, source: Path, epochs: int) -> None:
    """Let a run have the first epochs of another one."""
    lines = (source / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "new").write_text("".join(lines[:epochs]))
    (run / "new").replace(run / "metrics.jsonl")


def test_requests_for_other_hosts_are_rejected(tmp_path: Path, serve: Serve) -> None:
    server = serve(tmp_path)
    port = server.server_port
    assert server.server_address[0] == "127.0.0.1"
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"):
        assert ask(server, "/now", {"Host": host})[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""):
        for path in ("/", "/now", "/body", "/library.js"):
            status, _, text = ask(server, path, {"Host": host})
            assert (status, text) == (403, "This page is for browsers on the same machine.")


def test_responses(tmp_path: Path, write_run: Any, serve: Serve) -> None:
    write_run("<b>one", method="bp")
    server = serve(tmp_path)
    status, headers, text = ask(server, "/")
    assert status == 200
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self' 'unsafe-eval'; ")
    assert (headers["X-Content-Type-Options"], headers["Cross-Origin-Resource-Policy"]) == ("nosniff", "same-origin")
    assert "http" not in text.replace(str(tmp_path), "")
    status, headers, text = ask(server, "/body")
    assert "&lt;b&gt;one" in text
    assert "<b>one" not in text
    assert "modelled" not in text
    version = headers["ETag"]
    assert ask(server, "/body", {"If-None-Match": version})[0] == 304
    assert ask(server, "/body", method="HEAD")[2] == ""
    assert ask(server, "/../config.json")[0] == 404
    assert ask(server, "/body", method="POST")[0] == 501


def test_the_server_rests_after_a_long_look_and_a_long_report(
    tmp_path: Path, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look of 3 seconds and a report of 2 are followed by 4 times as many seconds without either."""
    write_run("run")
    report, clock, looks = LiveReport([tmp_path]), [100.0], [0]
    look, write = report._watch.look, report._write
    monkeypatch.setattr(live, "monotonic", lambda: clock[0])

    def slow_look() -> list[WatchedRun]:
        clock[0] += 3
        looks[0] += 1
        return look()

    def slow_write(runs: Sequence[WatchedRun]) -> str:
        clock[0] += 2
        return write(runs)

    monkeypatch.setattr(report._watch, "look", slow_look)
    monkeypatch.setattr(report, "_write", slow_write)
    body = report.body()  # looks from 100 to 103, writes until 105
    for now, count in ((105.0, 1), (122.9, 1), (123.0, 2), (126.0, 2), (137.9, 2), (138.0, 3)):
        clock[0] = now
        assert report.body() == body
        assert looks[0] == count


def test_a_busy_port_is_rejected(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(OptionError) as caught:
            LiveServer(LiveReport([tmp_path]), port)
    assert str(caught.value) == (
        f"cannot serve on port {port}: Address already in use. Choose another --port, or 0 for any free port."
    )


@pytest.mark.slow
def test_a_run_that_grows_while_the_page_is_open(
    tmp_path: Path, run_writer: Any, serve: Serve, open_page: OpenPage, screenshots: Path
) -> None:
    root, write = tmp_path / "runs", run_writer(tmp_path / "runs")
    root.mkdir()
    done = run_writer(tmp_path / "elsewhere")("source", epochs=6)
    server = serve(root)
    page = open_page(server.address, DESKTOP)
    page.set_default_timeout(20_000)
    page.get_by_text("no run yet").wait_for()

    run = write("ada", epochs=6, finished=False, done=0)  # it appears
    with locked(run):
        counts = {"warmup": 0, "bp": 2, "gp": 3, "guarded": 1}
        ProgressFile(run).write(RunProgress(7, 60, 1, "gp", 1.5, 0.125, counts, 125.0))
        row = page.locator("#now tbody tr")
        page.get_by_text("1 running, 0 stopped or waiting, 0 finished").wait_for()
        for text in ("running", "1 of 6", "7 of 60", "GP", "67%", "1.5", "12.50%", "2 min"):
            assert text in row.inner_text()
        lengthen(run, done, 2)
        page.wait_for_selector("#chapter-1-curves-chart-2 svg")
        assert ends(page) == 2
        kept = page.locator("#chapter-1-curves-of").element_handle()
        page.locator("#chapter-1-runs th button").nth(3).click()
        lengthen(run, done, 5)
        page.wait_for_function(
            "document.querySelector('#chapter-1-runs tbody').innerText.includes('after 5 of 6 epochs')"
        )
        page.wait_for_timeout(300)
        assert ends(page) == 5
        assert page.locator("#chapter-1-runs th").nth(3).get_attribute("aria-sort") == "ascending"  # as it was sorted
        assert kept.evaluate("(one) => one.isConnected")
        page.screenshot(path=screenshots / "live.png", full_page=True)

    write("bp", method="bp", epochs=6)  # another one, finished
    page.get_by_text("0 running, 1 stopped or waiting, 1 finished").wait_for()
    page.locator(".verdict", has_text="At equal batches, 50 each so far").wait_for()
    page.locator("#chapter-1-time-chart-1").hover()
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert "undefined" not in page.locator("#vg-tooltip-element").inner_text()

    page.reload()
    page.locator(".verdict", has_text="At equal batches, 50 each so far").wait_for()
    shutil.rmtree(run)  # and one goes
    page.locator(".verdict", has_text="One method alone: bp").wait_for()
    assert page.locator("#now table").count() == 0
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE[0]


def ends(page: "Page") -> int:
    """Return how many epochs the chart of the test's values shows."""
    specs = page.locator("#chapter-1-curves-chart-2-spec").text_content()
    assert specs is not None
    return max(int(row["epoch"]) for row in json.loads(specs)["data"]["values"])


@pytest.mark.slow
def test_ctrl_c_ends_the_program_and_the_page_shows_it(tmp_path: Path, write_run: Any, browser: Any) -> None:
    write_run("one", method="bp")
    command = [sys.executable, "-m", "adagp", "report", str(tmp_path), "--watch", "--port", "0"]
    place = {**os.environ, "PYTHONPATH": str(Path(adagp.__file__).parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=place) as program:
        assert program.stdout is not None
        told = re.fullmatch(
            r"Open (http://127\.0\.0\.1:\d+/) in a browser on this machine; Ctrl-C ends it\.\n",
            program.stdout.readline(),
        )
        assert told is not None
        page = browser.new_page()
        page.goto(told[1])
        page.wait_for_selector("html[data-live=yes] .canvas svg")
        program.send_signal(signal.SIGINT)
        try:
            out, err = program.communicate(timeout=60)
        finally:
            program.kill()  # or the test would wait for ever
        assert (program.returncode, out, err) == (0, "", "Stopped watching.\n")
    page.wait_for_selector("html[data-live=no]")
    assert "has ended, or cannot be reached" in page.locator("#state").inner_text()
    assert page.locator(".canvas svg").count() > 0
    page.close()


HALF = RunProgress(15, 40, 2, "gp", 0.5, 0.25, {"warmup": 0, "bp": 2, "gp": 2, "guarded": 1}, 75.0)


def test_only_what_changed_is_read_again(write_run: Any, rewrite: Any, tmp_path: Path) -> None:
    first, second = write_run("deep/a/one"), write_run("deep/two", finished=False, done=1)
    watch = Watch([tmp_path])
    assert [run.record.name for run in watch.look()] == ["deep/a/one", "deep/two"]
    assert watch.reads == 2
    watch.look()
    assert watch.reads == 2
    rewrite(second, 0, {"train_loss": 7.0})
    assert watch.look()[1].record.epochs[0].train_loss == 7.0
    assert watch.reads == 3
    write_run("three")
    assert [run.record.name for run in watch.look()] == ["deep/a/one", "deep/two", "three"]
    shutil.rmtree(first)
    assert [run.record.name for run in watch.look()] == ["deep/two", "three"]
    assert watch.reads == 4


def test_a_folder_must_exist_at_first_but_may_be_deleted(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"^'{tmp_path}/none' cannot be watched: there is no such folder.$"):
        Watch([tmp_path / "none"])
    (tmp_path / "runs").mkdir()
    watch = Watch([tmp_path / "runs"])
    assert watch.look() == []
    (tmp_path / "runs").rmdir()
    assert watch.look() == []


def test_a_run_that_is_being_created_is_ignored(write_run: Any, tmp_path: Path) -> None:
    run = write_run("one", finished=False, done=0)
    (run / "config.json").rename(run / ".starting.json")
    assert Watch([tmp_path]).look() == []


def test_a_run_is_running_while_a_process_holds_its_lock(write_run: Any, tmp_path: Path) -> None:
    run = write_run("one", finished=False, done=1)
    ProgressFile(run).write(HALF)
    watch = Watch([run])
    (seen,) = watch.look()
    assert (seen.running, seen.progress) == (False, None)
    with locked(run):
        (seen,) = watch.look()
        assert (seen.running, seen.progress, time_left(seen)) == (True, HALF, 75.0)
        (run / PROGRESS).write_text("{")
        (seen,) = watch.look()
        assert (seen.running, seen.progress) == (True, None)
        assert time_left(seen) == pytest.approx(3 * 4.1)  # three epochs of what the first took, with its evaluation
    (seen,) = watch.look()
    assert not seen.running


def test_the_status_of_runs(write_run: Any, tmp_path: Path) -> None:
    run = write_run("one", finished=False, done=1)
    stopped, begun = write_run("two", finished=False, done=2), write_run("three", finished=False, done=0)
    write_run("four", seed=1)
    ProgressFile(run).write(HALF)
    with locked(run):
        now = run_status(Watch([tmp_path]).look())
    assert now.heading == "1 running, 2 stopped or waiting, 1 finished"
    assert now.runs is not None
    cells = [[cell.text for cell in row] for row in now.runs.rows]
    assert cells[0] == ["one", "adagp", "running", "2 of 4", "15 of 40", "GP", "60%", "1", "0.5", "25.00%", "75 s"]
    assert [row[:5] for row in cells[1:]] == [
        [begun.name, "adagp", "waiting", "0 of 4", "–"],
        [stopped.name, "adagp", "stopped", "2 of 4", "20"],
    ]
    assert run_status([]).heading == "no run yet"


def test_the_remaining_runs_of_a_comparison(write_run: Any, tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(f"vgg/runs/bp-{seed}", method="bp", seed=seed)  # 16.4 s with evaluation
    run = write_run("vgg/runs/ada-0", finished=False, done=1)
    ProgressFile(run).write(HALF)
    content = {"entries": [{}, {}], "seeds": 2, "regimes": ["batches", "seconds"], "curve": [0.5, 1]}
    (tmp_path / "vgg" / "comparison.json").write_text(json.dumps(content))
    with locked(run):
        now = run_status(Watch([tmp_path]).look())
    # two seeds of backprop, of another method at equal batches and at equal seconds, and of half as much backprop: 8
    assert now.comparisons == ("Comparison vgg: 2 of about 8 runs are finished, about 3 min left.",)
    assert run_status(Watch([tmp_path]).look()).comparisons == ()


def test_formatted_durations() -> None:
    assert [duration(seconds) for seconds in (0.4, 89, 91, 3599, 12000, 200000)] == [
        *("0 s", "89 s", "2 min", "1 h 0 min"),
        *("3 h 20 min", "2 d 7 h"),
    ]


@pytest.mark.medium
def test_links_to_themselves_and_deep_folders_hide_no_run(write_run: Any, tmp_path: Path) -> None:
    write_run("study/one")
    (tmp_path / "study" / "loop").symlink_to("loop")
    (tmp_path / "study" / "up").symlink_to("..")
    assert [run.record.name for run in Watch([tmp_path / "study"]).look()] == ["one"]
    assert [run.name for run in collect([tmp_path / "study"])] == ["one"]
    folder = os.open(tmp_path / "study", os.O_RDONLY)
    for _ in range(2500):  # more than a path may be long, more than Python calls may be nested
        os.mkdir("a", dir_fd=folder)
        inner = os.open("a", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    try:
        assert [run.record.name for run in Watch([tmp_path / "study"]).look()] == ["one"]
        assert [run.name for run in collect([tmp_path / "study"])] == ["one"]
    finally:
        subprocess.run(["rm", "-r", tmp_path / "study" / "a"], check=True)  # too deep for Python
