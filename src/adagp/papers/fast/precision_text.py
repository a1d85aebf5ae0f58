"""Precision schedules in a small text form, the same on the command line, in config files and in run folders.

bfp4                       block floating point of 4 mantissa bits, in groups of 16 with 4 exponent bits; also bfp2, bfp8, ...
bfp:g=16,e=4,m=4           the same with all sizes given
temporal:2-4@0.5           2 bits in the first half of the run, then 4; 4-2 is the reverse; fp32 may stand for a width
layers:2-4@10              2 bits in the first 10 layers, 4 in the others
fast                       each tensor has 2 or 4 bits, as its relative improvement by 4 is below a falling threshold or not
fast:alpha=0.6,beta=0.3    the same with the threshold alpha - beta * time - beta * depth; low=2 and high=4 are the widths
random:2-4@0.5             a control: 4 bits with probability 0.5, else 2

All take, separated by commas: g=16 (numbers in a group), e=4 (bits of an exponent), rounding=nearest|truncate (of
weights and activations), gradients=stochastic|nearest|truncate, overflow=saturate|raise.
"""

import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from adagp.core.block_format import MOST_MANTISSA_BITS
from adagp.core.precision import PRECISIONS, PrecisionFamily, unreadable_precision
from adagp.errors import OptionError, unknown_name
from adagp.papers.fast.precision import BlockPrecision, ByLayer, Conversion, Fast, Fixed, RandomChoice, Temporal

FORMS = {
    "bfp": ("bfp4", "bfp:g=16,e=4,m=4"),
    "temporal": ("temporal:2-4@0.5",),
    "layers": ("layers:2-4@10",),
    "fast": ("fast", "fast:alpha=0.6,beta=0.3"),
    "random": ("random:2-4@0.5",),
}
_CONVERSION = {
    "g": "group",
    "e": "exponent_bits",
    "rounding": "rounding",
    "gradients": "gradients",
    "overflow": "overflow",
}
_WORDS = ("rounding", "gradients", "overflow")
_WHOLE = ("g", "e", "m", "low", "high")


def parse_block_precision(text: str) -> BlockPrecision:
    """Return the precision schedule that `text` describes."""
    name, _, rest = text.partition(":")
    items = [item for item in rest.split(",") if item] if rest else []
    split = items.pop(0) if items and "=" not in items[0] else ""
    found = re.fullmatch(r"bfp(\d{1,9})", name)
    kind = "bfp" if found else name
    if kind not in _READERS or (rest and not items and not split):
        raise unreadable_precision(text)
    options = _options(text, items, _OWN[kind])
    if found:
        if "m" in options:
            raise OptionError(f"the precision '{text}' says the mantissa bits twice, as {name} and as m.")
        options["m"] = int(found[1])
    if bool(split) != (kind in ("temporal", "layers", "random")):
        raise unreadable_precision(text)
    conversion = Conversion(**{_CONVERSION[key]: options.pop(key) for key in list(options) if key in _CONVERSION})
    return _READERS[kind](text, conversion, split, options)


def _options(text: str, items: list[str], own: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in items:
        key, _, value = item.partition("=")
        if key not in (*own, *_CONVERSION):
            raise unknown_name(f"option of the precision '{text[:80]}'", key, (*own, *_CONVERSION))
        if key in values:
            raise OptionError(f"the precision '{text[:80]}' gives {key} twice.")
        values[key] = value if key in _WORDS else _number(text, key, value, whole=key in _WHOLE)
    return values


def _number(text: str, name: str, value: str, *, whole: bool) -> Any:
    try:
        number = int(value) if whole else float(value)
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        kind = "whole number" if whole else "number"
        raise OptionError(f"the precision '{text[:80]}' has {name}={value}; it must be a {kind}.")
    return number


def _bits(text: str, bits: int) -> int:
    if not 1 <= bits <= MOST_MANTISSA_BITS:
        raise OptionError(
            f"the precision '{text[:80]}' has {bits} mantissa bits; it must be 1 to {MOST_MANTISSA_BITS}, or fp32."
        )
    return bits


def _split(text: str, split: str) -> tuple[int | None, int | None, str]:
    """Return the two widths of `A-B@WHERE`, and where they change."""
    found = re.fullmatch(r"(fp32|\d{1,9})-(fp32|\d{1,9})@(.+)", split)
    if not found:
        raise unreadable_precision(text)
    first, second = (None if one == "fp32" else _bits(text, int(one)) for one in found.groups()[:2])
    return first, second, found[3]


def _share(text: str, written: str, name: str) -> float:
    share = float(_number(text, name, written, whole=False))
    if not 0 <= share <= 1:
        raise OptionError(f"the precision '{text[:80]}' has the {name} {written}; it must be 0 to 1.")
    return share


def _read_fixed(text: str, conversion: Conversion, split: str, options: Mapping[str, Any]) -> BlockPrecision:
    return Fixed(text, conversion, _bits(text, options.get("m", 4)))


def _read_temporal(text: str, conversion: Conversion, split: str, options: Mapping[str, Any]) -> BlockPrecision:
    first, second, where = _split(text, split)
    return Temporal(text, conversion, first, second, _share(text, where, "share of the run"))


def _read_layers(text: str, conversion: Conversion, split: str, options: Mapping[str, Any]) -> BlockPrecision:
    first, second, where = _split(text, split)
    count = _number(text, "number of layers", where, whole=True)
    if count < 1:
        raise OptionError(f"the precision '{text[:80]}' changes after layer {count}; it must be 1 or more.")
    return ByLayer(text, conversion, first, second, count)


def _read_random(text: str, conversion: Conversion, split: str, options: Mapping[str, Any]) -> BlockPrecision:
    first, second, where = _split(text, split)
    return RandomChoice(text, conversion, first, second, _share(text, where, "probability"))


def _read_fast(text: str, conversion: Conversion, split: str, options: Mapping[str, Any]) -> BlockPrecision:
    low, high = (_bits(text, options.get(name, bits)) for name, bits in (("low", 2), ("high", 4)))
    if not low < high:
        raise OptionError(f"the precision '{text[:80]}' has low={low} and high={high}; low must be below high.")
    alpha, beta = options.get("alpha", Fast.alpha), options.get("beta", Fast.beta)
    if not (abs(alpha) <= 100 and 0 <= beta <= 100):
        raise OptionError(
            f"the precision '{text[:80]}' has alpha={alpha:g} and beta={beta:g}; they must be -100 to 100 and 0 to 100."
        )
    return Fast(text, conversion, alpha, beta, low, high)


_READERS: dict[str, Callable[[str, Conversion, str, Mapping[str, Any]], BlockPrecision]] = {
    "bfp": _read_fixed,
    "temporal": _read_temporal,
    "layers": _read_layers,
    "fast": _read_fast,
    "random": _read_random,
}
_OWN: dict[str, tuple[str, ...]] = {
    "bfp": ("m",),
    "temporal": (),
    "layers": (),
    "fast": ("alpha", "beta", "low", "high"),
    "random": (),
}

for _family, _forms in FORMS.items():
    PRECISIONS.add(_family, PrecisionFamily(_forms, parse_block_precision))
