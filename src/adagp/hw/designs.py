"""Designs: how a batch's duties and the predictor's work share the hardware. Papers and plug-ins add theirs to `DESIGNS`.

The one that is always there is `baseline`: backprop on every batch, no predictor.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from adagp.core.plan import Phase
from adagp.core.registry import Registry
from adagp.hw.accelerator import Accelerator, ArrayArithmetic
from adagp.hw.product import NOTHING, Cost
from adagp.hw.runs import Run
from adagp.hw.stages import Duty

StepCosts = list[Cost]
"""A batch's cost, stage by stage; their sum is the batch's."""


class ArithmeticShares(Protocol):
    """In which arithmetic the layers of a run are computed, as shares of its batches."""

    @property
    def all(self) -> Sequence[ArrayArithmetic]:
        """Every arithmetic that occurs."""

    def of(self, layer: str, phase: Phase) -> Mapping[Any, float]:
        """Return the shares of a layer in the batches of a phase; they add up to 1."""


@dataclass(frozen=True)
class Design:
    """A way to run batches: what a batch costs by stage, and what the hardware has.

    `enlarged` is the field of the accelerator that has the design's PEs over the accelerator's; '': it has the same.
    `word_bits` are those of all operands, if they are not the accelerator's. With `arithmetic`, a run is computed in what that
    function returns of it, instead of in words. `standard` designs are simulated unless others are named.
    """

    step: Callable[[Sequence[Duty]], StepCosts]
    predicts: bool = True
    predictor_memory: bool = True
    predictor_array: bool = False
    enlarged: str = ""
    word_bits: int | None = None
    arithmetic: Callable[[Run], ArithmeticShares] | None = None
    standard: bool = False

    @property
    def own_arithmetic(self) -> bool:
        """Whether it computes in another arithmetic than the accelerator's words."""
        return self.word_bits is not None or self.arithmetic is not None

    def array_factor(self, accelerator: Accelerator) -> float:
        """Return the design's PEs over the accelerator's."""
        return float(getattr(accelerator, self.enlarged)) if self.enlarged else 1.0


def run_baseline(duties: Sequence[Duty]) -> StepCosts:
    """Every layer's forward and backward, and no more."""
    return [duty.forward + duty.backward for duty in duties]


def run_in_sequence(duties: Sequence[Duty]) -> StepCosts:
    """Everything in sequence on one array; the predictor comes and goes through off-chip memory."""
    return [duty.forward + duty.backward + _from_buffer(duty) for duty in duties]


def _from_buffer(duty: Duty) -> Cost:
    work = duty.predictions
    if work is None:
        return NOTHING
    cost = work.predicting_from_buffer if duty.predicts else NOTHING
    return cost + work.learning_from_buffer if duty.learns else cost


DESIGNS: Registry[Design] = Registry("design", extensible=True)
BASELINE = DESIGNS.add("baseline", Design(run_baseline, predicts=False, predictor_memory=False, standard=True))


def standard_designs() -> tuple[str, ...]:
    """Return the designs that are simulated unless others are named."""
    return tuple(name for name in DESIGNS if DESIGNS[name].standard)


def parse_designs(text: str) -> tuple[str, ...]:
    """Return the designs that `text` names, separated by commas; `all` are the standard ones."""
    if text == "all":
        return standard_designs()
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        DESIGNS[name]
    return names
