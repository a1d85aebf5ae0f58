"""ADA-GP's hardware designs: how the predictor's work shares the accelerator with the layers'.

    low          no extra hardware: layer, load the predictor, predict, store, one after the other
    efficient    the predictor's weights have a memory of their own: layer, then predictor
    max          and an array of its own: the predictor's forward overlaps with the next layer's forward, its training
                 with the same layer's backward; layers stay in step, so each step takes the longer of the two, or what
                 both move off chip takes

    max-ideal    `max` as the paper's text has it: each step takes the larger of both times, whatever they move off chip

`max` has everything that `efficient` has. Where its smaller array would hold the layers up for longer than the main
array takes, it uses the main array, so it is never the slower of the two.

`equal-power` and `equal-area` are baselines with as many more PEs as the power and the area of `max` would pay for, in the
shape that suits the model best: 10 % and 11 %, as the paper has it, unless the accelerator's settings are others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from adagp.hw.accelerator import Accelerator
from adagp.hw.exchange import ExchangeWork, ModelLayout, SourceExchange
from adagp.hw.product import NOTHING, Cost
from adagp.hw.simulate import BASELINE, DESIGNS, Design, StepCosts, run_in_sequence
from adagp.hw.stages import Duty, Predictions


def summaries_exchange(work: ExchangeWork) -> SourceExchange:
    """Return what copies of the model exchange: a sample count and the pooled outputs of each site, in batches of either kind.

    The predictor learns from the gradients held here. If other processes hold the rest, its own weight gradients are summed.
    """
    shape = work.accelerator.predictor
    summaries = sum(site.samples for site in work.sites) * shape.grid**2
    copies = (summaries,) if work.layout is ModelLayout.STAGES else (len(work.sites) + summaries,)
    if not work.learns or work.layout is ModelLayout.COPIES:
        return SourceExchange(copies)
    return SourceExchange(copies, everyone=(shape.parameters(work.widest_row),))


def run_efficient(duties: Sequence[Duty], accelerator: Accelerator) -> StepCosts:
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


def run_max(duties: Sequence[Duty], accelerator: Accelerator) -> StepCosts:
    """Predict for a layer during the next layer's forward; train the predictor during the layer's backward."""
    costs = []
    waiting: Predictions | None = None
    for duty in duties:
        work = duty.predictions.from_own_memory if duty.predictions is not None else None
        forward, backward = duty.forward, duty.backward
        if waiting is not None:
            forward = overlapped(accelerator, forward, waiting.forward, waiting.forward_own)
        if work is not None and duty.learns:
            backward = overlapped(accelerator, backward, work.training, work.training_own)
        waiting = work if duty.predicts else None
        costs.append(forward + backward)
    if waiting is not None:
        costs[-1] += overlapped(accelerator, NOTHING, waiting.forward, waiting.forward_own)
    return costs


def run_max_ideal(duties: Sequence[Duty], accelerator: Accelerator) -> StepCosts:
    """Take the larger of both times in every step: the predictor's array never waits for the memory, nor the layers' for it."""
    costs = []
    waiting: Cost = NOTHING
    for duty in duties:
        work = duty.predictions.from_own_memory if duty.predictions is not None else None
        training = work.training_own if work is not None and duty.learns else NOTHING
        costs.append(_larger(duty.forward, waiting) + _larger(duty.backward, training))
        waiting = work.forward_own if work is not None and duty.predicts else NOTHING
    costs[-1] += waiting
    return costs


def _larger(layer: Cost, predictor: Cost) -> Cost:
    return (layer + predictor).with_cycles(max(layer.cycles, predictor.cycles))


def overlapped(accelerator: Accelerator, layer: Cost, on_main: Cost, on_own: Cost) -> Cost:
    """Return the quicker of predicting during `layer` on the predictor's array, and after it on the main one."""
    return min(accelerator.in_parallel(layer, on_own), layer + on_main, key=lambda cost: cost.cycles)


def equal_pes(figures: Mapping[str, float], pes: int, one_pe: float) -> float | None:
    """Return the PEs, over those of the baseline, of a baseline that is as large (or takes as much power) as `max`.

    `figures` are those of the designs by their names, `one_pe` that of a PE; None without both designs.
    """
    if not {"baseline", "max"} <= set(figures) or not one_pe:
        return None
    return 1 + (figures["max"] - figures["baseline"]) / (pes * one_pe)


DESIGNS.add("low", Design(run_in_sequence, predictor_memory=False, standard=True))
DESIGNS.add("efficient", Design(run_efficient, standard=True))
DESIGNS.add("max", Design(run_max, predictor_array=True, standard=True))
DESIGNS.add("max-ideal", Design(run_max_ideal, predictor_array=True))
DESIGNS.add("equal-power", replace(BASELINE, enlarged="equal_power_pes", standard=False))
DESIGNS.add("equal-area", replace(BASELINE, enlarged="equal_area_pes", standard=False))
