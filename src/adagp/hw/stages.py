"""A workload on an accelerator, batch by batch: its stages, and what each has to do in a batch under a plan.

A **stage** is a layer on the array with the element-wise work that follows it. In its passes compute cycles and memory accesses
stand side by side; `Accelerator.with_stalls` brings them together.

A **duty** is a stage's work in one batch, and nothing more. The rules are those of the training engine: no backward pass below
the lowest site that needs the true gradient of its output; no weight gradient where a source supplies it; no forward pass
if the batch is skipped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from adagp.core.methods import AcceleratorWork, accelerator_work
from adagp.core.plan import BACKPROP, Plan
from adagp.hw.accelerator import Accelerator
from adagp.hw.fusion import Moved, moved_words
from adagp.hw.predictions import (
    FULL_FEEDBACK,
    FeedbackWork,
    Predictions,
    feedback_gradient,
    feedback_regression,
    shared_predictor,
    synthetic_gradients,
)
from adagp.hw.product import NOTHING, Cost, Operation
from adagp.hw.workload import ArrayLayer, Attention, Elementwise, Workload

_BACKPROP = AcceleratorWork("exact", input_gradients=True)
_SHARED = AcceleratorWork(predictor=True)


@dataclass(frozen=True)
class Stage:
    """A layer of the array, the element-wise work after it, and the costs of their passes for one batch, without stalls.

    `update` is the optimizer's traffic while the weights are on chip; `read_back` brings weights and gradient there again after
    a backward pass. `top_one` is the weight gradient of the largest output gradients. `batch` samples, and the `error_words`
    of one sample at the network's output, are what further sources need.
    """

    layer: ArrayLayer
    forward: Cost
    input_gradient: Cost
    weight_gradient: Cost
    elementwise_forward: Cost = NOTHING
    elementwise_backward: Cost = NOTHING
    update: Cost = NOTHING
    read_back: Cost = NOTHING
    top_one: Cost = NOTHING
    predictions: Predictions | None = None
    batch: int = 1
    error_words: int = 0

    @property
    def is_site(self) -> bool:
        """Tell whether the stage has weights to train."""
        return self.layer.trainable

    @property
    def needed_passes(self) -> dict[str, Cost]:
        """The passes of a backprop batch, by name; those that nothing needs cost nothing."""
        both = isinstance(self.layer, Attention) and self.layer.input_gradient
        return {
            "forward": self.forward + self.elementwise_forward,
            "input_gradient": self.input_gradient if self.layer.input_gradient else NOTHING,
            "weight_gradient": self.weight_gradient if self.layer.trainable or both else NOTHING,
        }


def stages(workload: Workload, accelerator: Accelerator, batch: int) -> tuple[Stage, ...]:
    """Return the stages of `workload` for batches of `batch` samples.

    Element-wise work before the first layer joins the first stage.
    """
    found: list[Stage] = []
    waiting = Moved()
    error_words = error_width(workload)
    known: dict[ArrayLayer, Stage] = {}  # models repeat shapes
    beside_buffer = replace(accelerator, buffer_kilobytes=1.0)
    shapes = iter(workload.shapes)
    for layer in workload.layers:
        if isinstance(layer, Elementwise):
            waiting += moved_words(layer, accelerator.fusion)
            continue
        if found:
            found[-1] = _with_elementwise(found[-1], waiting, accelerator)
            waiting = Moved()
        shape = next(shapes)
        if shape not in known:
            known[shape] = _stage(shape, accelerator, batch, error_words, beside_buffer)
        found.append(replace(known[shape], layer=layer))
    if found:
        found[-1] = _with_elementwise(found[-1], waiting, accelerator)
    return tuple(found)


def _with_elementwise(stage: Stage, moved: Moved, accelerator: Accelerator) -> Stage:
    """Add what element-wise work moves; on the way back half of what it reads are activations, the rest gradients."""
    forward, backward = (stage.batch * accelerator.width(what) for what in ("activations", "gradients"))
    return replace(
        stage,
        elementwise_forward=NOTHING.moving(forward * moved.reads, forward * moved.writes),
        elementwise_backward=NOTHING.moving(
            (forward + backward) * moved.backward_reads // 2, backward * moved.backward_writes
        ),
    )


def error_width(workload: Workload) -> int:
    """Return the width of the network's output: the last layer's outputs for each row."""
    last = [layer for layer in workload.array_layers if layer.trainable]
    return last[-1].samples if last else 0


def _stage(
    layer: ArrayLayer, accelerator: Accelerator, batch: int, error_words: int, beside_buffer: Accelerator
) -> Stage:
    product, attention = layer.product(batch), isinstance(layer, Attention)
    forward, input_gradient, weight_gradient = (
        accelerator.tiled_cost(accelerator.trained_with(product, operation, attention)) for operation in Operation
    )
    shared = layer.shared_weights * accelerator.width("gradients")
    weight_gradient = weight_gradient.moving(shared, 0)  # to add to the gradient of the weights' other uses
    stage = Stage(layer, forward, input_gradient, weight_gradient, batch=batch, error_words=error_words)
    if not layer.trainable:
        return stage
    own_weights = layer.weights - layer.shared_weights  # each weight is updated and predicted once, with its first use
    weights = own_weights * accelerator.width("weights")
    state = accelerator.optimizer_words * weights
    return replace(
        stage,
        update=NOTHING.moving(state, state + weights),
        read_back=NOTHING.moving(weights + own_weights * accelerator.width("gradients"), 0),
        top_one=_top_one(layer, accelerator, batch),
        predictions=shared_predictor(layer, beside_buffer) if own_weights else None,
    )


def _top_one(layer: ArrayLayer, accelerator: Accelerator, batch: int) -> Cost:
    """One input patch for each sample and output channel, found by reading the output's gradient once."""
    macs = batch * layer.weights
    gradients, patches = (
        batch * layer.output_words * accelerator.width("gradients"),
        macs * accelerator.width("activations"),
    )
    result = layer.weights * accelerator.width("gradients")
    compute = Cost(-(-macs // accelerator.array.pes), macs, buffer_reads=gradients + patches)
    return compute.moving(gradients + patches, result)


def source_work(source: str) -> AcceleratorWork:
    """Return what a source, or backprop, makes the accelerator do for a site; a source that does not say is refused."""
    return _BACKPROP if source == BACKPROP else accelerator_work(source)


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
    stages: Sequence[Stage],
    plan: Plan,
    accelerator: Accelerator,
    predictor_learns: bool,
    learner: str | None = None,
    feedback: FeedbackWork = FULL_FEEDBACK,
) -> list[Duty]:
    """Return what each stage does under `plan`; `predictor_learns` says whether true gradients train a predictor.

    It is that of the source `learner`, the shared one unless given. `feedback` is what that source does, where it is in use.
    """
    if source_work(plan.default).skips and not plan.by_site:
        return [Duty(stage, NOTHING) for stage in stages]
    stop = lowest_true_site(stages, plan)
    sources = {plan.source_of(stage.layer.name) for stage in stages if stage.is_site}
    works = {name: source_work(name) for name in sources}
    teaches = _taught(learner, feedback) if predictor_learns else None
    found = []
    for index, stage in enumerate(stages):
        source = plan.source_of(stage.layer.name) if stage.is_site else None
        work = AcceleratorWork() if source is None else works[source]
        taught = teaches if source == BACKPROP else None
        found.append(_duty(stage, work, accelerator, taught, index - stop, feedback))
    return found


def _taught(learner: str | None, feedback: FeedbackWork) -> AcceleratorWork | None:
    """Return the work of the source that learns from a batch, None if this one is not its turn."""
    work = _SHARED if learner is None else source_work(learner)
    return None if work.weight_gradient == "feedback" and not (feedback.fits or feedback.corrects) else work


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
    stage: Stage,
    work: AcceleratorWork,
    accelerator: Accelerator,
    teaches: AcceleratorWork | None,
    above_stop: int,
    feedback: FeedbackWork,
) -> Duty:
    gradient = _weight_gradient(stage, work, accelerator, feedback)
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
        _predictions(stage, predictor, accelerator, feedback) if predicts or learns else None,
    )


def _update(stage: Stage, work: AcceleratorWork, accelerator: Accelerator) -> Cost:
    """The optimizer's traffic, and that of the earlier gradients that a source remembers."""
    if not work.remembered:
        return stage.update
    return stage.update.moving(work.remembered * stage.layer.weights * accelerator.width("gradients"), 0)


def _predictions(
    stage: Stage, work: AcceleratorWork, accelerator: Accelerator, feedback: FeedbackWork
) -> Predictions | None:
    if work.synthetic:
        return synthetic_gradients(_unnamed(stage), accelerator, stage.batch)
    if work.weight_gradient == "feedback":
        return feedback_regression(_unnamed(stage), accelerator, stage.batch, stage.error_words, feedback)
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


def _weight_gradient(stage: Stage, work: AcceleratorWork, accelerator: Accelerator, feedback: FeedbackWork) -> Cost:
    if work.weight_gradient == "feedback":
        return feedback_gradient(_unnamed(stage), accelerator, stage.batch, stage.error_words, feedback)
    return {"exact": stage.weight_gradient, "top_one": stage.top_one}.get(work.weight_gradient, NOTHING)


def _unnamed(stage: Stage) -> ArrayLayer:
    """Return the layer without its name, by which layers of one shape share what is known of them."""
    return replace(stage.layer, name="")
