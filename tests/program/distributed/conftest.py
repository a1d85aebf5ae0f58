"""Runs in several processes, forked from this one: no interpreter has to start, so they take moments."""

import multiprocessing
import os
import shutil
import socket
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # which every optimizer imports: now, not in each fork
import torch.distributed as dist
from tests.conftest import no_garbage
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.pipelining import SplitPoint, pipeline

from adagp.program.distributed.checkpoint import CarefulReader, read_rest
from adagp.program.distributed.session import ParallelSession
from adagp.program.run import TrainConfig
from adagp.program.train.loop import BatchStatus
from adagp.program.train.session import Session

NETS = '''
import os
import torch
from torch import nn
from adagp.sources import PipelineSource

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

def small_vgg(classes, image):
    """Nine layers with weights: enough for two stages in each of four processes."""
    def convolution(inputs, outputs, stride=1):
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1), nn.ReLU(inplace=True))
    return nn.Sequential(
        convolution(image[0], 6), convolution(6, 6), convolution(6, 8, 2), convolution(8, 8), convolution(8, 8, 2),
        convolution(8, 8), nn.Flatten(), nn.Linear(8 * 4, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(),
        nn.Linear(12, classes),
    )

def speaker(vocabulary):
    """A small Transformer without dropout."""
    from adagp.models.transformer import Decoder
    return Decoder(vocabulary, 16, 24, layers=2, dropout=0.0)

def dense_net(classes, image):
    """A small DenseNet for images of 8x8."""
    from adagp.models.vision import load_torchvision
    model = load_torchvision("torchvision.models").DenseNet(4, (2, 1), 8, num_classes=classes)
    model.features.conv0, model.features.pool0 = nn.Conv2d(image[0], 8, 3, padding=1, bias=False), nn.Identity()
    return model

class Detector(nn.Module):
    """Answers in YOLO's three resolutions, without normalisation."""

    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 8, stride=8), nn.ReLU())
        self.heads = nn.ModuleList(nn.Conv2d(8, 3 * (5 + classes), 1) for _ in range(3))
        self.halve = nn.AvgPool2d(2)

    def forward(self, images):
        found, answers = self.body(images), []
        for head in self.heads:
            answer = head(found)
            answers.append(answer.view(len(answer), 3, -1, *answer.shape[2:]).permute(0, 1, 3, 4, 2).contiguous())
            found = self.halve(found)
        return tuple(answers)

def detector(classes):
    """A model for detection whose answers to an image do not depend on the others."""
    return Detector(classes)

class Counting(nn.Module):
    """Counts its calls, each process in its own way."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, value):
        if self.training:
            self.calls += int(os.environ.get("RANK", 0))
        return value

class Replayed(PipelineSource):
    """Produces the last true gradient, in pipelines as well."""

    learns = joins = True
    own_parallel = ("pipeline",)

    def __init__(self):
        self.last = {}

    def observe(self, sites, gradients):
        self.last |= {site.index: gradient.clone() for site, gradient in zip(sites, gradients)}

    def produce(self, sites):
        return [self.last[site.index].clone() if site.index in self.last else None for site in sites]

    def state_dict(self):
        return {"last": dict(self.last)}

    def load_state_dict(self, state):
        self.last = dict(state["last"])

    def site_state(self, sites):
        return {"last": {index: self.last[index] for index in self.last if index in sites}}

    def load_site_state(self, part):
        self.last |= part["last"]

def counting(classes, image):
    """A model whose copies drift apart."""
    return nn.Sequential(Counting(), nn.Flatten(), nn.Linear(image[1] * image[2], classes))
'''

OPTIONS: dict[str, Any] = {
    "model": "nets:plain",
    "method": "adagp",
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

    def on_batch(self, status: BatchStatus) -> None:
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
    checkpoint_seconds: float = 60.0
    data_dir: Path | None = None


def introduce(rank: int, size: int, port: int) -> None:
    """Tell this process who it is, as torchrun would."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}


def work(job: Job) -> None:
    """Run one process of a run; `accident` is called with the rank and the batch before each batch is noted."""
    introduce(job.rank, job.size, job.port)
    config = TrainConfig.from_dict(job.options, "test", foreign="drop")
    session = ParallelSession(config, checkpoint_seconds=job.checkpoint_seconds, data_dir=job.data_dir)
    loop = session.resume(job.folder) if job.resume else session.start(job.folder)
    seen = 0

    class Observer(Nobody):
        def on_batch(self, status: BatchStatus) -> None:
            nonlocal seen
            seen += 1
            if job.accident is not None:
                job.accident(job.rank, seen)

    session.run(loop, Observer(), lambda: job.stop_after is not None and seen >= job.stop_after)


Start = Callable[..., list[int | None]]


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_forks(target: Callable[..., None], arguments: list[tuple[Any, ...]]) -> list[int | None]:
    """Call `target` in a fork for each of `arguments`, and return how each of them ended."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=target, args=one, daemon=True) for one in arguments]
    with no_garbage():
        for process in processes:
            process.start()
    for process in processes:
        process.join(60)
    ended = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return ended


def plain_values(folder: Path) -> Any:
    """Return the plain values of the newest checkpoint of a parallel run that its processes had in common."""
    newest = max((folder / "checkpoints").iterdir(), key=lambda one: int(one.name))
    names = [path.name for path in newest.iterdir()]
    reader = CarefulReader(newest, names, 2**30)
    text = {"common": torch.empty(reader.tensors()["common"].size, dtype=torch.uint8)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there is one process: that is the idea
        load(text, storage_reader=reader, planner=DefaultLoadPlanner(flatten_state_dict=False), no_dist=True)
    return read_rest(text["common"])


@pytest.fixture(scope="session")
def tracer_ready() -> None:
    """Let torch's tracer import and keep what it needs here, once, and not in each fork."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        pipeline(model, (torch.ones(2, 2),), split_spec={"1": SplitPoint.BEGINNING})


@pytest.fixture
def one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be the only process of a group."""
    for name, value in (("RANK", 0), ("WORLD_SIZE", 1), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", free_port())):
        monkeypatch.setenv(name, str(value))
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


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
        known = ("resume", "stop_after", "accident", "checkpoint_seconds", "data_dir")
        plain = {name: options.pop(name) for name in known if name in options}
        port = free_port()
        settings = OPTIONS | {"parallel": parallel, "check_every": 3} | options
        return run_forks(work, [(Job(rank, size, port, settings, nets / folder, **plain),) for rank in range(size)])

    return run


@pytest.fixture(scope="session")
def trained_alone() -> dict[str, tuple[Path, dict[str, torch.Tensor]]]:
    """Return the run folders and weights of trainings in one process, by their options: many tests compare with the same."""
    return {}


@pytest.fixture
def alone(
    nets: Path,
    trained_alone: dict[str, tuple[Path, dict[str, torch.Tensor]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., dict[str, torch.Tensor]]:
    """Return a function that trains in this process, into the folder `alone`, and returns the weights."""

    def train(data_dir: Path | None, options: dict[str, Any]) -> dict[str, torch.Tensor]:
        session = Session(TrainConfig.from_dict(options, "test", foreign="drop"), data_dir=data_dir)
        session.run(session.start(nets / "alone", force=True), Nobody())
        return {name: tensor.clone() for name, tensor in session.model.state_dict().items()}

    def run(data_dir: Path | None = None, **options: Any) -> dict[str, torch.Tensor]:
        options = OPTIONS | options
        if data_dir is not None:
            return train(data_dir, options)
        key = repr(sorted(options.items()))
        if key not in trained_alone:
            weights = train(None, options)
            trained_alone[key] = (tmp_path_factory.mktemp("alone") / "run", weights)
            shutil.copytree(nets / "alone", trained_alone[key][0])
        folder, weights = trained_alone[key]
        shutil.rmtree(nets / "alone", ignore_errors=True)
        shutil.copytree(folder, nets / "alone")
        return weights

    return run
