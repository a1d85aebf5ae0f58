"""Fabrics: routes by hand, and shared links against packets that wait for each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipe.chips.brute_force import ticks

from adagp.errors import OptionError
from adagp.pipe.chips import Topology, parse_fabric
from adagp.pipe.chips.fabric import Traffic


def test_routes_by_hand() -> None:
    ring = Topology("ring", 6)
    assert ring.route(4, 1) == [(4, 5), (5, 0), (0, 1)]
    assert ring.route(1, 0) == [(1, 0)]
    assert ring.route(2, 2) == []
    torus = Topology("torus", 12)
    assert (torus.rows, torus.columns, str(torus)) == (3, 4, "torus 3x4")
    assert [torus.place(chip) for chip in (3, 4, 7, 8)] == [(0, 3), (1, 3), (1, 0), (2, 0)], "a snake"
    assert torus.route(0, 5) == [((0, 0), (0, 1)), ((0, 1), (0, 2)), ((0, 2), (1, 2))]
    assert Topology("switch", 4).traffic(((0, 1), (2, 1))) == Traffic(hops=1, sharing=2), "one way into chip 1"


@pytest.mark.parametrize("topology", [Topology("ring", 8), Topology("torus", 16), Topology("torus", 12, (2, 6))])
def test_neighbours_in_number_are_joined(topology: Topology) -> None:
    shift = tuple((chip, (chip + 1) % topology.chips) for chip in range(topology.chips))
    assert topology.traffic(shift) == Traffic(hops=1, sharing=1)


@given(
    kind=st.sampled_from(["ring", "torus", "switch"]),
    chips=st.integers(2, 16),
    distance=st.integers(1, 15),
    packets=st.integers(1, 12),
)
def test_shifts_take_as_long_as_their_packets(kind: str, chips: int, distance: int, packets: int) -> None:
    """The busiest link carries all of its messages, and the last packet still has its way to go."""
    topology = Topology(kind, chips)
    pairs = tuple((chip, (chip + distance) % chips) for chip in range(chips))
    traffic = topology.traffic(pairs)
    taken, way = ticks(topology, pairs, packets), max(len(topology.route(*pair)) for pair in pairs)
    carried = traffic.sharing * packets
    assert carried <= taken <= carried + way * max(1, traffic.sharing)


@given(data=st.data(), chips=st.integers(2, 9), kind=st.sampled_from(["ring", "torus", "switch"]))
def test_any_messages_take_at_least_what_is_modelled(data: st.DataObject, chips: int, kind: str) -> None:
    place = st.integers(0, chips - 1)
    pairs = tuple(data.draw(st.lists(st.tuples(place, place), min_size=1, max_size=8)))
    topology = Topology(kind, chips)
    assert ticks(topology, pairs, 6) >= 6 * topology.traffic(pairs).sharing


def test_text_form_and_errors() -> None:
    assert parse_fabric("torus:2x8", 16) == Topology("torus", 16, (2, 8))
    assert parse_fabric("ring", 4) == Topology("ring", 4)
    for text, words in (
        ("torus:8", "cannot read the fabric 'torus:8'; write ring, torus, switch, or for example torus:4x8."),
        ("torus:3x5", "a torus of 3x5 has 15 chips, not 16."),
        ("ring:4x4", "a ring has no sides; leave out '4x4'."),
    ):
        with pytest.raises(OptionError) as caught:
            parse_fabric(text, 16)
        assert str(caught.value) == words
    with pytest.raises(OptionError, match=r"^unknown fabric 'mesh'\. Choose from: ring, switch, torus\.$"):
        parse_fabric("mesh", 16)
    with pytest.raises(OptionError, match=r"^a fabric of 0 chips connects nothing; give 1 or more\.$"):
        Topology("ring", 0)
