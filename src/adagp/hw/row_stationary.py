"""The row-stationary dataflow of Eyeriss (ISCA 2016).

A PE keeps one filter row and slides it along one input row: the **row primitive**, `output width * kernel width`
steps for one row of partial sums. A **PE set** of (kernel height x output rows) PEs makes one 2-D convolution of one
channel, one filter and one image; partial sums climb the set's columns. Sets higher than the array are folded; output
rows beyond the array's width are cut into strips of equal width; smaller strips are put next to and above each other
as long as they fit.

A PE's scratchpads hold rows of several channels and filters: their sums add up inside the PE, and an input row serves all of
these filters. Sets that run at once are of different channels, whose sums add up on the way, or of different filters, which
share the input: whichever takes fewer accesses to the buffer. Filter rows stay for all images of a tile.

The three operations of training touch the same triples (input row, filter row, output row) in the same PEs. Only the
link that carries the sum differs: up the columns for outputs, along the diagonals for input gradients, along the rows
for weight gradients. So all three take the cycles of the forward pass, up to the few that fill a chain. As **ordinary**
products, gradients are convolutions of their own: dX one of the output's gradient with as many filters as inputs have
channels, dW one of each input channel (as an image, samples as its channels) with the output's gradient as its kernel.
"""

from dataclasses import replace
from math import ceil

from adagp.hw.dataflows import DATAFLOWS, Array
from adagp.hw.product import AXES, RESULTS, Cost, Operation, Product, Window

FILTERS_KEPT = 16
"""Filters that share an input row while it is in a PE's scratchpad; Eyeriss keeps 16 of AlexNet's in all layers."""
INPUT_WORDS, FILTER_WORDS = 12, 224
"""Words of a PE's scratchpads for inputs and for filters in Eyeriss."""


@DATAFLOWS.register("rs")
def row_stationary(product: Product, array: Array) -> Cost:
    """Sets of row primitives, folded and packed onto the array; a plain product is a 1x1 convolution, a row an image row."""
    if product.ordinary and product.operation is not Operation.FORWARD:
        return row_stationary(ordinary_convolution(product), array)._replace(macs=product.macs)
    window = product.window or Window(1, (1, 1), (product.rows, 1))
    if product.inserted_rows:
        window = window.upsampled
    kernel_height, kernel_width = window.kernel
    channels = product.depth // (kernel_height * kernel_width)
    sets = product.count * window.images * channels * product.columns
    strip, strips, height, folds = layout(window, array)
    at_once = (array.rows // height) * (array.columns // strip)
    passes = -(-sets * strips * folds // at_once)
    cycles = passes * (window.output[1] * kernel_width + height - 1)
    reads, writes = min(
        (_accesses(product, window, array, together) for together in range(1, at_once + 1) if at_once % together == 0),
        key=sum,
    )
    bits, filters = product.bits, min(product.columns, FILTERS_KEPT)
    factors = sum(getattr(bits, name) for name in AXES if name != RESULTS[product.operation])
    hops = bits.sums * (height - 1) / height / kernel_width + bits.inputs / (kernel_width * filters)
    return Cost(
        cycles,
        product.macs,
        product.count * reads,
        product.count * writes,
        registers=product.macs * (factors + 2 * bits.sums),
        network=ceil(product.macs * hops),
    )


def _accesses(product: Product, window: Window, array: Array, together: int) -> tuple[int, int]:
    """Return the buffer's bits read and written by one product, if `together` sets at once are of different channels."""
    kernel_height, kernel_width = window.kernel
    strip, strips, height, folds = layout(window, array)
    at_once = (array.rows // height) * (array.columns // strip)
    channels = product.depth // (kernel_height * kernel_width)
    in_pe = min(channels, max(1, INPUT_WORDS // kernel_width))
    filters = max(1, min(product.columns, FILTERS_KEPT, FILTER_WORDS // (in_pe * kernel_width)))
    image_rows = window.output[0] * window.output[1]
    images = window.images if product.tile is None else min(window.images, max(1, product.tile[0] // image_rows))

    input_rows = min(
        strip * kernel_height, (strip - 1) * window.stride[0] + (kernel_height - 1) * window.dilation[0] + 1
    )
    input_width = window.touched(window.output[1], 1)
    filter_groups = -(-product.columns // min(product.columns, filters * (at_once // together)))
    moved = {
        "inputs": window.images * channels * strips * input_rows * input_width * filter_groups,
        "weights": product.columns * product.depth * strips * -(-window.images // images),
        "outputs": product.rows * product.columns * -(-channels * folds // min(channels * folds, in_pe * together)),
    }
    once = {
        "inputs": window.images * channels * window.touched(window.output[0], 0) * input_width,
        "weights": product.columns * product.depth,
        "outputs": product.rows * product.columns,
    }
    result, bits = RESULTS[product.operation], product.bits
    again = max(0, moved[result] - once[result]) * bits.sums
    reads = sum(words * getattr(bits, name) for name, words in moved.items() if name != result)
    return reads + again, again + once[result] * getattr(bits, result)


def ordinary_convolution(product: Product) -> Product:
    """Return the forward product that makes a gradient: the convolution whose output it is."""
    window = product.window or Window(1, (1, 1), (product.rows, 1))
    channels = product.depth // (window.kernel[0] * window.kernel[1])
    bits = product.bits
    plain = replace(product, operation=Operation.FORWARD, ordinary=False, inserted_rows=0, tile=None)
    if product.operation is Operation.INPUT_GRADIENT:
        size = window.input_size or window.upsampled.output
        back = Window(window.images, window.kernel, size)
        return replace(
            plain,
            rows=back.rows,
            depth=product.columns * product.kernel_taps,
            columns=channels,
            window=back,
            bits=replace(bits, inputs=bits.outputs, outputs=bits.inputs),
        )
    kernel = window.upsampled.output if product.inserted_rows else window.output
    back = Window(channels, kernel, window.kernel)
    return replace(
        plain,
        rows=back.rows,
        depth=window.images * kernel[0] * kernel[1],
        columns=product.columns,
        window=back,
        bits=replace(bits, weights=bits.outputs, outputs=bits.weights),
    )


def layout(window: Window, array: Array) -> tuple[int, int, int, int]:
    """Return a strip's output rows and how many strips a set has; a fold's filter rows and how many folds a set has."""
    strips = -(-window.output[0] // array.columns)
    folds = -(-window.kernel[0] // array.rows)
    return -(-window.output[0] // strips), strips, -(-window.kernel[0] // folds), folds
