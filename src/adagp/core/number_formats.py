"""Number formats by their text form: the arithmetic in which the products of a model's layers are computed. No torch here.

`precision="bfp4"` is read by the family `bfp`, which adds itself to `NUMBER_FORMATS`. A paper or plug-in whose module does
that calls `provide("number format", "package.module")`. The core has single precision alone.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adagp.core.registry import Registry
from adagp.errors import OptionError

if TYPE_CHECKING:
    from adagp.engine.arithmetic import Arithmetic, ArithmeticFacts


class NumberFormat(ABC):
    """The arithmetic of a run, as plain values; `text` is the form that `parse_precision` reads."""

    text: str
    native = False
    """Whether torch's own products are used, in single precision."""
    by_layer = False
    """Whether it depends on the order in which layers run, so that a trial forward pass is needed."""
    shared_exponent: tuple[int, int] | None = None
    """For block floating point: how many numbers share an exponent, and its bits."""

    @abstractmethod
    def arithmetic(self, facts: "ArithmeticFacts", is_training: Callable[[], bool]) -> "Arithmetic":
        """Return what computes the products of a run; `is_training` returns whether the present call is one of training."""


@dataclass(frozen=True)
class SinglePrecision(NumberFormat):
    """Torch's own products."""

    text: str = "fp32"
    native = True

    def arithmetic(self, facts: "ArithmeticFacts", is_training: Callable[[], bool]) -> "Arithmetic":
        """Raise: there is nothing to replace."""
        raise NotImplementedError("single precision is torch's own arithmetic")


@dataclass(frozen=True)
class FormatFamily:
    """Texts that begin with the same word: `forms` are examples for the help, `parse` reads one of them."""

    forms: tuple[str, ...]
    parse: Callable[[str], NumberFormat]


NUMBER_FORMATS: Registry[FormatFamily] = Registry("number format", extensible=True)


def precision_forms() -> list[str]:
    """Return examples of all text forms."""
    return [form for name in NUMBER_FORMATS for form in NUMBER_FORMATS[name].forms]


def parse_precision(text: str) -> NumberFormat:
    """Return the number format that `text` describes: `bfp4` and `bfp:m=4` are of the family `bfp`."""
    word = text.partition(":")[0]
    family = word if word in NUMBER_FORMATS else re.sub(r"\d+$", "", word)
    if len(text) > 200 or family not in NUMBER_FORMATS:
        raise unreadable_precision(text)
    return NUMBER_FORMATS[family].parse(text)


def unreadable_precision(text: str) -> OptionError:
    """Return the error for a text that is none of the allowed forms."""
    return OptionError(f"cannot read the precision '{text[:80]}'. Allowed forms: {', '.join(precision_forms())}.")


def _parse_single(text: str) -> NumberFormat:
    if text.partition(":")[2]:
        raise OptionError(f"the precision '{text}' is single precision, which takes no options: write fp32.")
    return SinglePrecision(text)


NUMBER_FORMATS.add("fp32", FormatFamily(("fp32",), _parse_single))
