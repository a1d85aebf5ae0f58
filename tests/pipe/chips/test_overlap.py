"""What passes hide of an exchange: by hand, in the limits, and against a simulation moment by moment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.pipe.chips.overlap import Bucket, after_backward, buckets, waiting_backward, waiting_for_weights

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
