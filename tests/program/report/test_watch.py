import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from adagp.errors import RunError
from adagp.program.report.watch import Watch, duration, run_status, time_left
from adagp.program.run.folder import PROGRESS, ProgressFile, RunProgress, locked
from adagp.program.run.record import collect

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
