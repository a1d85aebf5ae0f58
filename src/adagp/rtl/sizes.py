"""Sizes of a core, checked at the door."""

from dataclasses import dataclass, field

from adagp.errors import OptionError
from adagp.hw.array import Array
from adagp.rtl.formats import FORMATS, ArrayFormat, GroupedFormat, NumberFormat
from adagp.rtl.instructions import Encoding

MOST_WORDS = 1 << 20
MOST_PES = 64 * 64
"""Each PE is written out: this many take half a minute and more than half a gigabyte."""


@dataclass(frozen=True)
class CoreSizes:
    """A core: its array, its numbers, the words of each lane's bank of values and of sums, and of instructions.

    `predictor_words` are those of a further bank in each column's lane, for the predictor's weights; `off_chip_words` those
    that the core can reach outside the chip. `pool_words` are the totals, in each column's lane, of outputs that are pooled as
    they leave the array. With `stages` 1 there is a register behind each multiplier, in PEs and in the element unit, so that
    the clock can be faster. `prefix` begins the names of the modules of this core.
    """

    array: Array
    number: ArrayFormat = field(default_factory=lambda: FORMATS["int16"])
    value_words: int = 4096
    sum_words: int = 2048
    program_words: int = 512
    predictor_words: int = 0
    off_chip_words: int = 0
    pool_words: int = 0
    stages: int = 0
    prefix: str = ""

    def __post_init__(self) -> None:
        if min(self.array.rows, self.array.columns) < 2:
            raise OptionError(f"array {self.array} is not allowed in hardware: rows and columns must be at least 2.")
        if self.array.pes > MOST_PES:
            raise OptionError(f"array {self.array} has {self.array.pes} PEs; hardware is made for at most {MOST_PES}.")
        if self.stages not in (0, 1):
            raise OptionError(f"pipeline stages are {self.stages}; a PE has 0 or 1.")
        for name in ("value_words", "sum_words", "program_words"):
            value = getattr(self, name)
            if not 2 <= value <= MOST_WORDS:
                raise OptionError(f"{name} is {value}; it must be 2 to {MOST_WORDS}.")

    @property
    def groups(self) -> GroupedFormat | None:
        """The format, if it is one of groups."""
        return self.number if isinstance(self.number, GroupedFormat) else None

    @property
    def single(self) -> NumberFormat:
        """The format, for what works on single numbers; refused if it is one of groups."""
        if not isinstance(self.number, NumberFormat):
            raise OptionError(
                f"format {self.number.name} has groups of numbers, which only arrays multiply; this needs single numbers. "
                f"Choose from: {', '.join(sorted(FORMATS))}."
            )
        return self.number

    @property
    def address_bits(self) -> int:
        """Bits that count all words of any bank."""
        return max(
            self.value_words + self.predictor_words, self.sum_words + self.pool_words, self.off_chip_words
        ).bit_length()

    @property
    def lane_bits(self) -> int:
        """Bits that count 0 to the number of lanes."""
        return max(self.array.rows, self.array.columns).bit_length()

    @property
    def encoding(self) -> Encoding:
        """How instructions are packed."""
        grouped = self.groups is not None
        return Encoding(self.address_bits, self.lane_bits, self.number.value_bits, self.pool_words > 0, grouped)

    @property
    def memory_bits(self) -> int:
        """Bits of all banks, and of the program."""
        lanes, number = self.array.rows + self.array.columns, self.number
        values = lanes * self.value_words + self.array.columns * self.predictor_words
        sums = lanes * self.sum_words + self.array.columns * self.pool_words
        return values * number.value_bits + sums * number.sum_bits + self.program_words * self.encoding.bits
