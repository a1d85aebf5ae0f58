"""A user's own loop in two processes: the copies stay equal, whatever a source produces and whatever the guard says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import adagp
from adagp.errors import ModelError

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import adagp
from adagp.errors import AdagpError
from adagp.schedules import Ladder, Rung, WarmUp

class Alone(adagp.Source):
    learns = True
    def produce(self, sites):
        value = torch.nan if dist.get_rank() else 1e-3
        return [torch.full_like(site.weight, value) for site in sites]

def train(rank, file):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=2)
    for source in ("predicted", "feedback", "dni", "remapped", "replay", "alone"):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = WarmUp(Ladder((Rung(2, 1),), source), batches=3, batches_per_epoch=100)
        given = {"sources": {source: Alone()}} if source == "alone" else {}
        trainer = adagp.attach(model, optimizer, epochs=1, batches_per_epoch=100, schedule=schedule, **given)
        torch.manual_seed(1 + rank)
        phases = []
        for _ in range(12):
            result = trainer.step(torch.randn(6, 5), torch.randint(0, 3, (6,)), F.cross_entropy)
            phases.append("guarded" if result.guarded else str(result.phase))
        flat = torch.cat([one.detach().flatten() for one in model.parameters()])
        both = [torch.empty_like(flat) for _ in range(2)]
        dist.all_gather(both, flat)
        assert torch.equal(*both), source
        assert ("gp" in phases) == (source != "alone"), phases
        assert ("guarded" in phases) == (source == "alone"), phases
        trainer.detach()
    try:
        adagp.attach(model, optimizer, epochs=1, batches_per_epoch=9, method="topk")
    except AdagpError as error:
        if rank == 0:
            print(error)
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.start_processes(train, (sys.argv[1],), nprocs=2, start_method="fork")  # they need not import torch again
"""


SPREAD = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import adagp
from adagp.errors import ModelError

dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
sharded, parallel = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
fully_shard(sharded, mesh=mesh)
parallelize_module(parallel, mesh, {"1": ColwiseParallel()})
for model in (sharded, parallel):
    try:
        adagp.attach(model, torch.optim.SGD(model.parameters()), steps=30)
    except ModelError as error:
        print(error)
dist.destroy_process_group()
"""


def test_weights_that_are_spread_over_devices_are_refused(tmp_path: Path, python: Callable[..., Any]) -> None:
    program = tmp_path / "program.py"
    program.write_text(SPREAD)
    ended = python(program, tmp_path / "meeting")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        f"weight '{name}' is a DTensor, spread over devices (FSDP, tensor parallel). adagp takes gradients of whole weights; "
        "use DDP, or one device."
        for name in ("0.weight", "1.weight")
    ]


def test_wrappers_with_copies_or_parts_of_the_model_are_refused() -> None:
    class FullyShardedDataParallel(nn.Module):  # torch's own cannot be made without an accelerator
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    copied = nn.DataParallel(nn.Linear(5, 3))
    copied.device_ids = [0, 1]
    for model, words in (
        (copied, "nn.DataParallel on several devices"),
        (FullyShardedDataParallel(nn.Linear(5, 3)), r"spread over devices \(FullyShardedDataParallel\)"),
    ):
        with pytest.raises(ModelError, match=words):
            adagp.attach(model, torch.optim.SGD(model.parameters()), steps=30)


def test_the_copies_stay_equal(tmp_path: Path, python: Callable[..., Any]) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = python(program, tmp_path / "meeting")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == (
        "a schedule that takes some sites from a source and others by backprop does not work in a loop of several "
        "processes: DDP waits for the gradients of all parameters. Use one whose GP batches have no backward pass."
    )
