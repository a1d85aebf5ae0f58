"""What of a chip's exchange with its copies is left after the work that it can hide behind. Times have one unit.

Gradients are exchanged in buckets, as DDP does: in the order of the backward pass, each when all of its gradients are there.
Sharded weights are gathered in the same buckets, each before the pass through it, while the pass through the one before runs.
Exchanges take one after the other.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

Time = Callable[[float], float]
"""From bytes to the time of exchanging them."""


@dataclass(frozen=True)
class Bucket:
    """Layers whose weights, or gradients, are exchanged together: the time of the pass through them, and their bytes."""

    work: float
    amount: float


def buckets(parts: Iterable[Bucket], size: float) -> list[Bucket]:
    """Join consecutive parts until they have `size` bytes; a part is not cut."""
    joined: list[Bucket] = []
    work = amount = 0.0
    for part in parts:
        work, amount = work + part.work, amount + part.amount
        if amount >= size:
            joined.append(Bucket(work, amount))
            work = amount = 0.0
    return [*joined, Bucket(work, amount)] if work or amount else joined


def after_backward(parts: Sequence[Bucket], time: Time, *, overlap: bool) -> float:
    """Return how long after the backward pass the last gradients are exchanged; `parts` are in the order of that pass."""
    if not overlap:
        return sum(time(part.amount) for part in parts if part.amount)
    ready = finish = 0.0
    for part in parts:
        ready += part.work
        if part.amount:
            finish = max(finish, ready) + time(part.amount)
    return max(0.0, finish - ready)


def waiting_for_weights(parts: Sequence[Bucket], gather: Time, *, overlap: bool) -> float:
    """Return how much longer a pass takes whose weights are gathered; `parts` are in the order of the pass."""
    return waiting_backward(parts, gather, lambda amount: 0.0, overlap=overlap)


def waiting_backward(parts: Sequence[Bucket], gather: Time, scatter: Time, *, overlap: bool) -> float:
    """Return how much longer a backward pass takes whose weights are gathered and whose gradients are scattered.

    The next weights are asked for as soon as the pass begins with those before them, ahead of the gradients that it brings.
    """
    if not overlap:
        return sum(gather(part.amount) + scatter(part.amount) for part in parts if part.amount)
    link = done = 0.0
    arrived = [0.0] * len(parts)
    for index, part in enumerate(parts):
        if index == 0:
            link = arrived[0] = gather(part.amount) if part.amount else 0.0
        done = max(done, arrived[index])
        if index + 1 < len(parts):
            upcoming = parts[index + 1].amount
            link = arrived[index + 1] = max(link, done) + (gather(upcoming) if upcoming else 0.0)
        done += part.work
        link = max(link, done) + scatter(part.amount) if part.amount else link
    return max(done, link) - sum(part.work for part in parts)
