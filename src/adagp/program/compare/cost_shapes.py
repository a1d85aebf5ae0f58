"""The shapes of what a comparison keeps in its folder until it is continued: anybody may have written it."""

from collections.abc import Iterable, Mapping

from adagp.program.compare.comparison import BATCHES, FORMER, SECONDS
from adagp.program.run.documents import (
    ABSENT,
    AMOUNT,
    POSITIVE,
    WHOLE,
    Both,
    Either,
    Fields,
    Plain,
    Shape,
    TableOf,
    record_of,
)

MOST_TIMES = 1_000_000
"""How many times dearer one batch can be than another one."""
COSTS = Fields({"bp": POSITIVE, "gp": POSITIVE, "data": POSITIVE}, others=ABSENT, required=("data",))


def timing_shape(names: Iterable[str]) -> Shape:
    """Return the shape of the seconds of batches of the candidates `names`."""
    methods = record_of(dict.fromkeys(names, COSTS), others=ABSENT)
    comparable = Plain(f"costs of which none is {MOST_TIMES:,} times another one", _are_comparable)
    return record_of({"methods": Both(methods, comparable)})


def _are_comparable(methods: Mapping[str, Mapping[str, float]]) -> bool:
    dearest = max(sum(costs.values()) for costs in methods.values())
    cheapest = min(costs["data"] + min(costs.get(kind, dearest) for kind in ("bp", "gp")) for costs in methods.values())
    return dearest <= MOST_TIMES * cheapest


def calibration_shape(names: Iterable[str], batches: int) -> Shape:
    """Return the shape of a calibration of the candidates `names`, with runs of `batches` in the regime of equal ones."""
    most = MOST_TIMES * batches
    former = {now: before for before, now in FORMER.items()}
    seconds = Either(
        record_of({BATCHES: AMOUNT, SECONDS: AMOUNT}), record_of({former[BATCHES]: AMOUNT, SECONDS: AMOUNT})
    )
    fitting = Plain(f"a whole number from 1 to {most:,}", lambda value: WHOLE.accepted(value) and value <= most)
    found = record_of({"cost": TableOf(AMOUNT), "batches": fitting, "seconds": seconds})
    return record_of({"budget_seconds": AMOUNT, "methods": record_of(dict.fromkeys(names, found), others=ABSENT)})
