"""Collective operations as rounds of messages, and their time on a fabric, with the links that messages share.

    ring    each chip sends one of p parts to the next in every round: p - 1 rounds to scatter the sums, as many to gather
            them. All-reduce: 2 (p - 1) (latency + n / (p B))
    tree    all-reduce sums whole tensors up a binomial tree and sends the sum down: 2 ceil(log2 p) (latency + n / B). Gathering
            alone doubles what a chip has in every round, scattering halves it: ceil(log2 p) latency + (p - 1) / p n / B
    auto    the quicker of the two

Each round waits for the previous one, whose results it sends on. The formulas hold if no messages share a link; on a given
fabric each round takes as long as its longest route and its busiest link.

`after_backward`, `waiting_for_weights` and `waiting_backward` return how much of an exchange between copies is not hidden
behind the passes. Gradients are exchanged in buckets, as in DDP, in the order of the backward pass, each bucket once all of its
gradients are known. Sharded weights are gathered in the same buckets, each during the pass through the previous bucket.
Exchanges never overlap each other.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from adagp.errors import unknown_name
from adagp.pipe.chips.fabric import Pair, Topology
from adagp.pipe.timeline import Link

ALGORITHMS = ("ring", "tree", "auto")
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all-reduce", "all-gather", "reduce-scatter"
Groups = tuple[tuple[int, ...], ...]
"""Chips by group; all groups do the same at the same time."""


@dataclass(frozen=True)
class CommunicationRound:
    """Messages sent at once between places of a group, `repeats` times: each is `share` of the tensor."""

    pairs: tuple[Pair, ...]
    share: float
    repeats: int = 1


def rounds(operation: str, algorithm: str, size: int) -> list[CommunicationRound]:
    """Return the rounds of an operation in a group of `size` chips."""
    if size == 1:
        return []
    if algorithm == "ring":
        ring = tuple((position, (position + 1) % size) for position in range(size))
        return [CommunicationRound(ring, 1 / size, (size - 1) * (2 if operation == ALL_REDUCE else 1))]
    if operation == ALL_REDUCE:
        up = list(_binomial(size))
        down = [tuple((receiver, sender) for sender, receiver in pairs) for pairs in reversed(up)]
        return [CommunicationRound(pairs, 1.0) for pairs in (*up, *down)]
    # In the round of distance d each chip sends the d parts that it has so far; the last round, the parts that are left.
    doubling = [
        CommunicationRound(
            tuple((position, (position - distance) % size) for position in range(size)),
            min(distance, size - distance) / size,
        )
        for distance in _distances(size)
    ]
    return doubling if operation == ALL_GATHER else doubling[::-1]


def _distances(size: int) -> Iterator[int]:
    distance = 1
    while distance < size:
        yield distance
        distance *= 2


def _binomial(size: int) -> Iterator[tuple[Pair, ...]]:
    """Yield the messages of each round of a sum at place 0."""
    for distance in _distances(size):
        yield tuple((position + distance, position) for position in range(0, size - distance, 2 * distance))


@dataclass(frozen=True)
class Coefficients:
    """The time of an operation: `latencies` times a link's latency, and `volumes` times the tensor over its bandwidth."""

    latencies: float = 0.0
    volumes: float = 0.0

    def seconds(self, link: Link, amount: float) -> float:
        """Return the time for a tensor of `amount` bytes."""
        return self.latencies * link.latency + self.volumes * amount / link.bandwidth


@lru_cache(maxsize=1024)
def coefficients(topology: Topology, groups: Groups, operation: str, algorithm: str) -> Coefficients:
    """Return the coefficients of an operation by `ring` or `tree` in all `groups` at once, which have one size."""
    latencies = volumes = 0.0
    for step in rounds(operation, algorithm, len(groups[0])):
        traffic = topology.traffic(tuple((group[i], group[j]) for group in groups for i, j in step.pairs))
        latencies += step.repeats * traffic.hops
        volumes += step.repeats * traffic.sharing * step.share
    return Coefficients(latencies, volumes)


@dataclass(frozen=True)
class Fabric:
    """Chips that are joined by equal links, and the algorithm of their collective operations."""

    topology: Topology
    link: Link = field(default_factory=Link)
    algorithm: str = "ring"

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise unknown_name("collective algorithm", self.algorithm, list(ALGORITHMS))

    def seconds(self, operation: str, groups: Groups, amount: float, count: float = 1) -> float:
        """Return the time of `count` operations, one after the other, of `amount` bytes in all; groups work at once."""
        if len(groups[0]) == 1 or not count:
            return 0.0
        algorithms = ("ring", "tree") if self.algorithm == "auto" else (self.algorithm,)
        each = amount / count
        return count * min(
            coefficients(self.topology, groups, operation, name).seconds(self.link, each) for name in algorithms
        )

    def all_reduce(self, groups: Groups, amounts: Sequence[float]) -> float:
        """Return the time of all-reduces of these bytes, one after the other."""
        return sum(self.seconds(ALL_REDUCE, groups, amount) for amount in amounts)


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

    The next weights are requested as soon as the pass through the previous bucket begins, ahead of that pass's gradients.
    """
    gather, scatter = _unless_empty(gather), _unless_empty(scatter)
    amounts = [part.amount for part in parts]
    if not (parts and overlap):
        return sum(gather(amount) + scatter(amount) for amount in amounts)
    # Times: the pass is done up to here, the link is busy until, the weights of the next bucket arrive.
    done = 0.0
    link = arrived = gather(amounts[0])
    for part, upcoming in zip(parts, [*amounts[1:], 0.0], strict=True):
        done = max(done, arrived)
        link = arrived = max(link, done) + gather(upcoming)
        done += part.work
        link = max(link, done) + scatter(part.amount)
    return max(done, link) - sum(part.work for part in parts)


def _unless_empty(time: Time) -> Time:
    return lambda amount: time(amount) if amount else 0.0
