"""Slow oracles: collectives message by message with their data, and messages packet by packet over shared wires."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from adagp.pipe.chips.fabric import Pair, Topology


@dataclass(frozen=True)
class Message:
    """Chunks of a tensor from one place to another: added to what is there, or put in its place."""

    sender: int
    receiver: int
    chunks: tuple[int, ...]
    adds: bool


def ring_messages(size: int, *, reduces: bool, gathers: bool) -> Iterator[list[Message]]:
    """Yield the messages of each round; after the first half place i has the sum of chunk i + 1."""
    for step in range(size - 1) if reduces else ():
        yield [Message(at, (at + 1) % size, ((at - step) % size,), True) for at in range(size)]
    for step in range(size - 1) if gathers else ():
        yield [Message(at, (at + 1) % size, ((at + 1 - step) % size,), False) for at in range(size)]


def tree_messages(size: int) -> Iterator[list[Message]]:
    """Yield the messages of a sum at place 0, then of the broadcast from there."""
    whole, distance, up = tuple(range(size)), 1, []
    while distance < size:
        up.append([(at + distance, at) for at in range(0, size, 2 * distance) if at + distance < size])
        distance *= 2
    for pairs in up:
        yield [Message(sender, receiver, whole, True) for sender, receiver in pairs]
    for pairs in up[::-1]:
        yield [Message(receiver, sender, whole, False) for sender, receiver in pairs]


def doubling_messages(size: int) -> Iterator[list[Message]]:
    """Yield the messages of a gathering in which each place has its own chunk at first (Bruck)."""
    distance = 1
    while distance < size:
        count = min(distance, size - distance)
        yield [
            Message(at, (at - distance) % size, tuple((at + number) % size for number in range(count)), False)
            for at in range(size)
        ]
        distance *= 2


def run(tensors: list[list[float | None]], rounds: Sequence[Sequence[Message]]) -> None:
    """Deliver all messages: those of a round at the same time."""
    for messages in rounds:
        carried = [[tensors[message.sender][chunk] for chunk in message.chunks] for message in messages]
        for message, values in zip(messages, carried, strict=True):
            for chunk, value in zip(message.chunks, values, strict=True):
                here = tensors[message.receiver][chunk]
                assert value is not None, "only what is there is sent"
                tensors[message.receiver][chunk] = value + here if message.adds and here is not None else value


def ticks(topology: Topology, pairs: Sequence[Pair], packets: int) -> int:
    """Return after how many ticks all packets have arrived: a wire carries one packet in a tick, first come, first served."""
    queues: dict[object, deque[tuple[int, int]]] = {}
    routes = [topology.route(sender, receiver) for sender, receiver in pairs]
    for _ in range(packets):
        for number, route in enumerate(routes):
            if route:
                queues.setdefault(route[0], deque()).append((number, 0))
    clock = 0
    while any(queues.values()):
        clock += 1
        moved = [queue.popleft() for queue in queues.values() if queue]
        for number, hop in moved:
            if hop + 1 < len(routes[number]):
                queues.setdefault(routes[number][hop + 1], deque()).append((number, hop + 1))
    return clock
