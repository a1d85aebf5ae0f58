"""What a user's own loop sends in BP and GP batches under DDP and FSDP2: `python -m benchmarks.own_loop_bytes`.

Four processes over gloo, a share of 8 samples each. Megabytes of the tensors that are exchanged in a batch, by kind.
"""

import os
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import adagp
from adagp.models import build_model
from benchmarks.collectives import KINDS, count
from benchmarks.processes import run_in_processes

PROCESSES = 4
SHARE = 8
WAYS = ("DDP", "FSDP2", "FSDP2, mesh 2x2")


def vgg() -> nn.Module:
    """The thirteen-layer VGG of CIFAR's size."""
    return build_model("vgg13", classes=10, image=(3, 32, 32))


class LanguageModel(nn.Module):
    """Six layers of a Transformer with 256 channels, over sequences of 32 out of 1,000 words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 256)
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True) for _ in range(6))
        )
        self.head = nn.Linear(256, 1000)

    def forward(self, words: Tensor) -> Tensor:
        """Return the scores of the words."""
        scores: Tensor = self.head(self.layers(self.embedding(words)))
        return scores.clone()  # FSDP2 warns of views


def wrapped(model: nn.Module, way: str) -> nn.Module:
    """Return a model in DDP, or sharded block by block."""
    if way == "DDP":
        return DistributedDataParallel(model)
    shape = (PROCESSES,) if way == "FSDP2" else (2, PROCESSES // 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "parts")[-len(shape) :])
    for block in model.modules():
        if isinstance(block, nn.TransformerEncoderLayer):
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def batch(name: str) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of a share."""
    if name == "VGG13":
        return torch.randn(SHARE, 3, 32, 32), torch.randint(0, 10, (SHARE,))
    words = torch.randint(0, 1000, (SHARE, 33))
    return words[:, :-1], words[:, 1:]


def loss_of(output: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy."""
    return F.cross_entropy(output.flatten(0, -2), targets.flatten())


def work(rank: int, port: int) -> None:
    """Be one of the processes; the first one prints the tables."""
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(PROCESSES),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    dist.init_process_group("gloo")
    for name, build in (("VGG13", vgg), ("Transformer", LanguageModel)):
        if rank == 0:
            print(f"\n| {name} | method, phase | {' | '.join(KINDS)} |\n|---|---|{'---|' * len(KINDS)}")
        for way in WAYS:
            for method in ("bp", "adagp", "feedback"):
                lines(name, wrapped(build(), way), way, method)
    dist.destroy_process_group()


def lines(name: str, model: nn.Module, way: str, method: str) -> None:
    """Print what a late batch of each phase sends, when all that is made once has been made."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    options: dict[str, Any] = {} if method == "bp" else {"schedule": "1:1", "warmup": 2}
    named = adagp.NamedMethod(method, **({"features": 16} if method == "feedback" else {}))
    trainer = adagp.attach(
        model, optimizer, steps=100, method=named, engine=adagp.EngineOptions(metrics_every=0), **options
    )
    sent = {}
    for _ in range(6):
        phase = str(trainer.phase)
        inputs, targets = batch(name)
        sent[phase] = count(partial(trainer.step, inputs, targets, loss_of)).sent
    for phase in ("bp", "gp"):
        if dist.get_rank() == 0 and phase in sent:
            cells = " | ".join(f"{sent[phase][kind] / 1e6:.3f}" if sent[phase][kind] else "" for kind in KINDS)
            print(f"| {way} | {method}, {phase.upper()} | {cells} |", flush=True)


if __name__ == "__main__":
    run_in_processes(work, PROCESSES)
