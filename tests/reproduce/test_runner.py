"""Several processes: the same results, and what is left when the program is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import adagp
from adagp.errors import AdagpError
from adagp.reproduce.kernels import time_kernels
from adagp.reproduce.parts import Part, Place
from adagp.reproduce.runner import run_parts
from adagp.reproduce.training import group

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(adagp.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


def kernel(channels: int) -> Part:
    return Part(time_kernels, str(channels), {"channels": channels, "size": 4, "samples": 2, "rounds": 1})


def test_processes_do_every_part_once_and_errors_come_through(tmp_path: Path) -> None:
    place, told = Place(tmp_path), []
    parts = [kernel(channels) for channels in (2, 3, 4)]
    assert run_parts(parts, place, jobs=2, tell=lambda part: told.append(part))
    assert sorted(part.key for part in told) == sorted(part.key for part in parts)
    assert all(set(place.result(part)) == {"exact", "approximated"} for part in parts)
    (missing,) = group(1, dataset="cifar10", model="resnet14", epochs=1, method="bp").parts
    with pytest.raises(AdagpError, match=r"^data set 'cifar10' is not in "):
        run_parts([missing], Place(tmp_path, data_dir=tmp_path), jobs=2, tell=lambda part: None)


def test_a_request_to_stop_reaches_the_processes(tmp_path: Path) -> None:
    part = group(1, dataset="digits", epochs=2000, method="bp").parts[0]
    begun = Place(tmp_path).run_folder(part) / "checkpoint.pt"
    place = Place(tmp_path, stop=begun.is_file)
    assert not run_parts([part], place, jobs=2, tell=lambda part: None)
    assert begun.is_file()
    assert not place.finished(part)


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_killed_and_begun_again_it_does_not_repeat_finished_parts(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "adagp", "reproduce", "approximation-table1", "--jobs", "2", "--out", str(out)]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (kept := list(out.glob("parts/*.json"))):
        assert process.poll() is None
        time.sleep(0.01)
    workers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    while any(map(alive, workers)):
        time.sleep(0.01)
    kept = list(out.glob("parts/*.json"))
    assert 1 <= len(kept) < 8
    assert not (out / "verdicts.md").exists()
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in kept}
    again = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert f"Parts: 8, finished before: {len(kept)}, at a time: 2." in again.stderr
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in kept} == before
    assert len(list(out.glob("parts/*.json"))) == 8
    verdicts = json.loads((out / "approximation-table1" / "verdict.json").read_text())
    assert [row["verdict"] for row in verdicts[:8]] == ["not comparable"] * 8
    for name in ("table.csv", "figure.svg", "figure.png", "verdict.csv"):
        assert (out / "approximation-table1" / name).stat().st_size > 0
