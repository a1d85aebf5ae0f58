"""IEEE 754 multiplication, addition and rounding in gates: ties to even, with subnormals, infinities and one NaN."""

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed, unsigned

Gates = Any
"""A value of Amaranth's: a signal or an expression of signals."""


@dataclass(frozen=True)
class FloatKind:
    """Widths of a binary format's fields."""

    exponent: int
    mantissa: int

    @property
    def bits(self) -> int:
        """Width of a word."""
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        """What is added to an exponent to store it."""
        return (1 << (self.exponent - 1)) - 1

    @property
    def infinity(self) -> int:
        """Word of plus infinity."""
        return ((1 << self.exponent) - 1) << self.mantissa

    @property
    def not_a_number(self) -> int:
        """Word of the one NaN."""
        return self.infinity | (1 << (self.mantissa - 1))


SINGLE = FloatKind(8, 23)


@dataclass(frozen=True)
class Unpacked:
    """A word's fields; `exponent` is 1 for subnormals, whose `significand` has no leading 1."""

    sign: Gates
    exponent: Gates
    significand: Gates
    is_zero: Gates
    is_infinite: Gates
    is_nan: Gates


def unpack(word: Gates, kind: FloatKind) -> Unpacked:
    """Return the fields of `word`."""
    mantissa, field, sign = word[: kind.mantissa], word[kind.mantissa : kind.bits - 1], word[kind.bits - 1]
    normal, full = field.any(), field.all()
    return Unpacked(
        sign,
        Mux(normal, field, 1),
        Cat(mantissa, normal),
        ~normal & ~mantissa.any(),
        full & ~mantissa.any(),
        full & mantissa.any(),
    )


def normalise(module: Module, word: Gates, width: int) -> tuple[Gates, Gates]:
    """Return `word` shifted left until its top bit is 1, and by how many places; for zero, that number is meaningless."""
    current, shifts = word, []
    for power in reversed(range(max(1, (width - 1).bit_length()))):
        step = 1 << power
        if step >= width:
            continue
        empty = Signal()
        shifted = Signal(width)
        module.d.comb += empty.eq(~current[width - step :].any())
        module.d.comb += shifted.eq(Mux(empty, current << step, current))
        current = shifted
        shifts.append((empty, power))
    count = Signal(range(width))
    module.d.comb += count.eq(sum((empty << power for empty, power in shifts), start=Const(0)))
    return current, count


def shift_right_sticky(module: Module, word: Gates, width: int, count: Gates) -> Gates:
    """Return `word` shifted right; the lowest bit of the result is 1 if any 1 was shifted out."""
    result, lost = Signal(width), Signal()
    wide = Signal(2 * width)
    far = Signal()
    module.d.comb += far.eq(count >= width)
    bits = max(1, (width - 1).bit_length())
    module.d.comb += wide.eq(Cat(Const(0, width), word) >> count[:bits])
    module.d.comb += lost.eq(Mux(far, word.any(), wide[:width].any()))
    module.d.comb += result.eq(Mux(far, 0, wide[width:]) | lost)
    return result


def round_and_pack(module: Module, sign: Gates, exponent: Gates, word: Gates, width: int, kind: FloatKind) -> Gates:
    """Return the number nearest to a normalised `word` (top bit 1, or all zero) with the biased `exponent` of its top bit."""
    size = max(width, kind.mantissa + 3)
    padded = Cat(Const(0, size - width), word) if size > width else word
    biased = Signal(Value.cast(exponent).shape())
    module.d.comb += biased.eq(exponent)
    subnormal, shift = Signal(), Signal(unsigned(11))
    module.d.comb += [subnormal.eq(biased < 1), shift.eq(Mux(biased < 1, 1 - biased, 0))]
    shifted = shift_right_sticky(module, padded, size, shift)
    rounded = shifted[size - kind.mantissa - 1 :]
    guard, rest = shifted[size - kind.mantissa - 2], shifted[: size - kind.mantissa - 2].any()
    field = Mux(subnormal, 0, biased[: kind.exponent])
    up = guard & (rest | rounded[0])
    # A mantissa that is rounded up to the next power of two carries into the exponent, as it should.
    magnitude = Signal(kind.bits)
    module.d.comb += magnitude.eq(Cat(rounded[: kind.mantissa], field) + up)
    top = (1 << kind.exponent) - 1
    overflow = Signal()
    module.d.comb += overflow.eq((~subnormal & (biased >= top)) | (magnitude[kind.mantissa : kind.bits - 1].all()))
    result = Signal(kind.bits)
    module.d.comb += result.eq(Cat(Mux(overflow, kind.infinity, magnitude)[: kind.bits - 1], sign))
    return result


def multiply(module: Module, left: Gates, right: Gates, kind: FloatKind) -> Gates:
    """Return the product of two words of `kind` as fp32."""
    a, b = unpack(left, kind), unpack(right, kind)
    width = 2 * kind.mantissa + 2
    product, sign, exponent = Signal(width), Signal(), Signal(signed(12))
    module.d.comb += [product.eq(a.significand * b.significand), sign.eq(a.sign ^ b.sign)]
    normalised, shift = normalise(module, product, width)
    module.d.comb += exponent.eq(a.exponent + b.exponent - 2 * kind.bias + SINGLE.bias + 1 - shift)
    finite = round_and_pack(module, sign, exponent, normalised, width, SINGLE)
    result = Signal(SINGLE.bits)
    module.d.comb += result.eq(finite)
    zero, infinite = a.is_zero | b.is_zero, a.is_infinite | b.is_infinite
    with module.If(a.is_nan | b.is_nan | (zero & infinite)):
        module.d.comb += result.eq(SINGLE.not_a_number)
    with module.Elif(infinite):
        module.d.comb += result.eq(Cat(Const(SINGLE.infinity, SINGLE.bits - 1), sign))
    with module.Elif(zero):
        module.d.comb += result.eq(Cat(Const(0, SINGLE.bits - 1), sign))
    return result


def add(module: Module, left: Gates, right: Gates) -> Gates:
    """Return the sum of two fp32 words."""
    swap, large, small = Signal(), Signal(SINGLE.bits), Signal(SINGLE.bits)
    module.d.comb += [
        swap.eq(left[: SINGLE.bits - 1] < right[: SINGLE.bits - 1]),
        large.eq(Mux(swap, right, left)),
        small.eq(Mux(swap, left, right)),
    ]
    a, b = unpack(large, SINGLE), unpack(small, SINGLE)
    width = SINGLE.mantissa + 4
    aligned = shift_right_sticky(module, Cat(Const(0, 3), b.significand), width, a.exponent - b.exponent)
    total, exponent = Signal(width + 1), Signal(signed(12))
    first = Cat(Const(0, 3), a.significand)
    module.d.comb += total.eq(Mux(a.sign ^ b.sign, first - aligned, first + aligned))
    normalised, shift = normalise(module, total, width + 1)
    module.d.comb += exponent.eq(a.exponent + 1 - shift)
    finite = round_and_pack(module, a.sign, exponent, normalised, width + 1, SINGLE)
    result = Signal(SINGLE.bits)
    module.d.comb += result.eq(finite)
    with module.If(a.is_nan | b.is_nan | (a.is_infinite & b.is_infinite & (a.sign ^ b.sign))):
        module.d.comb += result.eq(SINGLE.not_a_number)
    with module.Elif(a.is_infinite):
        module.d.comb += result.eq(large)
    with module.Elif(~total.any()):
        module.d.comb += result.eq(Cat(Const(0, SINGLE.bits - 1), a.sign & b.sign))
    return result


def widen(module: Module, word: Gates, kind: FloatKind) -> Gates:
    """Return a word of `kind` as fp32, exactly."""
    unit = Const(kind.bias << kind.mantissa, kind.bits)
    return multiply(module, word, unit, kind)


def narrow(module: Module, word: Gates, kind: FloatKind) -> Gates:
    """Return an fp32 word rounded to `kind`."""
    fields = unpack(word, SINGLE)
    normalised, shift = normalise(module, fields.significand, SINGLE.mantissa + 1)
    exponent = fields.exponent - shift - SINGLE.bias + kind.bias
    finite = round_and_pack(module, fields.sign, exponent, normalised, SINGLE.mantissa + 1, kind)
    result = Signal(kind.bits)
    module.d.comb += result.eq(finite)
    with module.If(fields.is_nan):
        module.d.comb += result.eq(kind.not_a_number)
    with module.Elif(fields.is_infinite):
        module.d.comb += result.eq(Cat(Const(kind.infinity, kind.bits - 1), fields.sign))
    with module.Elif(fields.is_zero):
        module.d.comb += result.eq(Cat(Const(0, kind.bits - 1), fields.sign))
    return result
