"""A user's own loop in two processes: the copies stay equal, whatever a source produces and whatever the guard says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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


def test_the_copies_stay_equal(tmp_path: Path, python: Callable[..., Any]) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = python(program, tmp_path / "meeting")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == (
        "a schedule that takes some sites from a source and others by backprop does not work in a loop of several "
        "processes: DDP waits for the gradients of all parameters. Use one whose GP batches have no backward pass."
    )
