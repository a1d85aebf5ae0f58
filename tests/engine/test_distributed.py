"""A user's own loop in two processes: the copies stay equal, whatever a source produces and whatever the guard says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import adagp
from adagp.errors import ModelError

pytestmark = pytest.mark.medium

PROGRAM = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import adagp
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
        trainer = adagp.attach(model, optimizer, length=adagp.Epochs(1, 100), schedule=schedule, **given)
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
from adagp.errors import AdagpError

dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
def net():
    return nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
parallel, both, parts, sharded, other = (net() for _ in range(5))
for model in (parallel, both):
    parallelize_module(model, mesh["tensor"], {"1": ColwiseParallel()})
fully_shard(both, mesh=mesh["data"])
fully_shard(parts[0], mesh=mesh["data"])
fully_shard(sharded, mesh=mesh["data"])
fully_shard(other[0], mesh=mesh["data"])
fully_shard(other[1], mesh=mesh["tensor"])
rejected = [(one, None) for one in (parallel, both, parts, other)]
rejected += [(sharded, adagp.EngineOptions(weight_hooks=adagp.DropBack(0.5))), (sharded, adagp.EngineOptions(precision="bfp4"))]
for model, engine in rejected:
    try:
        adagp.attach(model, torch.optim.SGD(model.parameters()), steps=30, engine=engine)
    except AdagpError as error:
        print(error)
adagp.attach(parts, torch.optim.SGD(parts.parameters()), steps=30, exclude=["1"]).detach()
dist.destroy_process_group()
"""


def test_weights_that_are_not_spread_by_fully_shard_alone_are_rejected(
    tmp_path: Path, python: Callable[..., Any]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(SPREAD)
    ended = python(program, tmp_path / "meeting")
    assert ended.returncode == 0, ended.stderr
    tensor_parallel = (
        "weight '1.weight' is a DTensor that is not sharded by fully_shard alone (tensor parallel): each process sees a part "
        "of its layer's outputs or inputs. Use fully_shard on a mesh of one or two dimensions, or DDP."
    )
    assert ended.stdout.splitlines() == [
        tensor_parallel,
        tensor_parallel,
        "the weight of layer '1' is not sharded over the processes, that of '0' is: fully_shard does not average its gradient. "
        "Shard it as well, or exclude it (exclude=['1']).",
        "the weights of layers '1' and '0' are sharded over different device meshes. Use one.",
        "DropBack ranks the weights of the whole model together; here each process holds a part of them (fully_shard). Use "
        "DDP, or leave out weight_hooks.",
        "precision 'bfp4' is for runs in one process: exponents and widths depend on the whole batch, but each process "
        "has only a share of it.",
    ]


def test_wrappers_with_copies_or_parts_of_the_model_are_rejected() -> None:
    class FullyShardedDataParallel(nn.Module):  # torch's own cannot be made without an accelerator
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    copied = nn.DataParallel(nn.Linear(5, 3))
    copied.device_ids = [0, 1]
    for model, words in (
        (copied, "nn.DataParallel on several devices"),
        (FullyShardedDataParallel(nn.Linear(5, 3)), "by FullyShardedDataParallel, which flattens"),
    ):
        with pytest.raises(ModelError, match=words):
            adagp.attach(model, torch.optim.SGD(model.parameters()), "replay", steps=30)


def test_the_copies_stay_equal(tmp_path: Path, python: Callable[..., Any]) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = python(program, tmp_path / "meeting")
    assert ended.returncode == 0, ended.stderr
