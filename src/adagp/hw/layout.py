"""A workload as schedules see a model: its sites in the order of execution, and their cost."""

from adagp.hw.workload import Convolution, Workload
from adagp.schedules import Layer, Layout


def workload_layout(workload: Workload) -> Layout:
    """Return the trained layers of `workload`, each at the place of its first use and with the cost of all its uses.

    A workload does not name the parameters that belong to no site. Each layer's own name stands for those of the layer and
    of the element-wise work after it: a plan that holds this name holds them.
    """
    macs: dict[str, int] = {}
    kinds: dict[str, str] = {}
    for layer in workload.array_layers:
        if layer.trainable:
            macs[layer.name] = macs.get(layer.name, 0) + layer.product(1).macs
            transposed = (
                isinstance(layer, Convolution) and layer.transposed
            )  # no site in training, so not counted as conv
            kinds[layer.name] = "other" if transposed else "conv" if isinstance(layer, Convolution) else "linear"
    layers = (Layer(name, kind, is_site=True, macs=macs[name], held=(name,)) for name, kind in kinds.items())
    return Layout(tuple(layers), measured=True)
