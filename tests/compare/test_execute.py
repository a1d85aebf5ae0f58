"""Jobs as processes: done once, several at a time, failures told, stopped on request."""

from collections.abc import Callable
from pathlib import Path

import pytest

from adagp.compare.execute import Failure, Job, Stopped, at_once, execute, free_memory, locked, processors
from adagp.errors import RunError

WORKER = """
import os, signal, sys, time
from pathlib import Path

what, result = sys.argv[1], Path(sys.argv[2])
with (result.parent / "started").open("a") as file:
    file.write(result.name + "\\n")
if what == "fail":
    print("\\n".join(f"line {number}" for number in range(9)), flush=True)
    sys.exit(3)
if what == "wait":
    def end(*_):
        (result.parent / "stopped").touch()
        sys.exit(130)
    signal.signal(signal.SIGTERM, end)
    (result.parent / "waiting").touch()
    time.sleep(60)
result.write_text(os.environ["OMP_NUM_THREADS"])
"""


class Notes:
    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.ended: list[tuple[str, Failure | None]] = []

    def on_start(self, job: Job) -> None:
        self.running += 1
        self.most = max(self.most, self.running)

    def on_end(self, job: Job, failure: Failure | None) -> None:
        self.running -= job.name not in ("done before",)
        self.ended.append((job.name, failure))


MakeJob = Callable[[str, str], Job]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeJob:
    (tmp_path / "compare_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(name: str, what: str = "work") -> Job:
        result = tmp_path / name
        return Job(name, lambda: ["compare_worker", what, str(result)], result, tmp_path / "logs" / f"{name}.log")

    return make


def never() -> bool:
    return False


def test_what_is_left_is_done_and_a_failure_holds_nobody_up(job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "done before").touch()
    jobs = [
        job("done before", "work"),
        job("one", "work"),
        job("bad", "fail"),
        job("two", "work"),
        job("three", "work"),
    ]
    notes = Notes()
    (failure,) = execute(jobs, 2, notes, never)
    assert failure == Failure(
        "bad", 3, tuple(f"line {number}" for number in range(4, 9)), tmp_path / "logs" / "bad.log"
    )
    assert sorted(notes.ended, key=lambda one: one[0]) == [
        ("bad", failure),
        *((name, None) for name in ("done before", "one", "three", "two")),
    ]
    assert notes.most == 2
    assert sorted((tmp_path / "started").read_text().split()) == ["bad", "one", "three", "two"]
    assert (tmp_path / "one").read_text() == "1"
    assert execute([job("one", "work")], 2, Notes(), never) == []
    assert len((tmp_path / "started").read_text().split()) == 4


def test_asked_to_stop_it_asks_the_processes_and_starts_no_more(job: MakeJob, tmp_path: Path) -> None:
    def stop() -> bool:
        return (tmp_path / "waiting").exists()

    with pytest.raises(Stopped):
        execute([job("slow", "wait"), job("later", "work")], 1, Notes(), stop)
    assert (tmp_path / "stopped").exists()
    assert (tmp_path / "started").read_text().split() == ["slow"]


def test_a_second_interrupt_leaves_no_process_behind(job: MakeJob, tmp_path: Path) -> None:
    def stop() -> bool:
        if (tmp_path / "waiting").exists():
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        execute([job("slow", "wait")], 1, Notes(), stop)
    assert not (tmp_path / "slow").exists()


def test_one_at_a_time_in_a_folder(tmp_path: Path) -> None:
    with locked(tmp_path) as lock, pytest.raises(RunError) as caught, locked(tmp_path):
        pass
    assert lock is not None
    assert str(caught.value) == f"another process is at work in '{tmp_path}'; wait for it, or end it first."
    with locked(tmp_path):
        pass


def test_a_process_left_over_holds_the_lock(job: MakeJob, tmp_path: Path) -> None:
    def stop() -> bool:
        if not (tmp_path / "waiting").exists():
            return False
        with pytest.raises(RunError, match="another process is at work"), locked(tmp_path):
            pass
        return True

    with locked(tmp_path) as lock:
        assert lock is not None
        descriptor = lock
        with pytest.raises(Stopped):
            execute([job("slow", "wait")], 1, Notes(), stop, descriptor)


def test_processors_and_memory_decide_how_many_at_once() -> None:
    assert at_once(100, 1000, 4) == 4
    assert at_once(100, 300, 4) == 2  # 80% of 300
    assert at_once(100, 50, 4) == 1
    assert at_once(100, None, 4) == 4
    assert processors() >= 1
    free = free_memory()
    assert free is None or free > 2**20
