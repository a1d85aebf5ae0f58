"""The processes of a run: ranks, collectives that count the bytes sent, and what happens when a process dies or hangs."""

import hashlib
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from adagp.errors import OptionError, RunError
from adagp.program.jobs import die_with_parent

TIMEOUT = 300.0
"""Seconds that a process waits for another one that is alive but sends nothing. A dead one is noticed at once."""
LAST_SECONDS = 5.0
"""Seconds in which a process that has failed must print its error and end."""
GRACE = 0.1
"""Fraction of the timeout within which the other processes time out as well."""


_HEARTBEAT = "signs of life"
_FORMED = 1
"""Tag of the message that a process has formed its groups."""
_TIMED_OUT = ("Timed out", "timed out", "timeout")
T = TypeVar("T")


class World:
    """All processes of a run, started by torchrun. `sent` counts bytes by phase and kind; `phase` is the running batch's.

    `waited` are the seconds by phase in which this process only waited for others.

    The bytes are what this process puts into a collective: the size of a tensor that is all-reduced (a ring moves 2 (size - 1)
    / size times as much), or of one that it sends to a neighbour.
    """

    def __init__(self, store: Store | None = None, timeout: float = TIMEOUT, lasting: Store | None = None) -> None:
        self.store = store
        self._lasting = lasting
        self.timeout = timeout
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._waited = 0
        self.phase = ""
        self.sent: Counter[tuple[str, str]] = Counter()
        self.waited: defaultdict[str, float] = defaultdict(float)

    @classmethod
    def join(cls, device: str, timeout: float = TIMEOUT) -> "World":
        """Form the process group with the other processes that torchrun started; from now on this one dies with torchrun."""
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            raise OptionError(
                "--parallel needs processes: start them with torchrun --nproc-per-node 4 -m adagp train --parallel ..."
            )
        if sys.platform == "linux":
            die_with_parent(os.getppid())
        limit = timedelta(seconds=timeout)
        try:
            lasting, rank, size = next(rendezvous("env://", timeout=limit))
            store = PrefixStore(f"adagp/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", lasting)
            dist.init_process_group(backend_for(device), store=store, rank=rank, world_size=size, timeout=limit)
        except dist.DistError as error:
            raise RunError(
                f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} could not connect to the others within "
                f"{timeout:g} seconds "
                f"(--timeout): {str(error).splitlines()[0]}"
            ) from None
        return cls(store, timeout, lasting)

    @contextmanager
    def ending_soon(self) -> Iterator[None]:
        """End this process within a few seconds if the context is left by an error, even if one of its threads hangs.

        Others wait for it as long as it is alive: a checkpoint that is being written must not keep it alive.
        """
        try:
            yield
        except BaseException:
            if self.size > 1:
                deadline = threading.Timer(LAST_SECONDS, os._exit, [2])
                deadline.daemon = True
                deadline.start()
            raise

    @contextmanager
    def forming_groups(self) -> Iterator[None]:
        """End this process if another one dies inside the context, in which all of them form groups.

        When forming a group, gloo waits for a dead process as long as for a slow one. So a thread receives from the previous
        rank, which sends when it is done: the receive fails at once if that one dies, and so on from rank to rank.
        """
        if self.size == 1:
            yield
            return
        arrival = dist.irecv(torch.zeros(1), (self.rank - 1) % self.size, tag=_FORMED)
        watch = threading.Thread(target=self._end_with, args=[arrival], daemon=True)
        watch.start()
        yield
        sent = dist.isend(torch.ones(1), (self.rank + 1) % self.size, tag=_FORMED)
        assert sent is not None
        sent.wait()
        watch.join()

    def _end_with(self, arrival: dist.Work) -> None:
        try:
            arrival.wait()
        except RuntimeError:
            sys.stderr.write(
                f"error: process {self.rank} has lost another process of the run, which was about to begin.\n"
            )
            sys.stderr.flush()
            os._exit(2)  # the main thread waits in gloo, whatever is raised here

    def leave(self) -> None:
        """Destroy the process group."""
        dist.destroy_process_group()

    def count(self, kind: str, amount: int) -> None:
        """Count `amount` bytes as sent."""
        self.sent[self.phase, kind] += amount

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside the context as waiting for others."""
        start = time.perf_counter()
        yield
        self.waited[self.phase] += time.perf_counter() - start

    @torch.no_grad()
    def all_reduce(
        self, tensors: Sequence[Tensor], kind: str, scales: Iterable[float] = (), group: dist.ProcessGroup | None = None
    ) -> None:
        """Replace each tensor by its sum over the processes, each multiplied by its scale before (1 by default).

        One all-reduce of one flat tensor, whatever the number of tensors. All processes end with the same bits.
        """
        if not tensors:
            return
        factors = list(scales) or [1.0] * len(tensors)
        like = tensors[0]  # one type, one device
        scaled = [(tensor * factor).reshape(-1).to(like) for tensor, factor in zip(tensors, factors, strict=True)]
        flat = torch.cat(scaled)
        self.count(kind, flat.numel() * flat.element_size())
        with self.waiting():
            dist.all_reduce(flat, group=group)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def average(self, tensors: Sequence[Tensor], kind: str) -> None:
        """Replace each tensor by its mean over the processes."""
        self.all_reduce(tensors, kind, [1 / self.size] * len(tensors))

    def gather(self, value: Any) -> list[Any]:
        """Return the `value` of every process, in the order of ranks; it must be picklable."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def first_does(self, work: Any) -> Any:
        """Call `work` in the first process and return its result in all; an error there is raised everywhere."""
        result, problem = None, None
        if self.rank == 0:
            try:
                result = work()
            except Exception as error:
                problem = error
        message = [result, None if problem is None else f"{problem}"]
        dist.broadcast_object_list(message)
        if problem is not None:
            raise problem
        if message[1] is not None:
            raise RunError(message[1])
        return message[0]

    def first_word(self, name: str, proposal: str) -> str:
        """Return the first proposal under `name`: of the first process, before any restart by torchrun."""

        def settle() -> str:
            if self._lasting is None:
                return proposal
            if not self._lasting.check([f"adagp/{name}"]):
                self._lasting.set(f"adagp/{name}", proposal)
            return self._lasting.get(f"adagp/{name}").decode()

        return str(self.first_does(settle))

    def wait_for_first(self, work: Callable[[], T], otherwise: T) -> T:
        """Call `work` in the first process, which may take long; the others wait as long as its heartbeat goes on."""
        self._waited += 1
        done = f"done/{self._waited}"
        if self.store is None:
            return work() if self.rank == 0 else otherwise
        if self.rank == 0:
            with _Heartbeat(self.store, self.timeout / 10):
                result = work()
            self.store.set(done, "")
            return result
        beats = -1
        while True:
            try:
                self.store.wait([done], timedelta(seconds=self.timeout))
            except dist.DistStoreError:
                previous, beats = beats, self.store.add(_HEARTBEAT, 0)
                if beats == previous:
                    raise RunError(self._silence([0])) from None
            else:
                return otherwise

    def explain(self, error: RuntimeError) -> str | None:
        """Return which processes have been silent for too long, if the error of a collective is a timeout."""
        if self.store is None or not any(words in str(error) for words in _TIMED_OUT):
            return None
        self.store.set(f"late/{self.rank}", "")
        others = [rank for rank in range(self.size) if rank != self.rank]
        return self._silence([rank for rank in others if not self._is_late(rank)])

    def _is_late(self, rank: int) -> bool:
        """Return whether a process has timed out, too: then it is not the one that the others wait for."""
        assert self.store is not None
        end = time.monotonic() + max(1.0, GRACE * self.timeout)
        while not self.store.check([f"late/{rank}"]):
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def _silence(self, ranks: Sequence[int]) -> str:
        who = f"process{'' if len(ranks) == 1 else 'es'} {' and '.join(map(str, ranks))}" if ranks else "some process"
        return f"{who} sent nothing for {self.timeout:g} seconds (--timeout): stopped, or hung up."

    def compare(self, copies: dict[str, str], when: str) -> None:
        """Raise on every process if two of them have different digests under the same name."""
        seen: dict[str, tuple[str, int]] = {}
        for rank, digests in enumerate(self.gather(copies)):
            for name, digest in digests.items():
                first, holder = seen.setdefault(name, (digest, rank))
                if first != digest:
                    raise RunError(
                        f"the copies of {name} in the processes {holder} and {rank} differ {when}. The run is "
                        "stopped; its last checkpoint is from before that. A device or a source of randomness "
                        "differs between processes."
                    )


def backend_for(device: str) -> str:
    """Return the backends for tensors on `device` and, by gloo, for those in memory; select this process's device.

    `cuda` without a number is the device with this process's local rank.
    """
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return "gloo"
    if kind == "cuda" and not number and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return f"cpu:gloo,{kind}:{dist.get_default_backend_for_device(kind)}"


class _Heartbeat:
    """Increments a counter in the store from a thread; the counter of a stopped process stays the same."""

    def __init__(self, store: Store, seconds: float) -> None:
        self._store, self._seconds = store, seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _count(self) -> None:
        while not self._over.wait(self._seconds):
            self._store.add(_HEARTBEAT, 1)


def digest(tensors: Iterable[Tensor]) -> str:
    """Return a digest of the bits of `tensors`."""
    hashed = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()
