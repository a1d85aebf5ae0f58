"""A workload on an accelerator, batch by batch: its stages, and what each has to do in a batch under a plan.

A **stage** is a layer on the array with the element-wise work that follows it. In its passes compute cycles and memory accesses
stand side by side; `Accelerator.with_stalls` brings them together.

A **duty** is a stage's work in one batch, and nothing more. The rules are those of the training engine: no backward pass below
the lowest site that needs the true gradient of its output; no weight gradient where a source supplies it; no forward pass
if the batch is skipped. **Predictions** are what predicting a site's gradient and learning to do so cost: by the accelerator's
own predictor, or by the functions that a method names (`adagp.AcceleratorWork`).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import inf
from typing import cast

from adagp.core.methods import AcceleratorWork, BatchSplit, accelerator_work, default_split
from adagp.core.plan import BACKPROP, BACKPROP_ALL, Plan, predicted_plan
from adagp.core.registry import import_reference
from adagp.errors import OptionError
from adagp.hw.accelerator import Accelerator
from adagp.hw.product import NOTHING, Cost, Operation, total
from adagp.hw.workload import (
    ArrayLayer,
    Attention,
    Convolution,
    Elementwise,
    Linear,
    Moved,
    Workload,
    attention_pairs,
    moved_words,
    vector_operations,
)


@dataclass(frozen=True)
class Predictions:
    """What one site's predictions cost in a batch, on the main array and on the predictor's own array (`*_own`).

    `own_memory`: a design with a predictor memory keeps the predictor's words there. The other costs are what a design without
    one moves off chip: `load` reads the predictor's weights, `store` writes the predicted gradient, `write_back` writes the
    predictor's weights after training.
    """

    forward: Cost
    training: Cost
    forward_own: Cost = NOTHING
    training_own: Cost = NOTHING
    load: Cost = NOTHING
    store: Cost = NOTHING
    write_back: Cost = NOTHING
    own_memory: bool = True

    @cached_property
    def predicting_from_buffer(self) -> Cost:
        """A prediction on a design without a predictor memory."""
        return total((self.load, self.forward, self.store))

    @cached_property
    def learning_from_buffer(self) -> Cost:
        """Training on a design without a predictor memory."""
        return total((self.load, self.training, self.write_back))

    @cached_property
    def from_own_memory(self) -> "Predictions":
        """The same with its buffer accesses in the predictor's memory, if it has its words there."""
        if not self.own_memory:
            return self
        return Predictions(
            _in_own_memory(self.forward),
            _in_own_memory(self.training),
            _in_own_memory(self.forward_own),
            _in_own_memory(self.training_own),
        )


def _in_own_memory(cost: Cost) -> Cost:
    return cost._replace(buffer_reads=0, buffer_writes=0, own_reads=cost.buffer_reads, own_writes=cost.buffer_writes)


def on_predictor_array(accelerator: Accelerator) -> Accelerator:
    """Return the accelerator with the predictor's array in place of the main one."""
    return replace(accelerator, array=accelerator.predictor_array)


@lru_cache(maxsize=4096)
def shared_predictor(layer: ArrayLayer, accelerator: Accelerator) -> Predictions:
    """Cost the accelerator's predictor, by the same dataflow. Adam's two moments stream from and to off-chip memory.

    The size of the global buffer does not matter, so accelerators that differ in it alone may share the answer.
    """
    shape = accelerator.predictor
    weights = shape.weights(layer)
    bits = weights * accelerator.width("weights")
    moments = NOTHING.moving(2 * bits, 2 * bits)
    forward, training = (
        [accelerator.trained_with(product, product.operation) for product in products]
        for products in (shape.products(layer), shape.training(layer))
    )
    costs = []
    for array in (accelerator, on_predictor_array(accelerator)):
        costs.append(accelerator.with_stalls(array.resident_cost(forward)))
        costs.append(accelerator.with_stalls(array.resident_cost(training) + moments))
    return Predictions(
        costs[0],
        costs[1],
        costs[2],
        costs[3],
        load=accelerator.with_stalls(NOTHING.moving(bits, 0)),
        store=accelerator.with_stalls(NOTHING.moving(0, layer.weights * accelerator.width("gradients"))),
        write_back=accelerator.with_stalls(NOTHING.moving(0, bits)),
    )


@dataclass(frozen=True)
class SiteWork:
    """A site in a batch: what the cost functions of a method get (`adagp.AcceleratorWork`).

    The `layer` has no name, so that equal layers share their costs. `error_words` is the width of the network's output.
    `variant` is what the method's `variation` has for the batch, None for its defaults. With `learns` the batch has the site's
    true gradient, and learning from it is costed; otherwise its gradient is predicted. If the layer's weight is sharded over
    `shards` chips, only the gradient of this chip's shard is needed: that of the layer `held`.
    """

    layer: ArrayLayer
    accelerator: Accelerator
    batch: int
    error_words: int
    variant: Hashable = None
    learns: bool = False
    shards: int = 1

    @property
    def held(self) -> ArrayLayer:
        """The layer with the outputs whose weights are held here."""
        return with_fewer_outputs(self.layer, self.shards)


def with_fewer_outputs(layer: ArrayLayer, shards: int) -> ArrayLayer:
    """Return a layer with 1 / `shards` of its outputs; a layer whose weights are not sharded by outputs is unchanged."""
    if isinstance(layer, Linear) and layer.groups == 1:
        return replace(layer, out_features=-(-layer.out_features // shards), shared_weights=0)
    if isinstance(layer, Convolution) and layer.groups == 1 and not layer.transposed:
        return replace(layer, out_channels=-(-layer.out_channels // shards), shared_weights=0)
    return layer


@lru_cache(maxsize=4096)
def weight_gradient_cost(function: str, site: SiteWork) -> Cost:
    """Return the cost of a weight gradient by a function named `package.module:function`, without stalls."""
    return cast(Cost, _imported(function)(site))


@lru_cache(maxsize=4096)
def predictions_cost(function: str, site: SiteWork) -> Predictions | None:
    """Return the cost of predicting, or learning, by a function named `package.module:function`; None: nothing is done."""
    return cast(Predictions | None, _imported(function)(site))


def _imported(function: str) -> Callable[[SiteWork], object]:
    return cast(Callable[[SiteWork], object], import_reference(function, what="the cost of a method", kind="function"))


OWN_PREDICTOR = "(predictor)"
"""The source of a plan whose gradients come from the accelerator's own predictor, whatever method uses it."""
SUPPLIED = "(supplied)"
"""The source of a plan whose gradients cost nothing."""
_BUILT_IN = {
    BACKPROP: AcceleratorWork("exact", input_gradients=True),
    OWN_PREDICTOR: AcceleratorWork(predictor=True),
    SUPPLIED: AcceleratorWork(),
}


@dataclass(frozen=True)
class Stage:
    """A layer of the array, the element-wise work after it, and the costs of their passes for one batch, without stalls.

    `update` is the optimizer's traffic while the weights are on chip; `read_back` reads weights and gradient again after a
    backward pass. `table_update` is the same for lookup tables, which are trained if the backward pass reaches them. `batch`
    (samples) and `error_words` (of one sample, at the network's output) are for the cost functions of sources. `shards`: the
    weights are updated on as many chips, each with its part.
    """

    layer: ArrayLayer
    forward: Cost
    input_gradient: Cost
    weight_gradient: Cost
    elementwise_forward: Cost = NOTHING
    elementwise_backward: Cost = NOTHING
    update: Cost = NOTHING
    read_back: Cost = NOTHING
    table_update: Cost = NOTHING
    predictions: Predictions | None = None
    batch: int = 1
    error_words: int = 0
    shards: int = 1

    @property
    def is_site(self) -> bool:
        """Whether the stage has weights to train."""
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
    chain: list[Stage] = []
    waiting = _Waiting(accelerator, batch)
    error_words = error_width(workload)
    by_shape: dict[ArrayLayer, Stage] = {}  # models repeat shapes
    # The buffer's size does not matter to the predictor: the same value lets accelerators share its cached cost.
    small_buffer = replace(accelerator, buffer_kilobytes=1.0)
    shapes = iter(workload.shapes)
    fused = _fused_attention(workload) if accelerator.fused_attention else {}
    for index, layer in enumerate(workload.layers):
        if isinstance(layer, Elementwise):
            waiting.add(layer, index in fused)
            continue
        if chain:
            chain[-1] = waiting.joined(chain[-1])
        shape = next(shapes)
        if shape not in by_shape:
            by_shape[shape] = _stage(shape, accelerator, batch, error_words, small_buffer)
        stage = replace(by_shape[shape], layer=layer)
        chain.append(_fused(stage, fused[index], accelerator) if index in fused else stage)
    if chain:
        chain[-1] = waiting.joined(chain[-1])
    return tuple(chain)


class _Waiting:
    """Element-wise work that has not joined a stage yet."""

    def __init__(self, accelerator: Accelerator, batch: int) -> None:
        self.accelerator, self.batch = accelerator, batch
        self.moved, self.operations = Moved(), (0, 0)

    def add(self, work: Elementwise, on_chip: bool) -> None:
        """Add an operation; one whose operands stay `on_chip` moves nothing."""
        if not on_chip:
            self.moved += moved_words(work, self.accelerator.fusion)
        if self.accelerator.vector_lanes != inf:
            forward, backward = vector_operations(work)
            self.operations = self.operations[0] + forward, self.operations[1] + backward

    def joined(self, stage: Stage) -> Stage:
        """Return the stage with the work, and forget it. In the backward pass, half of what is read are activations."""
        moved, accelerator = self.moved, self.accelerator
        forward, backward = (self.batch * accelerator.width(what) for what in ("activations", "gradients"))
        cycles = [accelerator.vector_cycles(self.batch * count) for count in self.operations]
        self.moved, self.operations = Moved(), (0, 0)
        return replace(
            stage,
            elementwise_forward=Cost(cycles[0]).moving(forward * moved.reads, forward * moved.writes),
            elementwise_backward=Cost(cycles[1]).moving(
                (forward + backward) * moved.backward_reads // 2, backward * moved.backward_writes
            ),
            table_update=_table_update(moved.parameters, accelerator) if moved.parameters else NOTHING,
        )


def _table_update(parameters: int, accelerator: Accelerator) -> Cost:
    """Writing the gradient of a lookup table, and the optimizer's pass over it."""
    update, read_back = accelerator.optimizer_traffic(parameters)
    return (update + read_back).moving(0, parameters * accelerator.width("gradients"))


def _fused_attention(workload: Workload) -> dict[int, str]:
    """Return which layers are part of an attention whose scores stay on chip: `scores`, `use`, or work `between` them."""
    pairs = attention_pairs(workload)
    if not pairs:
        raise OptionError(f"'{workload.name}' has no attention that could be fused; leave fused attention out.")
    parts = {index: "between" for first, second in pairs for index in range(first + 1, second)}
    return parts | {first: "scores" for first, _ in pairs} | {second: "use" for _, second in pairs}


def _fused(stage: Stage, part: str, accelerator: Accelerator) -> Stage:
    """Return the stage as part of fused attention: scores and their gradients stay on chip, and scores are computed twice.

    Negative amounts take back the off-chip traffic of the scores in the products that are not fused.
    """
    words = stage.batch * (stage.layer.output_words if part == "scores" else stage.layer.input_words)
    scores, gradients = (words * accelerator.width(what) for what in ("activations", "gradients"))
    if part == "use":
        return replace(
            stage,
            forward=stage.forward.moving(-scores, 0),
            input_gradient=stage.input_gradient.moving(0, -gradients),
            weight_gradient=stage.weight_gradient.moving(-scores, 0),
        )
    forward = stage.forward.moving(0, -scores)
    return replace(
        stage,
        forward=forward,
        input_gradient=stage.input_gradient.moving(-gradients, 0) + forward,  # the backward pass recomputes the scores
        weight_gradient=stage.weight_gradient.moving(-gradients, 0),
    )


def error_width(workload: Workload) -> int:
    """Return the width of the network's output: the last layer's outputs for each row."""
    last = [layer for layer in workload.array_layers if layer.trainable]
    return last[-1].samples if last else 0


def _stage(
    layer: ArrayLayer, accelerator: Accelerator, batch: int, error_words: int, small_buffer: Accelerator
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
    update, read_back = accelerator.optimizer_traffic(own_weights)
    return replace(
        stage,
        update=update,
        read_back=read_back,
        predictions=shared_predictor(layer, small_buffer) if own_weights else None,
    )


def with_sharded_updates(chain: Sequence[Stage], accelerator: Accelerator, shards: int) -> tuple[Stage, ...]:
    """Return the stages of one of `shards` chips, each of which updates and predicts a part of every weight (ZeRO)."""
    small_buffer = replace(accelerator, buffer_kilobytes=1.0)

    def sharded(stage: Stage) -> Stage:
        shard = with_fewer_outputs(replace(stage.layer, name=""), shards)
        return replace(
            stage,
            update=_scaled(stage.update, 1, shards),
            read_back=_scaled(stage.read_back, 1, shards),
            table_update=_scaled(stage.table_update, 1, shards),
            predictions=None if stage.predictions is None else shared_predictor(shard, small_buffer),
            shards=shards,
        )

    return tuple(map(sharded, chain)) if shards > 1 else tuple(chain)


def source_work(source: str) -> AcceleratorWork:
    """Return what a source, or backprop, makes the accelerator do for a site; raise for one that does not declare it."""
    return _BUILT_IN[source] if source in _BUILT_IN else accelerator_work(source)


@dataclass(frozen=True)
class Duty:
    """One stage's work in one batch: forward, backward, and whether its gradient is predicted and a predictor trained.

    `predictions` is what these two cost.
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
    variant: Hashable = None,
) -> list[Duty]:
    """Return what each stage does under `plan`.

    With `predictor_learns`, true gradients train the predictor of the source `learner`, or if that is None the accelerator's
    own. `variant` is passed to the cost functions of sources.
    """
    split = _split(plan.default if learner is None else learner, variant)
    if split is not None and plan.default != BACKPROP:
        return _split_duties(stages, split, accelerator)
    if split is not None:
        learner, variant, predictor_learns = split.predictor, split.variant, predictor_learns and split.predicts
    if source_work(plan.default).skips and not plan.by_site:
        return [Duty(stage, NOTHING) for stage in stages]
    stop = lowest_true_site(stages, plan)
    sources = [plan.source_of(stage.layer.name) if stage.is_site else SUPPLIED for stage in stages]
    works = {source: source_work(source) for source in set(sources)}
    teaches = {BACKPROP: source_work(learner or OWN_PREDICTOR)} if predictor_learns else {}
    return [
        _duty(
            stage,
            works[source],
            accelerator,
            works[source] if works[source].trains_itself else teaches.get(source),
            index - stop,
            variant,
        )
        for index, (stage, source) in enumerate(zip(stages, sources, strict=True))
    ]


def _split(source: str, variant: Hashable) -> BatchSplit | None:
    if isinstance(variant, BatchSplit):
        return variant
    return default_split(source) if source_work(source).splits else None


def _split_duties(stages: Sequence[Stage], split: BatchSplit, accelerator: Accelerator) -> list[Duty]:
    """Return what each stage does in a batch of which `split.share` is trained by backprop, while all of it is predicted.

    The weights are updated once, with the part by backprop. The prediction for that part reuses its forward pass. If
    predictions have no effect, the rest of the batch runs forward only.
    """
    size = stages[0].batch
    true = max(1, min(size, round(split.share * size)))
    learning = split.predicts, split.predictor, split.variant
    backprop = duties([_resized(stage, accelerator, true) for stage in stages], BACKPROP_ALL, accelerator, *learning)
    if true == size:
        return backprop
    plan = predicted_plan(split.predictor)
    parts = [backprop]
    # A source that selects the samples for backprop first predicts all of them, to see their errors.
    first = size if split.selects else size - true
    for samples, forward_done in ((first, False), (true, True)):
        few = [_without_update(_resized(stage, accelerator, samples)) for stage in stages]
        predicted = duties(few, plan, accelerator, False, variant=split.variant)
        if split.predicts:
            parts.append([replace(duty, forward=NOTHING) if forward_done else duty for duty in predicted])
        elif not forward_done:
            parts.append([Duty(duty.stage, duty.forward) for duty in predicted])
    return [_summed(duty_parts) for duty_parts in zip(*parts, strict=True)]


def _summed(parts: Sequence[Duty]) -> Duty:
    """Return the duties of one stage in several parts of a batch as one."""
    forward, backward = total(duty.forward for duty in parts), total(duty.backward for duty in parts)
    predicting = [duty.predictions for duty in parts if duty.predicts and duty.predictions is not None]
    learning = [duty.predictions for duty in parts if duty.learns and duty.predictions is not None]
    if not predicting and not learning:
        return Duty(parts[0].stage, forward, backward)
    predictions = replace(
        [*learning, *predicting][0],
        forward=total(costs.forward for costs in predicting),
        forward_own=total(costs.forward_own for costs in predicting),
        store=total(costs.store for costs in predicting),
        training=total(costs.training for costs in learning),
        training_own=total(costs.training_own for costs in learning),
        write_back=total(costs.write_back for costs in learning),
    )
    return Duty(parts[0].stage, forward, backward, bool(predicting), bool(learning), predictions)


def _without_update(stage: Stage) -> Stage:
    return replace(stage, update=NOTHING, read_back=NOTHING, table_update=NOTHING)


def _resized(stage: Stage, accelerator: Accelerator, batch: int) -> Stage:
    """Return the stage for another number of samples."""
    small_buffer = replace(accelerator, buffer_kilobytes=1.0)
    resized = _stage(replace(stage.layer, name=""), accelerator, batch, stage.error_words, small_buffer)
    return replace(
        resized,
        layer=stage.layer,
        elementwise_forward=_scaled(stage.elementwise_forward, batch, stage.batch),
        elementwise_backward=_scaled(stage.elementwise_backward, batch, stage.batch),
        table_update=stage.table_update,
    )


def _scaled(cost: Cost, batch: int, of: int) -> Cost:
    return Cost(*(value * batch // of for value in cost))


def lowest_true_site(stages: Sequence[Stage], plan: Plan) -> int:
    """Return the index of the lowest stage that the backward pass must reach; the number of stages if there is none.

    It is -1 if all parameters outside of sites are trained as well: then the pass goes down to the lowest of them. A plan that
    freezes some of these parameters freezes those below its lowest true site.
    """
    if not plan.hold_rest and not plan.frozen:
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
    variant: Hashable,
) -> Duty:
    gradient = _weight_gradient(stage, work, accelerator, variant)
    forward = stage.forward + stage.elementwise_forward
    backward = _chain(stage, min(above_stop, 0) if work.cuts_chain else above_stop) + gradient
    update = _update(stage, work, accelerator)
    if above_stop >= 0:
        backward += stage.table_update
    if backward == NOTHING:
        forward += update  # the weights are there, so they are updated as the forward pass proceeds
    else:
        backward += update if gradient == NOTHING else update + stage.read_back
    passes = accelerator.with_stalls(forward), accelerator.with_stalls(backward)
    learns, predictor = teaches is not None, teaches or work
    if predictor.predictor:  # it predicts before it learns
        return Duty(stage, *passes, True, learns, stage.predictions)
    if not predictor.predictions:
        return Duty(stage, *passes)
    predictions = predictions_cost(predictor.predictions, _site_work(stage, accelerator, variant, learns))
    if predictions is None:
        return Duty(stage, *passes)
    return Duty(stage, *passes, not learns or work.trains_itself, learns, predictions)


def _update(stage: Stage, work: AcceleratorWork, accelerator: Accelerator) -> Cost:
    """The optimizer's traffic, and that of the earlier gradients that a source remembers."""
    if not work.remembered:
        return stage.update
    return stage.update.moving(work.remembered * stage.layer.weights * accelerator.width("gradients"), 0)


def _chain(stage: Stage, above_stop: int) -> Cost:
    """Return what it takes to bring the gradient through a stage that lies `above_stop` stages above the lowest one."""
    if above_stop < 0:
        return NOTHING
    if above_stop == 0 or not stage.layer.input_gradient:
        return stage.elementwise_backward
    through = stage.elementwise_backward + stage.input_gradient
    # A product of two activations has two input gradients.
    return through + stage.weight_gradient if isinstance(stage.layer, Attention) else through


def _weight_gradient(stage: Stage, work: AcceleratorWork, accelerator: Accelerator, variant: Hashable) -> Cost:
    if work.weight_gradient == "none":
        return NOTHING
    if work.weight_gradient == "exact":
        return stage.weight_gradient
    return weight_gradient_cost(work.weight_gradient, _site_work(stage, accelerator, variant))


def _site_work(stage: Stage, accelerator: Accelerator, variant: Hashable, learns: bool = False) -> SiteWork:
    layer = replace(stage.layer, name="")
    return SiteWork(layer, accelerator, stage.batch, stage.error_words, variant, learns, stage.shards)
