"""Runs in several processes, forked from this one: no interpreter has to start, so they take moments."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # which every optimizer imports: now, not in each fork
from tests.conftest import nothing_to_collect

from adagp.distributed.session import ParallelSession
from adagp.run import TrainConfig
from adagp.train.loop import News
from adagp.train.session import Session

NETS = '''
import os
import torch
from torch import nn

def plain(classes, image):
    """Five layers with weights, no normalisation."""
    return nn.Sequential(
        nn.Conv2d(image[0], 6, 3, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True),
        nn.Flatten(), nn.Linear(8 * 16, 12), nn.ReLU(), nn.Linear(12, classes),
    )

def normalised(classes, image):
    """The same idea, with batch norm and dropout."""
    return nn.Sequential(
        nn.Conv2d(image[0], 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.1),
        nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, classes),
    )

class Counting(nn.Module):
    """Counts its calls, each process in its own way."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, value):
        if self.training:
            self.calls += int(os.environ.get("RANK", 0))
        return value

def counting(classes, image):
    """A model whose copies drift apart."""
    return nn.Sequential(Counting(), nn.Flatten(), nn.Linear(image[1] * image[2], classes))
'''

OPTIONS: dict[str, Any] = {
    "model": "nets:plain",
    "epochs": 2,
    "warmup": 1,
    "ratio": "2:1",
    "batch_size": 96,
    "lr": 0.05,
    "predictor_lr": 1e-2,
    "guard_limit": 1e6,
    "metrics_every": 2,
}
"""Fourteen batches of backprop, then two of GP to one of BP, with predictions large enough to matter."""


class Nobody:
    """An observer that does not look."""

    def on_batch(self, news: News) -> None:
        pass

    def on_epoch(self, row: dict[str, Any]) -> None:
        pass


@dataclass(frozen=True)
class Job:
    """One process's part: everything that it needs to know."""

    rank: int
    size: int
    port: int
    options: dict[str, Any]
    folder: Path
    resume: bool = False
    stop_after: int | None = None
    accident: Callable[[int, int], None] | None = None


def work(job: Job) -> None:
    """Run one process of a run; `accident` is called with the rank and the batch before each batch is noted."""
    os.environ |= {"RANK": str(job.rank), "WORLD_SIZE": str(job.size), "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(job.port), "LOCAL_RANK": str(job.rank)}
    session = ParallelSession(TrainConfig.from_dict(job.options, "test", foreign="drop"))
    loop = session.resume(job.folder) if job.resume else session.start(job.folder)
    seen = 0

    class Observer(Nobody):
        def on_batch(self, news: News) -> None:
            nonlocal seen
            seen += 1
            if job.accident is not None:
                job.accident(job.rank, seen)

    session.run(loop, Observer(), lambda: job.stop_after is not None and seen >= job.stop_after)


Start = Callable[..., list[int | None]]


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, in which we are, with the models of these tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "nets.py").write_text(NETS, "utf-8")
    return tmp_path


@pytest.fixture
def start(nets: Path) -> Start:
    """Return a function that runs a training in some processes and returns how each of them ended."""

    def run(size: int, folder: str, parallel: str, **options: Any) -> list[int | None]:
        plain = {name: options.pop(name) for name in ("resume", "stop_after", "accident") if name in options}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        context = multiprocessing.get_context("fork")
        settings = OPTIONS | {"parallel": parallel, "check_every": 3} | options
        jobs = [Job(rank, size, port, settings, nets / folder, **plain) for rank in range(size)]
        processes = [context.Process(target=work, args=(job,), daemon=True) for job in jobs]
        with nothing_to_collect():
            for process in processes:
                process.start()
        for process in processes:
            process.join(60)
        ended = [process.exitcode for process in processes]
        for process in processes:
            process.kill()
        return ended

    return run


@pytest.fixture
def alone(nets: Path) -> Callable[..., dict[str, torch.Tensor]]:
    """Return a function that trains in this process and returns the weights."""

    def run(**options: Any) -> dict[str, torch.Tensor]:
        session = Session(TrainConfig.from_dict(OPTIONS | options, "test", foreign="drop"))
        session.run(session.start(nets / "alone", force=True), Nobody())
        return dict(session.model.state_dict())

    return run
