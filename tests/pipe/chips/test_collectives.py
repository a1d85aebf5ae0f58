"""Collectives: the alpha-beta formulas, their messages with data, and their time packet by packet on shared links."""

from collections import Counter
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipe.chips.brute_force import Message, doubling_messages, ring_messages, run, ticks, tree_messages

from adagp.errors import OptionError
from adagp.pipe.chips import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Fabric, Parallelism, Topology
from adagp.pipe.chips.collectives import (
    Bucket,
    after_backward,
    buckets,
    coefficients,
    rounds,
    waiting_backward,
    waiting_for_weights,
)
from adagp.pipe.timeline import Link

LINK = Link(2e9, 3e-6)


def one_group(size: int) -> tuple[tuple[int, ...], ...]:
    return (tuple(range(size)),)


@given(size=st.integers(1, 64), amount=st.floats(0, 1e9))
def test_the_formulas_hold_on_a_switch(size: int, amount: float) -> None:
    levels = ceil(log2(size))
    ring, tree, auto = (Fabric(Topology("switch", size), LINK, name) for name in ("ring", "tree", "auto"))
    byte, latency = 1 / LINK.bandwidth, LINK.latency
    half = (size - 1) * (latency + amount / size * byte)
    assert ring.seconds(ALL_REDUCE, one_group(size), amount) == pytest.approx(2 * half)
    for operation in (ALL_GATHER, REDUCE_SCATTER):
        assert ring.seconds(operation, one_group(size), amount) == pytest.approx(half)
        doubled = levels * latency + (size - 1) / size * amount * byte
        assert tree.seconds(operation, one_group(size), amount) == pytest.approx(doubled)
    whole = 2 * levels * (latency + amount * byte)
    assert tree.seconds(ALL_REDUCE, one_group(size), amount) == pytest.approx(whole)
    assert auto.seconds(ALL_REDUCE, one_group(size), amount) == pytest.approx(min(whole, 2 * half))


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 11])
def test_the_rounds_are_those_of_messages_that_do_it(size: int) -> None:
    """Each algorithm is written out with its data: it must end with the sums, and send what `rounds` has."""
    sums = [sum((place + 1) * (chunk + 2) for place in range(size)) for chunk in range(size)]
    own: list[list[float | None]]
    for algorithm, messages in (
        ("ring", list(ring_messages(size, reduces=True, gathers=True))),
        ("tree", list(tree_messages(size))),
    ):
        own = [[(place + 1.0) * (chunk + 2) for chunk in range(size)] for place in range(size)]
        run(own, messages)
        assert own == [sums] * size
        assert sent(messages, size) == modelled(ALL_REDUCE, algorithm, size)
    for algorithm, messages in (
        ("ring", list(ring_messages(size, reduces=False, gathers=True))),
        ("tree", list(doubling_messages(size))),
    ):
        first = 1 if algorithm == "ring" else 0
        own = [[float(c) if c == (place + first) % size else None for c in range(size)] for place in range(size)]
        run(own, messages)
        assert own == [[float(chunk) for chunk in range(size)]] * size
        assert sent(messages, size) == modelled(ALL_GATHER, algorithm, size)
        assert sum(modelled(REDUCE_SCATTER, algorithm, size).values()) == sum(sent(messages, size).values())


def sent(messages: list[list[Message]], size: int) -> Counter[tuple[int, int, float]]:
    """Return how often each pair of places sends which share of the tensor."""
    return Counter((one.sender, one.receiver, len(one.chunks) / size) for step in messages for one in step)


def modelled(operation: str, algorithm: str, size: int) -> Counter[tuple[int, int, float]]:
    counted: Counter[tuple[int, int, float]] = Counter()
    for step in rounds(operation, algorithm, size):
        counted.update({(*pair, step.share): step.repeats for pair in step.pairs})
    return counted


@pytest.mark.parametrize("kind", ["ring", "torus", "switch"])
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize("parallel", [Parallelism(data=16), Parallelism(4, 2, 2), Parallelism(2, 4, 2)], ids=str)
def test_groups_that_work_at_once_share_links(kind: str, algorithm: str, parallel: Parallelism) -> None:
    """Round by round, with packets that wait for each other, for all groups at the same time."""
    topology, packets = Topology(kind, 16), 24
    for groups in (parallel.data_groups, parallel.tensor_groups):
        size = len(groups[0])
        taken, slack = 0, 0
        for step in rounds(ALL_REDUCE, algorithm, size):
            pairs = [(group[i], group[j]) for group in groups for i, j in step.pairs]
            share = round(step.share * packets * 16)
            taken += step.repeats * ticks(topology, pairs, share)
            traffic = topology.traffic(tuple(pairs))
            slack += step.repeats * max(len(topology.route(*pair)) for pair in pairs) * traffic.sharing
        volume = coefficients(topology, groups, ALL_REDUCE, algorithm).volumes * packets * 16
        assert volume <= taken <= volume + slack
        assert slack <= 0.4 * volume


def test_a_switch_is_no_slower_than_a_ring_for_groups_across_it() -> None:
    groups = Parallelism(data=4, tensor=4).data_groups
    ring, switch = (Fabric(Topology(kind, 16), LINK) for kind in ("ring", "switch"))
    assert ring.seconds(ALL_REDUCE, groups, 1e6) > 3.9 * switch.seconds(ALL_REDUCE, groups, 1e6), "four share each link"


def test_several_operations_one_after_the_other() -> None:
    fabric = Fabric(Topology("switch", 4), LINK)
    parts = fabric.seconds(ALL_REDUCE, one_group(4), 1e3) + fabric.seconds(ALL_REDUCE, one_group(4), 3e3)
    assert fabric.all_reduce(one_group(4), [1e3, 3e3]) == pytest.approx(parts)
    assert fabric.seconds(ALL_REDUCE, one_group(4), 4e3, count=2) == pytest.approx(parts)
    assert fabric.seconds(ALL_REDUCE, one_group(4), 0, count=0) == 0
    with pytest.raises(OptionError, match="^unknown collective algorithm 'star'"):
        Fabric(Topology("switch", 4), LINK, "star")


PARTS = st.lists(st.builds(Bucket, st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6)


def identity(amount: float) -> float:
    return amount


def test_by_hand() -> None:
    parts = [Bucket(4, 3), Bucket(1, 3), Bucket(2, 1)]
    # ready at 4, 5, 7; exchanged until 7, 10, 11; the pass ends at 7
    assert after_backward(parts, identity, overlap=True) == 4
    assert after_backward(parts, identity, overlap=False) == 7
    # weights arrive at 3; 3 + 3 = 6, while the pass runs until 7; the third at 8 (asked for at 7), the pass waits for nothing
    assert waiting_for_weights(parts, identity, overlap=True) == 3
    assert waiting_for_weights(parts, identity, overlap=False) == 7


def test_buckets_are_joined_until_they_are_full() -> None:
    parts = [Bucket(1, 10), Bucket(2, 30), Bucket(3, 5), Bucket(4, 0)]
    assert buckets(parts, 25) == [Bucket(3, 40), Bucket(7, 5)]
    assert buckets(parts, 1) == [Bucket(1, 10), Bucket(2, 30), Bucket(3, 5), Bucket(4, 0)]
    assert buckets([], 25) == []


@given(PARTS)
def test_gradients_moment_by_moment(parts: list[Bucket]) -> None:
    """A link that sends one byte in a moment, of the first bucket that is ready."""
    ready, moment = [], 0.0
    for part in parts:
        moment += part.work
        ready.append(moment)
    end, left, clock = moment, [part.amount for part in parts], 0.0
    while any(left):
        first = next(index for index, amount in enumerate(left) if amount)
        if ready[first] <= clock:
            left[first] -= 1
        clock += 1
    assert after_backward(parts, identity, overlap=True) == max(0.0, clock - end)


@given(PARTS)
def test_waiting_is_between_nothing_hidden_and_all(parts: list[Bucket]) -> None:
    work, amount = sum(part.work for part in parts), sum(part.amount for part in parts)
    hidden, apart = (waiting_for_weights(parts, identity, overlap=overlap) for overlap in (True, False))
    assert max(0, amount - work) <= hidden <= apart == amount
    hidden, apart = (waiting_backward(parts, identity, identity, overlap=overlap) for overlap in (True, False))
    assert max(0, 2 * amount - work) <= hidden <= apart == 2 * amount
    assert waiting_backward(parts, identity, lambda amount: 0.0, overlap=True) == pytest.approx(
        waiting_for_weights(parts, identity, overlap=True)
    )
