"""Loops as a user writes them, in forked processes with DDP or FSDP2, and the same loop in one process."""

import multiprocessing
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.conftest import no_garbage
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import adagp
from adagp.schedules import Ladder, Rung, Schedule, WarmUp

BATCH = 16
WORDS = 11


def small_vgg() -> nn.Module:
    """Four convolutions and two linear layers, no normalisation; some have fewer rows than four processes."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU()),
        nn.MaxPool2d(2),
        nn.Sequential(nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 10, 3, padding=1, groups=2), nn.ReLU()),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(40, 20),
        nn.ReLU(),
        nn.Linear(20, 3),
    )


class SmallTransformer(nn.Module):
    """A decoder-only language model of two layers. Sequences are as long as a share of a batch has samples."""

    batch_first = True

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        layers = (
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(16, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        """Return the scores of the next words."""
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        value = self.embedding(words)
        for layer in self.layers:
            value = layer(value, src_mask=mask, is_causal=True)
        scores: Tensor = self.head(value)
        return scores.clone()  # FSDP2 warns of views


MODELS: dict[str, Callable[[], nn.Module]] = {"vgg": small_vgg, "transformer": SmallTransformer}


def data(model: str, step: int) -> tuple[Tensor, Tensor]:
    """Return the whole batch number `step`."""
    generator = torch.Generator().manual_seed(step)
    if model == "vgg":
        images = torch.randn(BATCH, 3, 8, 8, generator=generator)
        return images, torch.randint(0, 3, (BATCH,), generator=generator)
    words = torch.randint(0, WORDS, (BATCH, 5), generator=generator)
    return words[:, :-1], words[:, 1:]


def loss_of(output: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy."""
    return F.cross_entropy(output.flatten(0, -2), targets.flatten())


def share(value: Tensor) -> Tensor:
    """Return this process's part of a whole batch."""
    if not dist.is_initialized():
        return value
    return value.chunk(dist.get_world_size())[dist.get_rank()]


def wrapped(model: nn.Module, way: str) -> nn.Module:
    """Return a model as a user has it: alone, in DDP, or sharded over a mesh of one or two dimensions."""
    if way == "alone":
        return model
    if way == "ddp":
        return DistributedDataParallel(model)
    shape = (2, dist.get_world_size() // 2) if way == "hsdp" else (dist.get_world_size(),)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "parts")[-len(shape) :])
    inner = model.layers if isinstance(model, SmallTransformer) else model
    for block in inner.children():
        if isinstance(block, nn.Sequential | nn.TransformerEncoderLayer):
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, eps=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, eps=1e-3),
}


def schedule_of(source: str) -> Schedule:
    """Three BP batches, then two of GP to one of BP."""
    return WarmUp(Ladder((Rung(2, 1),), source), batches=3, batches_per_epoch=1000)


class Loop:
    """A loop over batches: a model, its optimizer and, unless there is no method, a trainer."""

    def __init__(self, way: str, model: str, method: str | None, optimizer: str = "sgd", **options: Any) -> None:
        torch.manual_seed(0)
        self.kind = model
        self.model = wrapped(MODELS[model](), way)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.trainer: adagp.Trainer | None = None
        self.phases: list[str] = []
        if method is not None:
            given = {"schedule": "bp" if method == "bp" else schedule_of(adagp.METHODS[method].source)} | options
            own = {name: given.pop(name) for name in adagp.METHODS[method].defaults if name in given}
            chosen = adagp.NamedMethod(method, **own)
            self.trainer = adagp.attach(self.model, self.optimizer, chosen, length=adagp.Epochs(1, 1000), **given)

    def train(self, first: int, last: int) -> None:
        """Train on the batches `first` to `last`."""
        for step in range(first, last):
            inputs, targets = (share(one) for one in data(self.kind, step))
            if self.trainer is None:
                self.optimizer.zero_grad()
                loss_of(self.model(inputs), targets).backward()
                self.optimizer.step()
                continue
            result = self.trainer.step(inputs, targets, loss_of)  # which shows targets to those who look at them
            self.phases.append("guarded" if result.guarded else str(result.phase))

    def weights(self) -> dict[str, Tensor]:
        """Return the whole weights by their names in the model alone."""
        return gathered({name.removeprefix("module."): one for name, one in self.model.state_dict().items()})


def gathered(state: dict[str, Any]) -> dict[str, Tensor]:
    """Return whole tensors."""
    return {name: one.full_tensor() if isinstance(one, DTensor) else one.clone() for name, one in state.items()}


def is_same_everywhere(thing: object) -> bool:
    """Tell whether all processes have the same, bit by bit."""
    plain = {name: one.tolist() for name, one in thing.items()} if isinstance(thing, dict) else thing
    things: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(things, plain)
    return all(one == things[0] for one in things)


def _work(rank: int, size: int, folder: Path, job: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
        result = job(*arguments)
        torch.save(result, folder / f"{rank}.pt")
        dist.destroy_process_group()
    except BaseException:
        (folder / f"{rank}.txt").write_text(traceback.format_exc(), "utf-8")
        raise


def in_processes(folder: Path, size: int, job: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what `job` returns in each of `size` forked processes that have met; raise what was raised there."""
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_work, args=(rank, size, folder, job, arguments), daemon=True) for rank in range(size)
    ]
    with no_garbage():
        for process in processes:
            process.start()
    for process in processes:
        process.join(400)
        process.kill()
    problems = [path.read_text("utf-8") for path in sorted(folder.glob("*.txt"))]
    assert not problems, "\n".join(problems)
    assert [process.exitcode for process in processes] == [0] * size
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread, as the forked processes do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
