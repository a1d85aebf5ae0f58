"""What a batch of backprop multiplies, layer by layer, with names that other programs can read."""

import re
from dataclasses import dataclass

from adagp.hw.product import Operation
from adagp.hw.workload import ArrayLayer, Attention, Convolution, Workload


@dataclass(frozen=True)
class Work:
    """One of a layer's three products, of `batch` samples."""

    name: str
    layer: ArrayLayer
    operation: Operation
    batch: int

    @property
    def count(self) -> int:
        """Equal products that make up this one: groups of a convolution, heads of attention."""
        return self.layer.product(self.batch).count

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The product as an ordinary one, (M x K) (K x N): M, N and K.

        Y = X W, dX = dY W^T and dW = X^T dY are products of the same three sizes in another order.
        """
        product = self.layer.product(self.batch)
        rows, depth, columns = product.rows, product.depth, product.columns
        if self.operation is Operation.FORWARD:
            return rows, columns, depth
        if self.operation is Operation.INPUT_GRADIENT:
            return rows, depth, columns
        return depth, columns, rows

    @property
    def convolution(self) -> Convolution | None:
        """The layer, where its loops are those of a convolution; a transposed one is lowered to a product."""
        plain = isinstance(self.layer, Convolution) and not self.layer.transposed
        return self.layer if plain and isinstance(self.layer, Convolution) else None


def training_work(workload: Workload, batch: int) -> tuple[Work, ...]:
    """Return every product that a batch of backprop needs: forward in order, then backward from the last layer."""
    layers = [(f"{index:03d}_{plain_name(layer.name)}", layer) for index, layer in enumerate(workload.array_layers)]
    forward = [Work(name, layer, Operation.FORWARD, batch) for name, layer in layers]
    backward: list[Work] = []
    for name, layer in reversed(layers):
        both = isinstance(layer, Attention) and layer.input_gradient  # two activations have two gradients
        if layer.trainable or both:
            backward.append(Work(name, layer, Operation.WEIGHT_GRADIENT, batch))
        if layer.input_gradient:
            backward.append(Work(name, layer, Operation.INPUT_GRADIENT, batch))
    return (*forward, *backward)


def plain_name(name: str) -> str:
    """Return a name of lower-case letters, digits and underscores: SCALE-Sim takes an upper-case DP for depthwise."""
    return re.sub(r"\W+", "_", name).strip("_").lower() or "layer"
