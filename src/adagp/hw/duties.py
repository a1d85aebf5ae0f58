"""From a plan to what each stage has to do in a batch, and nothing more.

The rules are those of the training engine: no backward pass below the lowest site that needs the true gradient of its
output; no weight gradient where a source supplies it; no forward pass if the batch is skipped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from adagp.hw.accelerator import Accelerator
from adagp.hw.predictions import Predictions, feedback_gradient, feedback_regression, synthetic_gradients
from adagp.hw.product import NOTHING, Cost
from adagp.hw.stages import Stage
from adagp.hw.workload import ArrayLayer, Attention
from adagp.methods import AcceleratorWork, accelerator_work
from adagp.plan import BACKPROP, Plan

_BACKPROP = AcceleratorWork("exact", input_gradients=True)


def source_work(source: str) -> AcceleratorWork:
    """Return what a source, or backprop, makes the accelerator do for a site; a source that does not say is refused."""
    return _BACKPROP if source == BACKPROP else accelerator_work(source)


_SHARED = AcceleratorWork(predictor=True)


@dataclass(frozen=True)
class Duty:
    """One stage's work in one batch: forward and backward, and whether its gradient is predicted and that is learned from.

    `predictions` are what that costs.
    """

    stage: Stage
    forward: Cost
    backward: Cost = NOTHING
    predicts: bool = False
    learns: bool = False
    predictions: Predictions | None = None


def duties(
    stages: Sequence[Stage], plan: Plan, accelerator: Accelerator, predictor_learns: bool, learner: str | None = None
) -> list[Duty]:
    """Return what each stage does under `plan`; `predictor_learns` says whether true gradients train a predictor.

    It is that of the source `learner`, the shared one unless given.
    """
    if source_work(plan.default).skips and not plan.by_site:
        return [Duty(stage, NOTHING) for stage in stages]
    stop = lowest_true_site(stages, plan)
    sources = {plan.source_of(stage.layer.name) for stage in stages if stage.is_site}
    works = {name: source_work(name) for name in sources}
    teaches = None if not predictor_learns else _SHARED if learner is None else source_work(learner)
    found = []
    for index, stage in enumerate(stages):
        source = plan.source_of(stage.layer.name) if stage.is_site else None
        work = AcceleratorWork() if source is None else works[source]
        found.append(_duty(stage, work, accelerator, teaches if source == BACKPROP else None, index - stop))
    return found


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


def _duty(
    stage: Stage, work: AcceleratorWork, accelerator: Accelerator, teaches: AcceleratorWork | None, above_stop: int
) -> Duty:
    gradient = _weight_gradient(stage, work, accelerator)
    forward = stage.forward + stage.elementwise_forward
    backward = _chain(stage, above_stop) + gradient
    update = _update(stage, work, accelerator)
    if backward == NOTHING:
        forward += update  # the weights are there, so they are updated as the forward pass proceeds
    else:
        backward += update if gradient == NOTHING else update + stage.read_back
    learns, predictor = teaches is not None, teaches or work
    predicts = predictor.predictor or (predictor.synthetic and not learns)
    return Duty(
        stage,
        accelerator.with_stalls(forward),
        accelerator.with_stalls(backward),
        predicts,
        learns,
        _predictions(stage, predictor, accelerator) if predicts or learns else None,
    )


def _update(stage: Stage, work: AcceleratorWork, accelerator: Accelerator) -> Cost:
    """The optimizer's traffic, and that of the earlier gradients that a source remembers."""
    if not work.remembered:
        return stage.update
    return stage.update.moving(work.remembered * stage.layer.weights * accelerator.width("gradients"), 0)


def _predictions(stage: Stage, work: AcceleratorWork, accelerator: Accelerator) -> Predictions | None:
    if work.synthetic:
        return synthetic_gradients(_unnamed(stage), accelerator, stage.batch)
    if work.weight_gradient == "feedback":
        return feedback_regression(_unnamed(stage), accelerator, stage.batch, stage.error_words)
    return stage.predictions


def _chain(stage: Stage, above_stop: int) -> Cost:
    """Return what it takes to bring the gradient through a stage that lies `above_stop` stages above the lowest one."""
    if above_stop < 0:
        return NOTHING
    if above_stop == 0 or not stage.layer.input_gradient:
        return stage.elementwise_backward
    through = stage.elementwise_backward + stage.input_gradient
    # A product of two activations has two input gradients.
    return through + stage.weight_gradient if isinstance(stage.layer, Attention) else through


def _weight_gradient(stage: Stage, work: AcceleratorWork, accelerator: Accelerator) -> Cost:
    if work.weight_gradient == "feedback":
        return feedback_gradient(_unnamed(stage), accelerator, stage.batch, stage.error_words)
    return {"exact": stage.weight_gradient, "top_one": stage.top_one}.get(work.weight_gradient, NOTHING)


def _unnamed(stage: Stage) -> ArrayLayer:
    """Return the layer without its name, by which layers of one shape share what is known of them."""
    return replace(stage.layer, name="")
