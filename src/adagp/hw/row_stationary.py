"""The row-stationary dataflow of Eyeriss (ISCA 2016).

A PE keeps one filter row and slides it along one input row: the **row primitive**, `output width * kernel width`
steps for one row of partial sums. A **PE set** of (kernel height x output rows) PEs makes one 2-D convolution of one
channel, one filter and one image; partial sums climb the set's columns. Sets higher than the array are folded; output
rows beyond the array's width are cut into strips of equal width; smaller strips are put beside and above each other
as long as they fit.

The three operations of training touch the same triples (input row, filter row, output row) in the same PEs. Only the
link that carries the sum differs: up the columns for outputs, along the diagonals for input gradients, along the rows
for weight gradients. So all three take the cycles of the forward pass, up to the few that fill a chain.
"""

from adagp.hw.array import Array
from adagp.hw.dataflows import DATAFLOWS
from adagp.hw.product import Cost, Product, Window

FILTERS_KEPT = 16
"""Filters that share an input row while it is in a PE's scratchpad (Eyeriss keeps 224 weights and 24 partial sums)."""


@DATAFLOWS.register("rs")
def row_stationary(product: Product, array: Array) -> Cost:
    """Sets of row primitives, folded and packed onto the array; a plain product is a 1x1 convolution, a row an image row."""
    window = product.window or Window(1, (1, 1), (product.rows, 1))
    if product.inserted_rows:
        window = window.spread
    kernel_height, kernel_width = window.kernel
    output_width = window.output[1]
    channels = product.depth // (kernel_height * kernel_width)
    sets = product.count * window.images * channels * product.columns
    strip, strips, height, folds = layout(window, array)
    at_once = (array.rows // height) * (array.columns // strip)
    passes = -(-sets * strips * folds // at_once)
    cycles = passes * (output_width * kernel_width + height - 1)

    outputs = product.count * product.rows * product.columns
    sums = -(-channels * folds // max(1, array.rows // height))
    input_rows = (strip - 1) * window.stride[0] + kernel_height
    input_width = (output_width - 1) * window.stride[1] + kernel_width
    inputs = -(-sets // min(product.columns, FILTERS_KEPT)) * strips * input_rows * input_width
    filters = sets * strips * kernel_height * kernel_width
    return Cost(cycles, product.macs, inputs + filters + outputs * (sums - 1), outputs * sums)


def layout(window: Window, array: Array) -> tuple[int, int, int, int]:
    """Return a strip's output rows and how many strips a set has; a fold's filter rows and how many folds a set has."""
    strips = -(-window.output[0] // array.columns)
    folds = -(-window.kernel[0] // array.rows)
    return -(-window.output[0] // strips), strips, -(-window.kernel[0] // folds), folds
