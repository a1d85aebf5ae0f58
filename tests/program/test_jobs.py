"""Jobs in processes: done once, several at a time, failures told in a sentence, stopped on request, dead with their parent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.job_works import Work

from adagp.errors import RunError
from adagp.program.jobs import (
    Job,
    JobFailure,
    Stopped,
    affordable_jobs,
    report_share,
    run_jobs,
    usable_cores,
)

MakeJob = Callable[..., Job]


class Notes:
    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.ended: list[tuple[str, JobFailure | None]] = []
        self.shares: list[tuple[str, float]] = []

    def on_start(self, job: Job) -> None:
        self.running += 1
        self.most = max(self.most, self.running)

    def on_share(self, job: Job, share: float) -> None:
        self.shares.append((job.name, share))

    def on_end(self, job: Job, failure: JobFailure | None) -> None:
        self.running -= job.name != "done before"
        self.ended.append((job.name, failure))


@pytest.fixture
def job(tmp_path: Path) -> MakeJob:
    def make(name: str, kind: str = "work") -> Job:
        return Job(name, Work(kind, tmp_path / name), tmp_path / name, tmp_path / "logs" / f"{name}.log")

    return make


def started(folder: Path) -> dict[str, int]:
    """Return the jobs that were begun, in their order, with the ids of their processes."""
    return {name: int(pid) for name, pid in (line.split() for line in (folder / "started").read_text().splitlines())}


def test_what_is_left_is_done_and_a_failure_holds_nobody_up(job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "done before").touch()
    kinds = {"one": "work", "rejected": "reject", "broken": "break", "two": "work", "idle": "nothing", "three": "work"}
    jobs = [job("done before"), *(job(name, kind) for name, kind in kinds.items())]
    notes = Notes()
    failures = run_jobs(jobs, 2, notes)
    assert {one.name: one.reason for one in failures} == {
        "rejected": "it went wrong.",
        "broken": "ValueError: no such thing",
        "idle": "it ended without a result.",
    }
    assert sorted(name for name, failure in notes.ended if failure is None) == ["done before", "one", "three", "two"]
    assert (notes.running, notes.most) == (0, 2)
    begun = started(tmp_path)
    assert sorted(begun) == sorted(kinds)
    assert len(set(begun.values())) == 2  # processes go on to the next job, also after one that failed
    assert (tmp_path / "one").read_text() == "1"
    logs = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert sorted(logs) == ["broken.log", "rejected.log"]
    assert logs["rejected.log"] == "a last word\nerror: it went wrong.\n"
    assert logs["broken.log"].endswith("ValueError: no such thing\n")
    assert run_jobs([job("one")], 2, Notes()) == []
    assert len(started(tmp_path)) == len(kinds)


def test_a_dead_process_is_replaced(job: MakeJob, tmp_path: Path) -> None:
    (failure,) = run_jobs([job("dead", "die"), job("next")], 1, Notes())
    assert failure == JobFailure(
        "dead", "its process died (exit code -9; was there too little memory?).", tmp_path / "logs" / "dead.log"
    )
    assert (tmp_path / "next").exists()


def test_fresh_processes_do_one_job_each(job: MakeJob, tmp_path: Path) -> None:
    assert run_jobs([job("one"), job("two")], 1, Notes(), fresh=True) == []
    assert len(set(started(tmp_path).values())) == 2


def test_a_job_tells_how_much_of_it_is_done(job: MakeJob) -> None:
    """As often as it likes: some of it is passed on, before the job is over, and the next job of the process tells anew."""
    notes = Notes()
    assert run_jobs([job("told", "tell"), job("next", "tell")], 1, notes) == []
    shares = {name: [share for own, share in notes.shares if own == name] for name in ("told", "next")}
    assert shares["told"][0] == 0.25
    assert len(shares["told"]) < 1000, "what comes too fast is left out"
    assert [name for name, _ in notes.ended] == ["told", "next"]
    report_share(0.5)  # outside of a job nobody is told
    assert all(share in (0.25, 0.75) for own in shares.values() for share in own)


def test_asked_to_stop_it_asks_the_processes_and_starts_no_more(job: MakeJob, tmp_path: Path) -> None:
    notes = Notes()
    with pytest.raises(Stopped):
        run_jobs([job("slow", "wait"), job("later")], 1, notes, (tmp_path / "started").exists)
    assert (tmp_path / "stopped").exists()
    assert list(started(tmp_path)) == ["slow"]
    assert notes.ended == []


def test_a_second_interrupt_leaves_no_process_behind(job: MakeJob, tmp_path: Path) -> None:
    def stop() -> bool:
        if (tmp_path / "started").exists() and (tmp_path / "started").read_text():
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        run_jobs([job("slow", "hang")], 1, Notes(), stop)
    assert not alive(started(tmp_path)["slow"])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


PARENT = """
import sys
from pathlib import Path
from adagp.program.jobs import Job, run_jobs
from tests.job_works import Work
from tests.program.test_jobs import Notes

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    run_jobs([Job(name, Work("hang", folder / name), folder / name, folder / "log" / name) for name in "ab"], 2, Notes())
"""


@pytest.mark.medium
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_killed_it_takes_its_processes_along(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    path = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "src")])
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py"), str(tmp_path)], env={**os.environ, "PYTHONPATH": path}
    )
    while not (tmp_path / "started").exists() or len(started(tmp_path)) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    workers = started(tmp_path).values()
    assert all(map(alive, workers))
    process.send_signal(signal.SIGKILL)
    process.wait()
    while any(map(alive, workers)):  # the kernel ends them; nobody else does
        time.sleep(0.01)
    assert not (tmp_path / "a").exists()


def test_a_process_whose_parent_is_dead_already_ends(python: Callable[..., Any]) -> None:
    words = "from adagp.program.jobs import die_with_parent; die_with_parent({parent}); print('alive')"
    assert python("-c", words.format(parent=os.getpid())).stdout == "alive\n"
    ended = python("-c", words.format(parent=1))
    assert (ended.returncode, ended.stdout) == (1, "")


def test_cores_and_memory_decide_how_many_at_once() -> None:
    assert affordable_jobs(100, 1000, 4) == 4
    assert affordable_jobs(100, 300, 4) == 2  # 80% of 300
    assert affordable_jobs(100, 50, 4) == 1
    assert affordable_jobs(100, None, 4) == 4
    assert usable_cores() >= 1


def test_a_system_without_semaphores_is_named(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", fail)
    with pytest.raises(RunError) as caught:
        run_jobs([job("one")], 1, Notes())
    assert str(caught.value) == (
        "cannot start processes for jobs: No such file or directory. The system needs a writable /dev/shm."
    )
