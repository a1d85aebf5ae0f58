"""The cost of direct feedback alignment on an accelerator: a product of the output's error with a random matrix for each layer.

The matrix is read from off-chip memory like a weight. Derivatives of activations are left out.
"""

from adagp.hw.product import NOTHING, Operation
from adagp.hw.stages import Predictions, SiteWork, on_predictor_array
from adagp.hw.workload import Linear


def projected_error(site: SiteWork) -> Predictions | None:
    """Cost the error's way to the layer's input; nothing is learned in batches by backprop."""
    if site.learns:
        return None
    accelerator = site.accelerator
    product = Linear("", 1, max(1, site.error_words), site.layer.input_words).product(site.batch)
    trained = accelerator.trained_with(product, Operation.FORWARD)
    main, own = (
        accelerator.with_stalls(array.tiled_cost(trained)) for array in (accelerator, on_predictor_array(accelerator))
    )
    return Predictions(main, NOTHING, own, NOTHING, own_memory=False)
