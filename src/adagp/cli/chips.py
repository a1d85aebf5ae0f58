"""The options that the commands of `adagp rtl` share: which chip is meant, its numbers and its banks."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

from adagp.cli.options import option
from adagp.hw.dataflows import check_size

if TYPE_CHECKING:
    from adagp.rtl.blueprint import Blueprint

DESIGNS = ("baseline", "low", "efficient", "max")
CHIP = "Chip"

Design = Annotated[str, option("baseline, low, efficient or max.", panel=CHIP)]
Designs = Annotated[str, option("all, or one of baseline, low, efficient, max.", panel=CHIP)]
ChipArray = Annotated[str, option("PEs, ROWSxCOLUMNS, at least 2x2.", panel=CHIP, also=check_size)]
BesideArray = Annotated[
    str | None,
    option("PEs of the predictor in design max.", panel=CHIP, unset="two thirds of each side", also=check_size),
]
Format = Annotated[
    str, option("int8, int16, bf16, fp16, fp32; bfp: block floating point, for products only.", "--format", panel=CHIP)
]
ValueWords = Annotated[int, option("Words in each bank of values.", panel=CHIP, low=1)]
Stages = Annotated[
    int,
    option(
        "1: registers behind the multipliers of PEs and element unit, for a faster clock.", panel=CHIP, low=0, high=1
    ),
]
SumWords = Annotated[int, option("Words in each bank of sums.", panel=CHIP, low=1)]


@dataclass(frozen=True)
class ChipOptions:
    """A chip of any design: arrays, number format, and the words of its banks."""

    array: ChipArray = "12x15"
    predictor_array: BesideArray = None
    number: Format = "int16"
    value_words: ValueWords = 4096
    sum_words: SumWords = 2048
    predictor_words: Annotated[int, option("Words of the predictor's weights in each column.", panel=CHIP, low=1)] = (
        19_664
    )
    pool_words: Annotated[
        int, option("Totals of pooled outputs in each column, for the predictor.", panel=CHIP, low=1)
    ] = 1024
    pipeline_stages: Stages = 0

    def blueprint(self, design: str) -> "Blueprint":
        """Return the chip of a design."""
        words = {one.name: getattr(self, one.name) for one in fields(self) if one.name.endswith("_words")}
        words |= {"stages": self.pipeline_stages}
        return make_chip(design, self.array, self.predictor_array, self.number, **words)

    def blueprints(self, designs: str) -> "dict[str, Blueprint]":
        """Return the chips of a design, or of all of them."""
        return {name: self.blueprint(name) for name in (DESIGNS if designs == "all" else (designs,))}


def make_chip(design: str, array: str, predictor_array: str | None, number: str, **details: int) -> "Blueprint":
    """Return the chip that options describe; nothing heavy is imported before."""
    from adagp.hw.dataflows import parse_array
    from adagp.rtl.tools import need_amaranth

    need_amaranth()
    from adagp.rtl.blueprint import make_blueprint
    from adagp.rtl.formats import find_format

    beside = None if predictor_array is None else parse_array(predictor_array)
    return make_blueprint(design, parse_array(array), find_format(number), predictor_array=beside, **details)
