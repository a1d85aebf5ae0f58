"""One product on the accelerator: the array's cycles and the traffic of the tiling that suits it best."""

from collections.abc import Iterable
from dataclasses import replace

from adagp.hw.accelerator import Accelerator
from adagp.hw.dataflows import array_cost
from adagp.hw.product import Cost, Operation, Product, total


def tiled_cost(product: Product, accelerator: Accelerator) -> Cost:
    """Return the cost of a product whose matrices come from off-chip memory and go there, without stalls."""
    from adagp.hw.tiling import best_tiling  # numpy, which `adagp --help` does without

    array, dataflow = accelerator.array, accelerator.dataflow
    tiling = best_tiling(product, array, dataflow, accelerator.memory)
    return array_cost(dataflow, replace(product, tile=tiling.tile), array).moving(tiling.reads, tiling.writes)


def trained_with(product: Product, operation: Operation, accelerator: Accelerator, attention: bool = False) -> Product:
    """Return one of the three products of training as the accelerator runs it: its mapping and its words' widths."""
    found = product.gradient(operation, accelerator.zero_insertion, accelerator.backward == "same-dataflow")
    return replace(found, bits=accelerator.bits(operation, attention))


def tiled_total(products: Iterable[Product], accelerator: Accelerator) -> Cost:
    """Return the cost of several tiled products, one after the other."""
    return total(tiled_cost(product, accelerator) for product in products)


def resident_total(products: Iterable[Product], accelerator: Accelerator) -> Cost:
    """Return the cost of products whose matrices are on chip, one after the other."""
    return total(array_cost(accelerator.dataflow, product, accelerator.array) for product in products)
