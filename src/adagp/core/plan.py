"""The central idea of adagp: each batch is trained under a plan.

A **site** is a layer whose weight gradient can come from somewhere other than backpropagation. A **plan** names, for
one batch, the **source** of every site's weight gradient. A **schedule** (`adagp.schedules`) is a pure function from the
step to a plan. The engine (`adagp.engine.trainer`) derives from the plan what has to be computed, and computes nothing else.

A **step** is a batch's place in a run, whose length is given in epochs or in batches.
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from adagp.errors import OptionError

BACKPROP = "backprop"
"""The name that stands for autograd where plans name a source."""


class Phase(StrEnum):
    """The kind of a batch, as tables and metrics name it."""

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

    `default` is the source of every site that `by_site` does not name. With `hold_rest` all parameters that belong to no site
    (biases, normalisation, embeddings, unknown layers) are frozen; otherwise backprop trains them, except those that `frozen`
    names: the ones below the layer at which the backward pass stops. A plan without a backward pass freezes all of them.
    `held` is the former name of `frozen`.
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
        vars(self).update(fields)  # a frozen dataclass forbids assignments

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


LONG_RUN = 90
"""Epochs of a long run, the length for which ladders are defined. A run without epochs is divided into at most this many."""
EPOCH_MULTIPLE = 60
"""The epochs of a divided run have a multiple of this many batches. Schedules restart in each epoch; alternations that repeat
after up to six batches then continue as if there were no epochs."""


@dataclass(frozen=True)
class Epochs:
    """The length of a run that has epochs: `adagp.Epochs(90, len(loader))`. A batch is one step of the optimizer."""

    count: int
    batches_per_epoch: int

    def __post_init__(self) -> None:
        check_whole(epochs=self.count, batches_per_epoch=self.batches_per_epoch)
        if self.count < 1 or self.batches_per_epoch < 1:
            raise OptionError(
                f"a run needs at least 1 epoch and 1 batch per epoch; got {self.count} epochs, "
                f"{self.batches_per_epoch} batches."
            )


@dataclass(frozen=True)
class RunLength:
    """Epochs and their batches; `batches` is the length of the run if its last epoch is not whole.

    A run that has no epochs of its own is divided into some, for schedules that change by epochs.
    """

    epochs: int
    batches_per_epoch: int
    batches: int | None = None
    divided: bool = False

    @cached_property
    def total(self) -> int:
        """The batches of the whole run."""
        return self.batches or self.epochs * self.batches_per_epoch

    def __str__(self) -> str:
        if self.divided:
            return f"{self.total} steps"
        words = f"{self.epochs} epochs of {self.batches_per_epoch} batches"
        return words if self.batches is None else f"{self.batches} batches, in {words}"


def read_length(length: Epochs | None, steps: int | None) -> RunLength:
    """Return the length of a run, given in one of the two ways."""
    if length is not None and steps is not None:
        raise OptionError("steps is the length of a run without epochs; leave out steps, or the epochs.")
    if steps is not None:
        return divided_run(steps)
    if length is None:
        raise OptionError("the length of the run is missing: give length=adagp.Epochs(90, len(loader)), or steps=.")
    if not isinstance(length, Epochs):
        raise OptionError(
            f"length is {length!r}; it must be epochs and their batches, as adagp.Epochs(90, len(loader)). "
            "A number of batches is given as steps=."
        )
    return RunLength(length.count, length.batches_per_epoch)


def divided_run(steps: int) -> RunLength:
    """Return the length of a run of `steps` batches without epochs of its own."""
    check_whole(steps=steps)
    if steps < 1:
        raise OptionError(f"a run needs at least 1 step; got {steps}.")
    parts = max(1, min(LONG_RUN, steps // EPOCH_MULTIPLE))
    each = min(steps, -(-steps // (parts * EPOCH_MULTIPLE)) * EPOCH_MULTIPLE)
    return RunLength(-(-steps // each), each, steps, divided=True)


def shortened_run(length: Epochs, batches: int | None) -> RunLength:
    """Return the length of a run that ends after `batches` (None: after whole epochs), which must be in its last epoch."""
    epochs, each = length.count, length.batches_per_epoch
    if batches is not None and not 0 <= epochs * each - batches < each:
        raise OptionError(f"{batches} batches do not end in epoch {epochs} of a run with {each} batches per epoch.")
    return RunLength(epochs, each, batches)


def check_whole(**values: object) -> None:
    """Raise if one of the values is not a whole number."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise OptionError(f"{name} is {value!r}; it must be a whole number.")
