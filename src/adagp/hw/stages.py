"""A workload on an accelerator, batch by batch: what each stage's passes compute and move.

A **stage** is a layer on the array with the element-wise work that follows it. Here compute cycles and memory accesses
stand side by side; `Accelerator.with_stalls` brings them together.
"""

from dataclasses import dataclass, replace

from adagp.hw.accelerator import Accelerator
from adagp.hw.fusion import Moved, moved_words
from adagp.hw.passes import tiled_cost, trained_with
from adagp.hw.predictions import Predictions, shared_predictor
from adagp.hw.product import NOTHING, Cost, Operation
from adagp.hw.workload import ArrayLayer, Attention, Elementwise, Workload


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
        tiled_cost(trained_with(product, operation, accelerator, attention), accelerator) for operation in Operation
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
