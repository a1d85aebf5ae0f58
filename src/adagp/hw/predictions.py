"""What it costs to predict a site's gradient and to learn to: by the accelerator's predictor, or by a source's functions."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import cast

from adagp.core.references import import_reference
from adagp.hw.accelerator import Accelerator
from adagp.hw.product import NOTHING, Cost, total
from adagp.hw.workload import ArrayLayer


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


@dataclass(frozen=True)
class SiteWork:
    """A site in a batch: what the cost functions of a method get (`adagp.AcceleratorWork`).

    The `layer` has no name, so that equal layers share their costs. `error_words` is the width of the network's output.
    `variant` is what the method's `variation` has for the batch, None for its defaults. With `learns` the batch has the site's
    true gradient, and learning from it is costed; otherwise its gradient is predicted.
    """

    layer: ArrayLayer
    accelerator: Accelerator
    batch: int
    error_words: int
    variant: Hashable = None
    learns: bool = False


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
