"""Four layers of different kinds on an accelerator that memory never stalls, for tests of what a batch costs."""

from math import inf

from adagp.hw import Accelerator, Attention, Convolution, Linear, Stage, Workload, stages

ACCELERATOR = Accelerator(bandwidth=inf)
LAYERS = (
    Convolution("stem", 3, 16, (3, 3), (8, 8), (8, 8), input_gradient=False),
    Convolution("middle", 16, 16, (3, 3), (8, 8), (8, 8)),
    Attention("mix", 2, 10, 16, 12),
    Linear("head", 1, 64, 10),
)


def small_stages() -> tuple[Stage, ...]:
    """Return the stages of the layers for batches of four samples."""
    return stages(Workload("w", LAYERS), ACCELERATOR, 4)
