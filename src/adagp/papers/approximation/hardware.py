"""The cost of topk's weight gradient on an accelerator."""

from adagp.hw.product import Cost
from adagp.hw.stages import SiteWork


def top_one_gradient(site: SiteWork) -> Cost:
    """Cost one input patch for each sample and output channel, found by reading the output's gradient once.

    Patches of a sample overlap: with the input channels in the outer loop, each input word comes on chip at most once, and the
    patches are taken from the buffer.
    """
    layer, accelerator, batch = site.layer, site.accelerator, site.batch
    macs = batch * layer.weights
    gradients = batch * layer.output_words * accelerator.width("gradients")
    patches = macs * accelerator.width("activations")
    result = layer.weights * accelerator.width("gradients")
    inputs = batch * layer.input_words * accelerator.width("activations")
    compute = Cost(-(-macs // accelerator.array.pes), macs, buffer_reads=gradients + patches)
    return compute.moving(gradients + min(inputs, patches), result)
