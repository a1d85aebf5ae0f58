"""The cost of re-mapping's predictor on an accelerator: four convolutions of 64 channels for each output channel of a layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from adagp.hw.product import NOTHING, Operation
from adagp.hw.stages import Predictions, SiteWork, on_predictor_array
from adagp.hw.workload import ArrayLayer, Convolution, Linear

CHANNELS, GRID, OUTPUTS = 64, 4, 10_000
"""Sizes of the published network."""


@dataclass(frozen=True)
class OutputSize:
    """The predictor's number of outputs, the same in all batches."""

    predicted: int
    cycle: int = 1

    def at(self, number: int) -> int:
        """Return the number of outputs in any batch."""
        return self.predicted


def output_size(options: Mapping[str, Any]) -> OutputSize:
    """Return the outputs of a run with these options of re-mapping."""
    return OutputSize(int(options["remap_outputs"]))


def remapped_gradient(site: SiteWork) -> Predictions | None:
    """Cost the network that runs for every output channel of a layer, and Adam's updates of it.

    Averaging the channels before the fully connected layer gives the published result, so that layer runs once for each
    site, not once for each channel.
    """
    accelerator, outputs = site.accelerator, OUTPUTS if site.variant is None else int(str(site.variant))
    layers = network_layers(outputs)
    batches = [site.layer.samples] * (len(layers) - 1) + [1]
    forward = [
        accelerator.trained_with(layer.product(batch), Operation.FORWARD)
        for layer, batch in zip(layers, batches, strict=True)
    ]
    backward = [
        accelerator.trained_with(layer.product(batch), operation)
        for index, (layer, batch) in enumerate(zip(layers, batches, strict=True))
        for operation in (Operation.INPUT_GRADIENT, Operation.WEIGHT_GRADIENT)
        if index or operation is Operation.WEIGHT_GRADIENT
    ]
    bits = sum(layer.weights for layer in layers) * accelerator.width("weights")
    # Adam reads the gradient, the weights and two moments, and writes all but the gradient.
    update = NOTHING.moving(4 * bits, 3 * bits)
    costs = []
    for array in (accelerator, on_predictor_array(accelerator)):
        costs.append(accelerator.with_stalls(array.tiled_cost(*forward)))
        costs.append(accelerator.with_stalls(array.tiled_cost(*forward, *backward) + update))
    return Predictions(costs[0], costs[1], costs[2], costs[3], own_memory=False)


@lru_cache(maxsize=16)
def network_layers(outputs: int) -> tuple[ArrayLayer, ...]:
    """Return the network's layers: four convolutions on a grid of 4x4, and the fully connected one."""
    size = (GRID, GRID)
    convolutions = [
        Convolution("", inputs, CHANNELS, (3, 3), size, size, input_gradient=inputs > 1)
        for inputs in (1, *[CHANNELS] * 3)
    ]
    return *convolutions, Linear("", 1, CHANNELS * GRID * GRID, outputs)
