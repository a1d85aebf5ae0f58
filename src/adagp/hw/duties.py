"""From a plan to what each stage has to do in a batch, and nothing more.

The rules are those of the training engine: no backward pass below the lowest site that needs the true gradient of its output; no
weight gradient where a source supplies it; no forward pass if the batch is skipped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from adagp.hw.product import NOTHING, Cost
from adagp.hw.stages import Stage
from adagp.hw.workload import Attention
from adagp.plan import BACKPROP, Plan

PREDICTED = frozenset({"predicted", "remapped"})
"""Sources that run the predictor and, on backprop batches, train it."""

NEEDS_OUTPUT_GRADIENT = frozenset({BACKPROP, "topk"})
"""Sources that need the chain of input gradients down to their site."""


@dataclass(frozen=True)
class Duty:
    """One stage's work in one batch: forward and backward, and whether the predictor predicts and learns for it."""

    stage: Stage
    forward: Cost
    backward: Cost = NOTHING
    predicts: bool = False
    learns: bool = False


def duties(stages: Sequence[Stage], plan: Plan, predictor_learns: bool) -> list[Duty]:
    """Return what each stage does under `plan`; `predictor_learns` says whether true gradients train a predictor."""
    if plan.default == "skip" and not plan.by_site:
        return [Duty(stage, NOTHING) for stage in stages]
    stop = lowest_true_site(stages, plan)
    return [_duty(stage, plan, predictor_learns, index, stop) for index, stage in enumerate(stages)]


def lowest_true_site(stages: Sequence[Stage], plan: Plan) -> int:
    """Return the index of the lowest stage that the backward pass must reach; the number of stages if there is none.

    It is -1 where parameters outside of sites are trained as well: then the pass goes as far down as the model has any.
    """
    if not plan.hold_rest:
        return -1
    sites = (index for index, stage in enumerate(stages) if stage.is_site)
    true = (index for index in sites if plan.source_of(stages[index].layer.name) in NEEDS_OUTPUT_GRADIENT)
    return next(true, len(stages))


def _duty(stage: Stage, plan: Plan, predictor_learns: bool, index: int, stop: int) -> Duty:
    forward = stage.forward + stage.elementwise_forward
    backward = NOTHING
    if index >= stop:
        backward += stage.elementwise_backward
        if stage.layer.input_gradient and index > stop:
            backward += stage.input_gradient
            if isinstance(stage.layer, Attention):
                backward += stage.weight_gradient  # the gradient of the other activation
    if not stage.is_site:
        return Duty(stage, forward, backward)
    source = plan.source_of(stage.layer.name)
    if source == BACKPROP:
        backward += stage.weight_gradient
    elif source == "topk":
        backward += stage.top_one
    elif source == "feedback":
        backward += stage.feedback
    learns = predictor_learns and source == BACKPROP
    return Duty(stage, forward, backward + stage.update, learns or source in PREDICTED, learns)
