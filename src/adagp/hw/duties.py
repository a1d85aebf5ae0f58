"""From a plan to what each stage has to do in a batch, and nothing more.

The rules are those of the training engine: no backward pass below the lowest site that needs the true gradient of its
output; no weight gradient where a source supplies it; no forward pass if the batch is skipped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from adagp.hw.accelerator import Accelerator
from adagp.hw.product import NOTHING, Cost
from adagp.hw.stages import Stage
from adagp.hw.workload import Attention
from adagp.methods import AcceleratorWork, accelerator_work
from adagp.plan import BACKPROP, Plan

_BACKPROP = AcceleratorWork("exact", input_gradients=True)


def source_work(source: str) -> AcceleratorWork:
    """Return what a source, or backprop, makes the accelerator do for a site; a source that does not say is refused."""
    return _BACKPROP if source == BACKPROP else accelerator_work(source)


@dataclass(frozen=True)
class Duty:
    """One stage's work in one batch: forward and backward, and whether the predictor predicts and learns for it."""

    stage: Stage
    forward: Cost
    backward: Cost = NOTHING
    predicts: bool = False
    learns: bool = False


def duties(stages: Sequence[Stage], plan: Plan, accelerator: Accelerator, predictor_learns: bool) -> list[Duty]:
    """Return what each stage does under `plan`; `predictor_learns` says whether true gradients train a predictor."""
    if source_work(plan.default).skips and not plan.by_site:
        return [Duty(stage, NOTHING) for stage in stages]
    stop = lowest_true_site(stages, plan)
    return [_duty(stage, plan, accelerator, predictor_learns, index - stop) for index, stage in enumerate(stages)]


def lowest_true_site(stages: Sequence[Stage], plan: Plan) -> int:
    """Return the index of the lowest stage that the backward pass must reach; the number of stages if there is none.

    It is -1 where all parameters outside of sites are trained as well: then the pass goes as far down as the model has
    any. A plan that holds some of them holds those below its lowest true site.
    """
    if not plan.hold_rest and not plan.held:
        return -1
    sites = (index for index, stage in enumerate(stages) if stage.is_site)
    true = (index for index in sites if source_work(plan.source_of(stages[index].layer.name)).input_gradients)
    return next(true, len(stages))


def _duty(stage: Stage, plan: Plan, accelerator: Accelerator, predictor_learns: bool, above_stop: int) -> Duty:
    source = plan.source_of(stage.layer.name) if stage.is_site else None
    work = AcceleratorWork() if source is None else source_work(source)
    forward = stage.forward + stage.elementwise_forward
    backward = _chain(stage, above_stop) + _weight_gradient(stage, work)
    if backward == NOTHING:
        forward += stage.update  # the weights are there, so they are updated as the forward pass goes on
    else:
        backward += stage.update
    learns = predictor_learns and source == BACKPROP
    return Duty(
        stage,
        accelerator.with_stalls(forward),
        accelerator.with_stalls(backward),
        predicts=learns or work.predictor,
        learns=learns,
    )


def _chain(stage: Stage, above_stop: int) -> Cost:
    """Return what it takes to bring the gradient through a stage that lies `above_stop` stages above the lowest one."""
    if above_stop < 0:
        return NOTHING
    if above_stop == 0 or not stage.layer.input_gradient:
        return stage.elementwise_backward
    through = stage.elementwise_backward + stage.input_gradient
    # A product of two activations has two input gradients.
    return through + stage.weight_gradient if isinstance(stage.layer, Attention) else through


def _weight_gradient(stage: Stage, work: AcceleratorWork) -> Cost:
    costs = {"exact": stage.weight_gradient, "top_one": stage.top_one, "feedback": stage.feedback}
    return costs.get(work.weight_gradient, NOTHING)
