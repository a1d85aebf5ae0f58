"""Works of jobs that processes started by the tests can import."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from adagp.errors import RunError
from adagp.program.jobs import Stop, report_share


@dataclass(frozen=True)
class Work:
    """Writes into `result` who did it, after what `kind` says."""

    kind: str
    result: Path

    def __call__(self, stop: Stop) -> None:
        with (self.result.parent / "started").open("a") as file:
            file.write(f"{self.result.name} {os.getpid()}\n")
        if self.kind == "reject":
            sys.stdout.write("a last word\n")
            raise RunError("it went wrong.")
        if self.kind == "break":
            raise ValueError("no such thing")
        if self.kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "wait":
            while not stop():
                time.sleep(0.01)
            (self.result.parent / "stopped").touch()
        if self.kind == "tell":
            report_share(0.25)
            for _ in range(1000):
                report_share(0.75)
        if self.kind in ("work", "hang", "tell"):
            time.sleep(3600 if self.kind == "hang" else 0)
            self.result.write_text(os.environ["OMP_NUM_THREADS"])
