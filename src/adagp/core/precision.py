"""Precisions by their text form: the arithmetic in which the products of a model's layers are computed. No torch here.

`precision="bfp4"` is read by the family `bfp`, whose module adds it to `PRECISIONS`. A paper or plug-in with such a module
calls `provide("precision", "package.module")`, so that it is imported when needed. The core has single precision only.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adagp.core.registry import Registry
from adagp.errors import OptionError

if TYPE_CHECKING:
    from adagp.engine.extensions import Arithmetic, ArithmeticFacts


class Precision(ABC):
    """The arithmetic of a run, as plain values; `text` is the form that `parse_precision` reads."""

    text: str
    native = False
    """Whether torch's own products are used, in single precision."""
    by_layer = False
    """Whether the arithmetic depends on the order in which layers run, so that a trial forward pass is needed."""
    shared_exponent: tuple[int, int] | None = None
    """For block floating point: how many numbers share an exponent, and the bits of that exponent."""

    @abstractmethod
    def arithmetic(self, facts: "ArithmeticFacts", is_training: Callable[[], bool]) -> "Arithmetic":
        """Return the object that computes the products of a run; `is_training()` is whether the current call trains."""


@dataclass(frozen=True)
class SinglePrecision(Precision):
    """Torch's own products."""

    text: str = "fp32"
    native = True

    def arithmetic(self, facts: "ArithmeticFacts", is_training: Callable[[], bool]) -> "Arithmetic":
        """Raise: there is nothing to replace."""
        raise NotImplementedError("single precision is torch's own arithmetic")


@dataclass(frozen=True)
class PrecisionFamily:
    """Texts that begin with the same word: `forms` are examples for the help, `parse` reads one of them."""

    forms: tuple[str, ...]
    parse: Callable[[str], Precision]


PRECISIONS: Registry[PrecisionFamily] = Registry("precision", extensible=True)


def precision_forms() -> list[str]:
    """Return examples of all text forms."""
    return [form for name in PRECISIONS for form in PRECISIONS[name].forms]


def parse_precision(text: str) -> Precision:
    """Return the precision that `text` describes: `bfp4` and `bfp:m=4` are of the family `bfp`."""
    word = text.partition(":")[0]
    family = word if word in PRECISIONS else re.sub(r"\d+$", "", word)
    if len(text) > 200 or family not in PRECISIONS:
        raise unreadable_precision(text)
    return PRECISIONS[family].parse(text)


def unreadable_precision(text: str) -> OptionError:
    """Return the error for a text that has none of the allowed forms."""
    return OptionError(f"cannot read the precision '{text[:80]}'. Allowed forms: {', '.join(precision_forms())}.")


def _parse_single(text: str) -> Precision:
    if text.partition(":")[2]:
        raise OptionError(f"the precision '{text}' is single precision, which takes no options: write fp32.")
    return SinglePrecision(text)


PRECISIONS.add("fp32", PrecisionFamily(("fp32",), _parse_single))
