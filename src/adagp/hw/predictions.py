"""What it costs to predict a site's gradient and to learn to: the shared predictor, and sources that are no such network."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from adagp.hw.accelerator import Accelerator
from adagp.hw.product import NOTHING, Cost, Operation, Product, total
from adagp.hw.workload import ArrayLayer, Convolution, Linear

SYNTHETIC_HIDDEN = 32
"""Channels, or features, between the two layers of a synthetic-gradient network."""


@dataclass(frozen=True)
class Predictions:
    """What one site's predictions cost in a batch, on the main array and on an array of its own.

    `own_memory` says that a design with a predictor memory has its words there. The rest is what a design without one moves:
    `load` the predictor's weights in, `store` the predicted gradient, `write_back` the predictor's weights after training.
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
    """Cost ADA-GP's predictor by the same dataflow. Adam's two moments live off-chip and stream by during its training.

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
    for place in (accelerator, on_predictor_array(accelerator)):
        costs.append(accelerator.with_stalls(place.resident_cost(forward)))
        costs.append(accelerator.with_stalls(place.resident_cost(training) + moments))
    return Predictions(
        costs[0],
        costs[1],
        costs[2],
        costs[3],
        load=accelerator.with_stalls(NOTHING.moving(bits, 0)),
        store=accelerator.with_stalls(NOTHING.moving(0, layer.weights * accelerator.width("gradients"))),
        write_back=accelerator.with_stalls(NOTHING.moving(0, bits)),
    )


@lru_cache(maxsize=4096)
def synthetic_gradients(layer: ArrayLayer, accelerator: Accelerator, batch: int) -> Predictions:
    """Cost a network of two layers of the site's own kind, from its output to the gradient there; Adam trains it."""
    first, second = _synthetic_layers(layer)
    forward = [accelerator.trained_with(one.product(batch), Operation.FORWARD) for one in (first, second)]
    backward = [
        accelerator.trained_with(one.product(batch), operation)
        for one, operation in (
            (second, Operation.INPUT_GRADIENT),
            (second, Operation.WEIGHT_GRADIENT),
            (first, Operation.WEIGHT_GRADIENT),
        )
    ]
    bits = (first.weights + second.weights) * accelerator.width("weights")
    # The optimizer reads the gradient, the weights and two moments, and writes all but the gradient.
    update = NOTHING.moving(4 * bits, 3 * bits)
    costs = []
    for place in (accelerator, on_predictor_array(accelerator)):
        costs.append(accelerator.with_stalls(place.tiled_cost(*forward)))
        costs.append(accelerator.with_stalls(place.tiled_cost(*forward, *backward) + update))
    return Predictions(costs[0], costs[1], costs[2], costs[3], own_memory=False)


def _synthetic_layers(layer: ArrayLayer) -> tuple[Convolution | Linear, Convolution | Linear]:
    channels, hidden = layer.samples, SYNTHETIC_HIDDEN
    if isinstance(layer, Convolution):
        size = layer.output_size
        first = Convolution("", channels, hidden, (3, 3), size, size, input_gradient=False)
        return first, Convolution("", hidden, channels, (3, 3), size, size)
    rows = layer.output_words // channels
    return Linear("", rows, channels, hidden, input_gradient=False), Linear("", rows, hidden, channels)


@dataclass(frozen=True)
class FeedbackWork:
    """What feedback does in a batch. It uses at most `features` numbers of the output's error, and as many again of their mean.

    In a batch by backprop it may learn (`fits`), and take note of its inputs, for what predictions lack (`corrects`). Where a
    run does so at all, the prediction for recent batches by backprop is subtracted from that for a GP batch (`subtracts`).
    """

    features: int = 64
    fits: bool = True
    corrects: bool = True
    subtracts: bool = True


FULL_FEEDBACK = FeedbackWork()
"""All that feedback does, with its options at their defaults."""


@dataclass(frozen=True)
class FeedbackRows:
    """A layer as feedback sees it: so many rows in a batch, of so many inputs and outputs each, and so many features."""

    rows: int
    inputs: int
    outputs: int
    features: int


def feedback_rows(layer: ArrayLayer, batch: int, error_words: int, most: int) -> FeedbackRows:
    """Return a sample's whole map as a row, or each position of a linear layer; features are `most` at most."""
    positions = layer.rows if isinstance(layer, Linear) else 1
    features = max(1, min(error_words, most))
    return FeedbackRows(batch * positions, layer.input_words // positions, layer.output_words // positions, features)


@lru_cache(maxsize=4096)
def feedback_gradient(
    layer: ArrayLayer, accelerator: Accelerator, batch: int, error_words: int, work: FeedbackWork = FULL_FEEDBACK
) -> Cost:
    """Cost the weight gradient from the output's error, without stalls.

    The inputs of a batch are mixed to as many samples as there are features, and one of their mean; the weight gradient is
    taken of those. A batch of fewer rows than features gets its output gradients predicted, and the exact product. To subtract
    the prediction for recent batches, their mixed inputs are brought from memory, and one sample is added.
    """
    found = feedback_rows(layer, batch, error_words, work.features)
    common = accelerator.trained_with(Product(1, found.features, found.outputs), Operation.FORWARD)  # the mean's part
    if found.rows <= found.features and not work.subtracts:
        project = Product(found.rows, found.features + 1, found.outputs)
        return accelerator.tiled_cost(
            common,
            accelerator.trained_with(project, Operation.FORWARD),
            accelerator.trained_with(layer.product(batch), Operation.WEIGHT_GRADIENT),
        )
    samples = found.features + 1 + work.subtracts
    few = layer.product(samples) if isinstance(layer, Convolution) else Product(samples, found.inputs, found.outputs)
    cost = accelerator.tiled_cost(
        common,
        _mixing(accelerator, found),
        accelerator.trained_with(few, Operation.WEIGHT_GRADIENT),
    )
    if not work.subtracts:
        return cost
    usual = accelerator.trained_with(Product(found.features, found.features, found.inputs), Operation.FORWARD)
    truth = layer.weights * accelerator.width("gradients")
    return cost + accelerator.tiled_cost(common, usual).moving(_noted_bits(accelerator, found) + truth, 0)


def _mixing(accelerator: Accelerator, found: FeedbackRows) -> Product:
    """Return the product that mixes the inputs of a batch to one sample a feature, and one of their mean."""
    mix = Product(found.features + 1, found.rows, found.inputs)
    return accelerator.trained_with(mix, Operation.FORWARD)


def _noted_bits(accelerator: Accelerator, found: FeedbackRows) -> int:
    """Return how many bits the running mean of mixed inputs has."""
    return (found.features + 1) * found.inputs * accelerator.width("sums")


@lru_cache(maxsize=4096)
def feedback_regression(
    layer: ArrayLayer, accelerator: Accelerator, batch: int, error_words: int, work: FeedbackWork = FULL_FEEDBACK
) -> Predictions:
    """Cost what a batch by backprop adds to feedback's fit: both moments, and running means of mixed inputs and gradient."""
    found = feedback_rows(layer, batch, error_words, work.features)
    truth = layer.weights * accelerator.width("gradients")
    costs = []
    for place in (accelerator, on_predictor_array(accelerator)):
        cost = NOTHING
        if work.fits:
            cost += _feedback_moments(place, found)
        if work.corrects:
            # The means are read before they move; mixed inputs are written as the product's result.
            noted = _noted_bits(accelerator, found)
            cost += place.tiled_cost(_mixing(place, found)).moving(noted + truth, truth)
        costs.append(accelerator.with_stalls(cost))
    return Predictions(NOTHING, costs[0], NOTHING, costs[1], own_memory=False)


def _feedback_moments(accelerator: Accelerator, found: FeedbackRows) -> Cost:
    """Cost the moments of a batch, without stalls."""
    features = found.features
    # Differences from the mean and the mean's own part: one row of products each. Second moments are those of the differences;
    # layers with the same rows could share them, but each is charged for its own.
    products = [
        accelerator.trained_with(Product(sums, found.rows, outputs), Operation.FORWARD)
        for sums, outputs in ((features + 1, found.outputs), (features, features))
    ]
    # The running moments are read before the batch's are added to them.
    kept = 2 * features * (found.outputs + features) * accelerator.width("sums")
    return accelerator.tiled_cost(*products).moving(kept, 0)
