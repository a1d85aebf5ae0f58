"""Doing the parts that are not finished yet, several at a time, each in a process of one thread."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Event

from adagp.errors import RunError
from adagp.reproduce.parts import Part, Place, carry_out

Tell = Callable[[Part], None]
LOOK_SECONDS = 0.2
"""How often the waiting process looks whether somebody asked to stop."""


def run_parts(parts: Sequence[Part], place: Place, *, jobs: int, tell: Tell) -> bool:
    """Do all parts, the heaviest first, and tell of each as it is finished; return False if stopped before the end.

    `place.stop` is asked again and again; a training run then stops after its running batch, with a checkpoint.
    """
    waiting = sorted((part for part in parts if not place.finished(part)), key=lambda part: -part.weight)
    if jobs == 1:
        return all(_done(part, place, tell) for part in waiting)
    return _in_processes(waiting, place, jobs, tell)


def _done(part: Part, place: Place, tell: Tell) -> bool:
    if place.stop() or not carry_out(part, place):
        return False
    tell(part)
    return True


def _in_processes(parts: Sequence[Part], place: Place, jobs: int, tell: Tell) -> bool:
    context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads half
    event = context.Event()
    with ProcessPoolExecutor(jobs, context, _begin_worker, (event,)) as pool:
        # The place travels to the workers, the way to ask for a stop does not: they have the event.
        there = replace(place, stop=_Never())
        futures = {pool.submit(_work, part, there): part for part in parts}
        try:
            for future in _as_completed(list(futures), place, event):
                if future.result():
                    tell(futures[future])
        except BrokenProcessPool:
            raise RunError(
                "a process that did parts of the experiments died (was there too little memory?). "
                "Finished parts are kept: the same command goes on from there."
            ) from None
        finally:
            event.set()
            pool.shutdown(cancel_futures=True)
    return all(map(place.finished, parts))


def _as_completed(futures: list["Future[bool]"], place: Place, event: Event) -> Iterator["Future[bool]"]:
    left = set(futures)
    while left:
        done, left = wait(left, LOOK_SECONDS, FIRST_COMPLETED)
        yield from done
        if place.stop():
            event.set()
            for future in list(left):
                if future.cancel():
                    left.remove(future)


@dataclass(frozen=True)
class _Never:
    def __call__(self) -> bool:
        return False


_asked_to_stop: Event | None = None


def _begin_worker(event: Event) -> None:
    """Prepare a worker: it stops when the event is set, and dies when its parent does, however that ended."""
    global _asked_to_stop
    _asked_to_stop = event
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(part: Part, place: Place) -> bool:
    assert _asked_to_stop is not None
    if _asked_to_stop.is_set():
        return False
    return carry_out(part, replace(place, stop=_asked_to_stop.is_set))
