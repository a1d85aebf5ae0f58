"""The processes of a run: who we are, adding up tensors, counting what was sent, comparing copies."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from adagp.errors import OptionError, RunError

TIME_OUT = timedelta(minutes=30)
"""How long a process waits for another one that is alive but sends nothing. A dead one is noticed at once."""


class World:
    """All processes of a run, started by torchrun. `sent` counts bytes by phase and kind; `phase` is the running batch's.

    The bytes are what this process puts into an exchange: the size of a tensor that is added up (a ring moves it twice, but
    for a share of 1 / size), or of one that it sends to a neighbour.
    """

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.phase = ""
        self.sent: Counter[tuple[str, str]] = Counter()

    @classmethod
    def join(cls, device: str, time_out: timedelta = TIME_OUT) -> "World":
        """Meet the other processes that torchrun started."""
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            raise OptionError(
                "--parallel needs processes: start them with torchrun --nproc-per-node 4 -m adagp train --parallel ..."
            )
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo", timeout=time_out)
        return cls()

    def leave(self) -> None:
        """Leave the process group, when nothing uses it any more."""
        dist.destroy_process_group()

    def count(self, kind: str, amount: int) -> None:
        """Note that `amount` bytes are sent."""
        self.sent[self.phase, kind] += amount

    @torch.no_grad()
    def add_up(
        self, tensors: Sequence[Tensor], kind: str, scales: Iterable[float] = (), among: dist.ProcessGroup | None = None
    ) -> None:
        """Replace each tensor by its sum over the processes, each multiplied by its scale before (1 if there are none).

        One exchange of one flat tensor, whatever the number of tensors. All processes end with the same bits.
        """
        if not tensors:
            return
        factors = list(scales) or [1.0] * len(tensors)
        kind_of = tensors[0].dtype
        flat = torch.cat([(one * factor).reshape(-1).to(kind_of) for one, factor in zip(tensors, factors, strict=True)])
        self.count(kind, flat.numel() * flat.element_size())
        dist.all_reduce(flat, group=among)
        for one, part in zip(tensors, flat.split([one.numel() for one in tensors]), strict=True):
            one.copy_(part.view_as(one))

    def average(self, tensors: Sequence[Tensor], kind: str) -> None:
        """Replace each tensor by its mean over the processes."""
        self.add_up(tensors, kind, [1 / self.size] * len(tensors))

    def gather(self, thing: Any) -> list[Any]:
        """Return every process's `thing` to all of them, in the order of ranks."""
        things: list[Any] = [None] * self.size
        dist.all_gather_object(things, thing)
        return things

    def first_does(self, work: Any) -> Any:
        """Let the first process call `work` and return its result to all; an error there is raised everywhere."""
        result, problem = None, None
        if self.rank == 0:
            try:
                result = work()
            except Exception as error:
                problem = error
        box = [result, None if problem is None else f"{problem}"]
        dist.broadcast_object_list(box)
        if problem is not None:
            raise problem
        if box[1] is not None:
            raise RunError(box[1])
        return box[0]

    def compare(self, copies: dict[str, str], when: str) -> None:
        """Raise on every process if two of them have different digests under the same name."""
        seen: dict[str, tuple[str, int]] = {}
        for rank, digests in enumerate(self.gather(copies)):
            for name, digest in digests.items():
                first, holder = seen.setdefault(name, (digest, rank))
                if first != digest:
                    raise RunError(
                        f"the copies of {name} in the processes {holder} and {rank} differ {when}. The run is stopped; "
                        "its last checkpoint is from before. A device or a source of randomness is not the same for all."
                    )


def digest(tensors: Iterable[Tensor]) -> str:
    """Return a digest of the bits of `tensors`."""
    found = hashlib.blake2b(digest_size=16)
    for one in tensors:
        found.update(one.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
