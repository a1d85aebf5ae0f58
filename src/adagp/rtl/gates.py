"""The operations of a number format in gates, for Amaranth's modules; `formats.py` is the same in numpy."""

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal, signed

from adagp.rtl import float_gates
from adagp.rtl.float_gates import SINGLE, FloatKind
from adagp.rtl.formats import Floats, Integers, NumberFormat

Gates = Any


def multiply_add(module: Module, number: NumberFormat, left: Gates, right: Gates, sums: Gates) -> Gates:
    """Return `sums` plus the product of the values `left` and `right`."""
    return add_product(module, number, sums, multiply(module, number, left, right))


def multiply(module: Module, number: NumberFormat, left: Gates, right: Gates) -> Gates:
    """Return the product of two values, before it is added."""
    if not isinstance(number, Integers):
        return float_gates.multiply(module, left, right, _kind(number))
    product = Signal(signed(2 * number.value_bits))
    module.d.comb += product.eq(left.as_signed() * right.as_signed())
    return product


def add_product(module: Module, number: NumberFormat, sums: Gates, product: Gates) -> Gates:
    """Return `sums` plus a product."""
    result = Signal(number.sum_bits)
    if isinstance(number, Integers):
        module.d.comb += result.eq(sums.as_signed() + product)
    else:
        module.d.comb += result.eq(float_gates.add(module, sums, product))
    return result


def promote(module: Module, number: NumberFormat, value: Gates) -> Gates:
    """Return a value as a sum."""
    result = Signal(number.sum_bits)
    if isinstance(number, Integers):
        module.d.comb += result.eq(value.as_signed() << number.fraction)
        return result
    if number.value_bits == SINGLE.bits:
        return value
    module.d.comb += result.eq(float_gates.widen(module, value, _kind(number)))
    return result


def convert(module: Module, number: NumberFormat, word: Gates) -> Gates:
    """Return a sum rounded to a value."""
    result = Signal(number.value_bits)
    if isinstance(number, Integers):
        rounded = Signal(signed(number.sum_bits + 1 - number.fraction))
        module.d.comb += rounded.eq((word.as_signed() + ((1 << number.fraction) >> 1)) >> number.fraction)
        limit = 1 << (number.value_bits - 1)
        module.d.comb += result.eq(Mux(rounded >= limit, limit - 1, Mux(rounded < -limit, -limit, rounded)))
        return result
    if number.value_bits == SINGLE.bits:
        return word
    module.d.comb += result.eq(float_gates.narrow(module, word, _kind(number)))
    return result


def positive(number: NumberFormat, value: Gates) -> Gates:
    """Return whether a value is above zero."""
    if isinstance(number, Integers):
        return ~value[-1] & value.any()
    fields = float_gates.unpack(value, _kind(number))
    return ~fields.sign & ~fields.is_zero & ~fields.is_nan


def relu(number: NumberFormat, word: Gates) -> Gates:
    """Return a sum, or zero for what is below it."""
    if isinstance(number, Integers):
        return Mux(word[-1], 0, word)
    fields = float_gates.unpack(word, SINGLE)
    return Mux(fields.sign | fields.is_nan, 0, word)


def add(module: Module, number: NumberFormat, sums: Gates, value: Gates) -> Gates:
    """Return `sums` plus a value: a multiply-add whose multiplier a synthesiser removes."""
    return multiply_add(module, number, Const(int(number.encode(1.0)), number.value_bits), value, sums)


def scale(module: Module, number: NumberFormat, word: Gates, factor: Gates, shift: Gates) -> Gates:
    """Return a sum times a value, shifted right."""
    result = Signal(number.sum_bits)
    if isinstance(number, Integers):
        product = Signal(signed(number.sum_bits + number.value_bits))
        module.d.comb += product.eq(word.as_signed() * factor.as_signed())
        module.d.comb += result.eq(product[number.fraction :].as_signed() >> shift)
        return result
    module.d.comb += result.eq(float_gates.multiply(module, word, promote(module, number, factor), SINGLE))
    return result


def _kind(number: NumberFormat) -> FloatKind:
    assert isinstance(number, Floats)
    return FloatKind(number.exponent_bits, number.mantissa_bits)
