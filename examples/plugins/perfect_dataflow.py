"""A dataflow: an array whose processing elements are always busy, and which reads every number once. The bound of all others.

adagp simulate vgg13 --plugin examples.plugins.perfect_dataflow --dataflow perfect
"""

from adagp.hw import DATAFLOWS, Array, Cost, Product


@DATAFLOWS.register("perfect")
def perfect(product: Product, array: Array) -> Cost:
    """Return as many cycles as there are multiply-accumulates per processing element."""
    bits = product.bits
    factors = product.rows * product.depth * bits.inputs + product.depth * product.columns * bits.weights
    outputs = product.rows * product.columns * bits.outputs
    macs = product.rows * product.depth * product.columns
    return Cost(-(-macs // array.pes), macs, buffer_reads=factors, buffer_writes=outputs) * product.count
