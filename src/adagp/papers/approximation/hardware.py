"""What the weight gradient of the largest output gradients costs on an accelerator."""

from adagp.hw.product import Cost
from adagp.hw.stages import SiteWork


def top_one_gradient(site: SiteWork) -> Cost:
    """Cost one input patch for each sample and output channel, found by reading the output's gradient once."""
    layer, accelerator, batch = site.layer, site.accelerator, site.batch
    macs = batch * layer.weights
    gradients = batch * layer.output_words * accelerator.width("gradients")
    patches = macs * accelerator.width("activations")
    result = layer.weights * accelerator.width("gradients")
    compute = Cost(-(-macs // accelerator.array.pes), macs, buffer_reads=gradients + patches)
    return compute.moving(gradients + patches, result)
