"""One product on the accelerator: the array's cycles and the traffic of the tiling that suits it best."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from adagp.hw.accelerator import Accelerator
from adagp.hw.array import Array
from adagp.hw.dataflows import array_cost
from adagp.hw.memory import Memory
from adagp.hw.product import Bits, Cost, Operation, Product, total


def tiled_cost(product: Product, accelerator: Accelerator) -> Cost:
    """Return the cost of a product whose matrices come from off-chip memory and go there, without stalls."""
    return _tiled(product, accelerator.array, accelerator.dataflow, accelerator.memory)


@lru_cache(maxsize=1 << 14)
def _tiled(product: Product, array: Array, dataflow: str, memory: Memory) -> Cost:
    from adagp.hw.tiling import best_tiling  # numpy, which `adagp --help` does without

    tiling = best_tiling(product, array, dataflow, memory)
    return array_cost(dataflow, replace(product, tile=tiling.tile), array).moving(tiling.reads, tiling.writes)


def trained_with(product: Product, operation: Operation, accelerator: Accelerator, attention: bool = False) -> Product:
    """Return one of the three products of training as the accelerator runs it: its mapping and its words' widths."""
    bits, ordinary = accelerator.bits(operation, attention), accelerator.backward == "same-dataflow"
    return _trained(product, operation, accelerator.zero_insertion, ordinary, bits)


@lru_cache(maxsize=1 << 14)
def _trained(product: Product, operation: Operation, zero_insertion: bool, ordinary: bool, bits: Bits) -> Product:
    return replace(product.gradient(operation, zero_insertion, ordinary), bits=bits)


def tiled_total(products: Iterable[Product], accelerator: Accelerator) -> Cost:
    """Return the cost of several tiled products, one after the other."""
    return total(tiled_cost(product, accelerator) for product in products)


def resident_total(products: Iterable[Product], accelerator: Accelerator) -> Cost:
    """Return the cost of products whose matrices are on chip, one after the other."""
    return total(array_cost(accelerator.dataflow, product, accelerator.array) for product in products)
