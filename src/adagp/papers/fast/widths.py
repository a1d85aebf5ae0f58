"""In which mantissa widths the layers of a run were computed: shares of its batches, by site, as a run folder has them."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.hw.product import NOTHING, Cost
from adagp.papers.fast.chunks import BlockWidths

FLOAT_BITS = 32
"""What stands for single precision in a run's record."""
_SHARE = re.compile(r"share_w(\d+)a(\d+)(?:g(\d+))?")
Shares = Mapping[BlockWidths, float]
Figures = Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True)
class WidthShares:
    """The shares of batches at each widths, by site: of batches with a gradient (`backward`), and of those without.

    A layer that no site of the run is (an attention product) has the mean shares of all sites.
    """

    backward: Mapping[str, Shares]
    forward: Mapping[str, Shares]

    def of(self, layer: str, phase: Phase) -> Shares:
        """Return the shares of a layer in the batches of a phase; they add up to 1."""
        first, second = (self.forward, self.backward) if phase is Phase.GP else (self.backward, self.forward)
        table = first or second
        return table.get(layer) or mean_shares(table.values())

    @property
    def all(self) -> list[BlockWidths]:
        """All widths that occur, the least first."""
        tables = (*self.backward.values(), *self.forward.values())
        return sorted(
            {widths for shares in tables for widths in shares}, key=attrgetter("weights", "activations", "gradients")
        )

    @property
    def mean_passes(self) -> float:
        """Passes of the three products of training, in the mean over sites and batches with a gradient."""
        shares = mean_shares(self.backward.values())
        return sum(share * widths.training_passes for widths, share in shares.items())


FIXED = WidthShares({"": {BlockWidths(): 1.0}}, {})
"""Four bits everywhere: what is assumed of a run that was not recorded."""


def mean_shares(tables: Iterable[Shares]) -> Shares:
    """Return the mean of several shares."""
    found: dict[BlockWidths, float] = defaultdict(float)
    known = list(tables)
    for shares in known:
        for widths, share in shares.items():
            found[widths] += share / len(known)
    return dict(found)


def recorded_widths(epochs: Iterable[tuple[int, Figures]], group: int, exponent_bits: int) -> WidthShares | None:
    """Return the shares over epochs, each given by its batches and the figures of its sites; None if they have none."""
    counts: dict[bool, dict[str, dict[BlockWidths, float]]] = {True: {}, False: {}}
    for batches, sites in epochs:
        for site, figures in sites.items():
            for name, share in figures.items():
                match = _SHARE.fullmatch(name)
                if match is None or not share:
                    continue
                weights, activations, gradients = (int(bits or match[2]) for bits in match.groups())
                widths = BlockWidths(weights, activations, gradients, group, exponent_bits)
                table = counts[match[3] is not None].setdefault(site, {})
                table[widths] = table.get(widths, 0.0) + share * batches
    if not counts[True] and not counts[False]:
        return None
    backward, forward = (
        {
            site: {widths: count / sum(table.values()) for widths, count in table.items()}
            for site, table in counts[kind].items()
        }
        for kind in (True, False)
    )
    return WidthShares(backward, forward)


def refuse_float(widths: WidthShares | None) -> WidthShares:
    """Return widths that an array for block floating point can compute in; refuse single precision."""
    if widths is None or any(one.weights == FLOAT_BITS for one in widths.all):
        raise OptionError(
            "the run was trained in single precision, wholly or in part, in which the design 'fast' cannot compute; replay "
            "a run that was trained with --precision bfp4, fast or the like."
        )
    return widths


def mixed(costs: Mapping[BlockWidths, Cost], shares: Shares) -> Cost:
    """Return the mean cost of a layer's batches with these shares."""
    found = NOTHING
    for widths, share in shares.items():
        found += Cost(*[round(value * share) for value in costs[widths]])
    return found
