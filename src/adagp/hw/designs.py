"""The designs: how a batch's duties and the predictor's work share the hardware.

    baseline     backprop on every batch, no predictor
    low          no extra hardware: layer, load the predictor, predict, store, one after the other
    efficient    the predictor's weights have a memory of their own: layer, then predictor
    max          and an array of its own: the predictor's forward runs beside the next layer's forward, its training
                 beside the same layer's backward; layers stay in step, so each step takes the longer of the two

`max` has everything that `efficient` has. Where its smaller array would hold the layers up for longer than the main
array takes, it uses the main array, so it is never the slower of the two.

`fast` computes in block floating point on cells of FAST's (see `chunks`), in the widths that a recorded run had and in 4 bits
otherwise; `dense-16` and `dense-32` are the same run in words of so many bits, for comparison. All three are without extra
hardware for predictions, as `low` is. A cell of `fast` has 16 small multipliers: equal arrays are not of equal area.

`equal-power` and `equal-area` are baselines with as many more PEs as the power and the area of `max` would pay for, in the
shape that suits the model best: 10 % and 11 %, as the paper has it, unless the accelerator says otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from adagp.core.registry import Registry
from adagp.hw.accelerator import Accelerator
from adagp.hw.predictions import Predictions
from adagp.hw.product import NOTHING, Cost
from adagp.hw.stages import Duty

StepCosts = list[Cost]
"""A batch's cost, stage by stage; their sum is the batch's."""


@dataclass(frozen=True)
class Design:
    """A way to run batches: what a batch costs by stage, and what the hardware has.

    `enlarged` is the field of the accelerator that says how many times its PEs the design has; '': it has these.
    `word_bits` are those of all operands, if they are not the accelerator's; with `block_floating_point` the cells are FAST's.
    """

    step: Callable[[Sequence[Duty]], StepCosts]
    predicts: bool = True
    predictor_memory: bool = True
    predictor_array: bool = False
    enlarged: str = ""
    word_bits: int | None = None
    block_floating_point: bool = False

    def array_factor(self, accelerator: Accelerator) -> float:
        """Return the design's PEs over the accelerator's."""
        return float(getattr(accelerator, self.enlarged)) if self.enlarged else 1.0


def run_baseline(duties: Sequence[Duty]) -> StepCosts:
    """Every layer's forward and backward, and no more."""
    return [duty.forward + duty.backward for duty in duties]


def run_low(duties: Sequence[Duty]) -> StepCosts:
    """Everything in sequence on one array; the predictor comes and goes through off-chip memory."""
    return [duty.forward + duty.backward + _low_predictor(duty) for duty in duties]


def _low_predictor(duty: Duty) -> Cost:
    work = duty.predictions
    if work is None:
        return NOTHING
    cost = work.predicting_from_buffer if duty.predicts else NOTHING
    return cost + work.learning_from_buffer if duty.learns else cost


def run_efficient(duties: Sequence[Duty]) -> StepCosts:
    """Layer, then predictor, on one array; the predictor's words are in its own memory."""
    costs = []
    for duty in duties:
        cost, work = duty.forward + duty.backward, duty.predictions
        if work is not None and duty.predicts:
            cost += work.from_own_memory.forward
        if work is not None and duty.learns:
            cost += work.from_own_memory.training
        costs.append(cost)
    return costs


def run_max(duties: Sequence[Duty]) -> StepCosts:
    """Predict for a layer beside the next layer's forward; train the predictor beside the layer's backward."""
    costs = []
    waiting: Predictions | None = None
    for duty in duties:
        work = duty.predictions.from_own_memory if duty.predictions is not None else None
        forward, backward = duty.forward, duty.backward
        if waiting is not None:
            forward = overlapped(forward, waiting.forward, waiting.forward_own)
        if work is not None and duty.learns:
            backward = overlapped(backward, work.training, work.training_own)
        waiting = work if duty.predicts else None
        costs.append(forward + backward)
    if waiting is not None:
        costs[-1] += overlapped(NOTHING, waiting.forward, waiting.forward_own)
    return costs


def overlapped(layer: Cost, on_main: Cost, on_own: Cost) -> Cost:
    """Return the better of predicting beside `layer` on the predictor's array and after it on the main one."""
    beside = max(layer.cycles, on_own.cycles) <= layer.cycles + on_main.cycles
    return layer.beside(on_own) if beside else layer + on_main


DESIGNS: Registry[Design] = Registry("design")
DESIGNS.add("baseline", Design(run_baseline, predicts=False, predictor_memory=False))
DESIGNS.add("low", Design(run_low, predictor_memory=False))
DESIGNS.add("efficient", Design(run_efficient))
DESIGNS.add("max", Design(run_max, predictor_array=True))
DESIGNS.add("equal-power", replace(DESIGNS["baseline"], enlarged="equal_power_pes"))
DESIGNS.add("equal-area", replace(DESIGNS["baseline"], enlarged="equal_area_pes"))
DESIGNS.add("fast", replace(DESIGNS["low"], block_floating_point=True))
DESIGNS.add("dense-16", replace(DESIGNS["low"], word_bits=16))
DESIGNS.add("dense-32", replace(DESIGNS["low"], word_bits=32))

PAPER_DESIGNS = ("baseline", "low", "efficient", "max")


def equal_pes(figures: Mapping[str, float], pes: int, one_pe: float) -> float | None:
    """Return the PEs, over those of the baseline, of a baseline that is as large (or takes as much power) as `max`.

    `figures` are those of the designs by their names, `one_pe` that of a PE; None without both designs.
    """
    if not {"baseline", "max"} <= set(figures) or not one_pe:
        return None
    return 1 + (figures["max"] - figures["baseline"]) / (pes * one_pe)


def parse_designs(text: str) -> tuple[str, ...]:
    """Return the designs that `text` names, separated by commas; `all` are the paper's."""
    if text == "all":
        return PAPER_DESIGNS
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        DESIGNS[name]
    return names
