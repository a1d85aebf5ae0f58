"""The cost of synthetic gradients on an accelerator: a small network for each layer, and the exact weight gradient."""

from adagp.hw.product import NOTHING, Operation
from adagp.hw.stages import Predictions, SiteWork, on_predictor_array
from adagp.hw.workload import ArrayLayer, Convolution, Linear

HIDDEN = 32
"""Channels, or features, between the network's two layers."""


def synthetic_gradients(site: SiteWork) -> Predictions:
    """Cost a network of two layers of the site's own kind, from its output to the gradient there; Adam trains it."""
    accelerator, batch = site.accelerator, site.batch
    first, second = _network_layers(site.layer)
    forward = [accelerator.trained_with(layer.product(batch), Operation.FORWARD) for layer in (first, second)]
    backward = [
        accelerator.trained_with(layer.product(batch), operation)
        for layer, operation in (
            (second, Operation.INPUT_GRADIENT),
            (second, Operation.WEIGHT_GRADIENT),
            (first, Operation.WEIGHT_GRADIENT),
        )
    ]
    bits = (first.weights + second.weights) * accelerator.width("weights")
    # The optimizer reads the gradient, the weights and two moments, and writes all but the gradient.
    update = NOTHING.moving(4 * bits, 3 * bits)
    costs = []
    for array in (accelerator, on_predictor_array(accelerator)):
        costs.append(accelerator.with_stalls(array.tiled_cost(*forward)))
        costs.append(accelerator.with_stalls(array.tiled_cost(*forward, *backward) + update))
    return Predictions(costs[0], costs[1], costs[2], costs[3], own_memory=False)


def _network_layers(layer: ArrayLayer) -> tuple[Convolution | Linear, Convolution | Linear]:
    channels, hidden = layer.samples, HIDDEN
    if isinstance(layer, Convolution):
        size = layer.output_size
        first = Convolution("", channels, hidden, (3, 3), size, size, input_gradient=False)
        return first, Convolution("", hidden, channels, (3, 3), size, size)
    rows = layer.output_words // channels
    return Linear("", rows, channels, hidden, input_gradient=False), Linear("", rows, hidden, channels)
