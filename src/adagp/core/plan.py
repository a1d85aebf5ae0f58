"""The one idea of adagp: each batch is trained under a plan.

A **site** is a layer whose weight gradient we can take from somewhere else than backpropagation. A **plan** names, for
one batch, the **source** of every site's weight gradient. A **schedule** (`adagp.schedules`) is a pure function from the
step to a plan. The engine (`adagp.engine.trainer`) derives from the plan what has to be computed, and computes nothing else.
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

BACKPROP = "backprop"
"""The name of the source that is not a source: autograd itself."""


class Phase(StrEnum):
    """What a batch is called in tables and metrics."""

    WARMUP = "warmup"
    BP = "bp"
    GP = "gp"


@dataclass(frozen=True)
class Step:
    """One batch's place in a run. All counts start at 0."""

    epoch: int
    batch: int


@dataclass(frozen=True, init=False)
class Plan:
    """Where each site's weight gradient comes from in one batch.

    `default` is the source of every site that `by_site` does not name. With `hold_rest` parameters that belong to
    no site (biases, normalisation, embeddings, unknown layers) are frozen; else backprop trains them. A plan without a
    backward pass freezes them in any case. `frozen` names those that are frozen while the others are trained: those below
    the layer at which the backward pass stops. `held` is its former name.
    """

    phase: Phase
    default: str = BACKPROP
    by_site: Mapping[str, str] = field(default_factory=dict)
    hold_rest: bool = False
    frozen: frozenset[str] = frozenset()

    def __init__(
        self,
        phase: Phase,
        default: str = BACKPROP,
        by_site: Mapping[str, str] | None = None,
        hold_rest: bool = False,
        frozen: frozenset[str] = frozenset(),
        *,
        held: frozenset[str] | None = None,
    ) -> None:
        if held is not None:
            warnings.warn("Plan(held=...) is deprecated: use Plan(frozen=...).", DeprecationWarning, stacklevel=2)
            frozen = frozen | held
        fields = {
            "phase": phase,
            "default": default,
            "by_site": by_site or {},
            "hold_rest": hold_rest,
            "frozen": frozen,
        }
        vars(self).update(fields)  # assignments are forbidden

    @property
    def held(self) -> frozenset[str]:
        """The former name of `frozen`."""
        warnings.warn("Plan.held is now Plan.frozen.", DeprecationWarning, stacklevel=2)
        return self.frozen

    def source_of(self, site: str) -> str:
        """Return the name of the source of `site`'s weight gradient."""
        return self.by_site.get(site, self.default)

    @property
    def has_true_gradients(self) -> bool:
        """Whether some sites are trained by backprop, so that a source may learn from the batch."""
        return BACKPROP in (self.default, *self.by_site.values())

    def freezes(self, parameter: str) -> bool:
        """Return whether a parameter that belongs to no site is frozen."""
        return self.hold_rest or parameter in self.frozen

    def sources(self, sites: Iterable[str]) -> dict[str, list[str]]:
        """Return the sites of each source, both in first-seen order."""
        groups: dict[str, list[str]] = {}
        for site in sites:
            groups.setdefault(self.source_of(site), []).append(site)
        return groups


WARM_UP = Plan(Phase.WARMUP)
BACKPROP_ALL = Plan(Phase.BP)


def predicted_plan(source: str) -> Plan:
    """Return the plan of Phase GP: every site from `source`, no backward pass, all other parameters frozen."""
    if source == BACKPROP:
        return Plan(Phase.BP)
    return Plan(Phase.GP, default=source, hold_rest=True)
