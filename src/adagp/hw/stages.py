"""A workload on an accelerator, batch by batch: what each stage's passes compute and move.

A **stage** is a layer on the array with the element-wise work that follows it. Here compute cycles and off-chip words
stand side by side; `Accelerator.with_stalls` brings them together.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from adagp.hw.accelerator import Accelerator
from adagp.hw.array import Array
from adagp.hw.dataflows import array_cost
from adagp.hw.product import NOTHING, Cost, Operation, Product, total
from adagp.hw.workload import ArrayLayer, Attention, Elementwise, Workload


@dataclass(frozen=True)
class Predictions:
    """What one site's predictor costs in a batch, on the main array and on an array of its own.

    The rest is what a design without predictor memory moves: `load` the predictor's weights in, `store` the predicted
    gradient, `write_back` the predictor's weights after training.
    """

    forward: Cost
    training: Cost
    forward_own: Cost = NOTHING
    training_own: Cost = NOTHING
    load: Cost = NOTHING
    store: Cost = NOTHING
    write_back: Cost = NOTHING


@dataclass(frozen=True)
class Stage:
    """A layer of the array, the element-wise work after it, and the costs of their passes for one batch, without stalls.

    `update` is the optimizer's traffic. `top_one` and `feedback` are the weight gradients of approximated sources.
    """

    layer: ArrayLayer
    forward: Cost
    input_gradient: Cost
    weight_gradient: Cost
    elementwise_forward: Cost = NOTHING
    elementwise_backward: Cost = NOTHING
    update: Cost = NOTHING
    top_one: Cost = NOTHING
    feedback: Cost = NOTHING
    predictions: Predictions | None = None

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
    reads = writes = 0
    error_words = error_width(workload)
    known: dict[ArrayLayer, Stage] = {}  # models repeat shapes
    for layer in workload.layers:
        if isinstance(layer, Elementwise):
            reads += batch * layer.input_words
            writes += batch * layer.output_words
            continue
        if found:
            found[-1] = _with_elementwise(found[-1], reads, writes)
            reads = writes = 0
        shape = replace(layer, name="")
        if shape not in known:
            known[shape] = _stage(layer, accelerator, batch, error_words)
        found.append(replace(known[shape], layer=layer))
    if found:
        found[-1] = _with_elementwise(found[-1], reads, writes)
    return tuple(found)


def _with_elementwise(stage: Stage, reads: int, writes: int) -> Stage:
    """Add work that reads its inputs and writes its outputs, and on the way back reads both and writes once more."""
    forward = Cost(dram_reads=reads, dram_writes=writes)
    backward = Cost(dram_reads=reads + writes, dram_writes=reads)
    return replace(stage, elementwise_forward=forward, elementwise_backward=backward)


def error_width(workload: Workload) -> int:
    """Return the width of the network's output: the last layer's outputs for each row."""
    last = [layer for layer in workload.array_layers if layer.trainable]
    return last[-1].samples if last else 0


def _stage(layer: ArrayLayer, accelerator: Accelerator, batch: int, error_words: int) -> Stage:
    product = layer.product(batch)
    forward, input_gradient, weight_gradient = (
        _pass(layer, product.gradient(operation, accelerator.zero_insertion), accelerator, batch)
        for operation in Operation
    )
    weight_gradient += Cost(dram_reads=layer.shared_weights)  # to add to the gradient of the weights' other uses
    stage = Stage(layer, forward, input_gradient, weight_gradient)
    if not layer.trainable:
        return stage
    own_weights = layer.weights - layer.shared_weights  # each weight is updated and predicted once, with its first use
    state = accelerator.optimizer_words * own_weights
    feedback = Product(batch, error_words, layer.output_words)
    return replace(
        stage,
        update=Cost(dram_reads=state, dram_writes=state + own_weights),
        top_one=_top_one(layer, accelerator, batch),
        feedback=_work((feedback,), accelerator.array, accelerator.dataflow) + stage.weight_gradient,
        predictions=_predictions(layer, accelerator) if own_weights else None,
    )


def _pass(layer: ArrayLayer, product: Product, accelerator: Accelerator, batch: int) -> Cost:
    reads, writes = traffic(layer, product.operation, accelerator.buffer_words, batch)
    compute = array_cost(accelerator.dataflow, product, accelerator.array)
    return compute + Cost(dram_reads=reads, dram_writes=writes)


def traffic(layer: ArrayLayer, operation: Operation, buffer_words: float, batch: int) -> tuple[int, int]:
    """Return the off-chip words read and written by one pass.

    Half the buffer holds the working set while the other half is filled. If the weights (or their gradient) of a
    group fit, each matrix moves once; if not, they are cut into parts and the cheaper of the other matrices moves
    again for each part, or the weights move again for each part of the activations.
    """
    inputs, outputs = batch * layer.input_words, batch * layer.output_words
    weights = layer.weights * (batch if isinstance(layer, Attention) else 1)
    copies = layer.count * batch if isinstance(layer, Attention) else layer.groups
    half = max(1.0, buffer_words / 2)
    parts = max(1, -int(-weights // (copies * half)))
    if operation is Operation.WEIGHT_GRADIENT:
        return min(inputs * parts + outputs, inputs + outputs * parts), weights
    moving, result = (inputs, outputs) if operation is Operation.FORWARD else (outputs, inputs)
    activation_parts = max(1, -int(-moving // (copies * half)))
    return min(moving * parts + weights, moving + weights * activation_parts), result


def _top_one(layer: ArrayLayer, accelerator: Accelerator, batch: int) -> Cost:
    """One input patch for each sample and output channel, found by reading the output's gradient once."""
    macs = batch * layer.weights
    outputs = batch * layer.output_words
    return Cost(-(-macs // accelerator.array.pes), macs, buffer_reads=outputs + macs, dram_reads=outputs + macs)


def _work(products: Iterable[Product], array: Array, dataflow: str) -> Cost:
    return total(array_cost(dataflow, product, array) for product in products)


def _predictions(layer: ArrayLayer, accelerator: Accelerator) -> Predictions:
    """Cost the predictor by the same dataflow. Adam's two moments live off-chip and stream by during its training."""
    shape, dataflow = accelerator.predictor, accelerator.dataflow
    arrays = (accelerator.array, accelerator.predictor_array)
    weights = shape.weights(layer)
    moments = Cost(dram_reads=2 * weights, dram_writes=2 * weights)
    forward, forward_own = (_work(shape.products(layer), array, dataflow) for array in arrays)
    training, training_own = (
        accelerator.with_stalls(_work(shape.training(layer), array, dataflow) + moments) for array in arrays
    )
    return Predictions(
        forward,
        training,
        forward_own,
        training_own,
        load=accelerator.with_stalls(Cost(dram_reads=weights)),
        store=accelerator.with_stalls(Cost(dram_writes=layer.weights)),
        write_back=accelerator.with_stalls(Cost(dram_writes=weights)),
    )
