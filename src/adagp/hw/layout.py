"""A workload as schedules see a model: its sites in the order of execution, and their cost."""

from adagp.hw.workload import Convolution, Linear, Workload
from adagp.schedules import Layer, Layout


def workload_layout(workload: Workload) -> Layout:
    """Return the trained layers of `workload`, each at the place of its first use and with the cost of all its uses.

    A workload does not name the parameters that belong to no site. Each layer's own name stands for those of the layer and
    of the element-wise work after it: a plan that holds this name holds them.
    """
    layers: dict[str, Layer] = {}
    for layer in workload.array_layers:
        if layer.trainable:
            kind = "conv" if isinstance(layer, Convolution) else "linear" if isinstance(layer, Linear) else "other"
            macs = layer.product(1).macs + (layers[layer.name].macs if layer.name in layers else 0)
            layers[layer.name] = Layer(layer.name, kind, is_site=True, macs=macs, held=(layer.name,))
    return Layout(tuple(layers.values()), measured=True)
