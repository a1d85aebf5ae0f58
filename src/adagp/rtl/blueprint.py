"""Sizes of cores, checked, and the chips they make: one for each of adagp.hw's designs."""

from dataclasses import dataclass, field, replace

from adagp.errors import OptionError, unknown_name
from adagp.hw.dataflows import Array
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
    the clock can be faster. With `dma_words` a DMA reaches the banks while the array computes, so many lanes at a time; each
    bank of sums is then two banks. `prefix` begins the names of the modules of this core.
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
    dma_words: int = 0
    prefix: str = ""

    def __post_init__(self) -> None:
        if min(self.array.rows, self.array.columns) < 2:
            raise OptionError(f"array {self.array} is not allowed in hardware: rows and columns must be at least 2.")
        if self.array.pes > MOST_PES:
            raise OptionError(f"array {self.array} has {self.array.pes} PEs; at most {MOST_PES} are supported.")
        if self.stages not in (0, 1):
            raise OptionError(f"pipeline stages is {self.stages}; it must be 0 or 1.")
        for name in ("value_words", "sum_words", "program_words"):
            _check_words(name, getattr(self, name))
        if self.dma_words:
            self._check_dma()

    def _check_dma(self) -> None:
        rows, columns = self.array.rows, self.array.columns
        if self.dma_words < 0 or rows % self.dma_words or columns % self.dma_words:
            raise OptionError(
                f"a DMA of {self.dma_words} values a cycle does not suit array {self.array}: rows and columns must be "
                "multiples of it."
            )
        if self.groups is not None:
            raise OptionError(f"a DMA moves single numbers; format {self.number.name} has groups of them.")
        for name in ("value_words", "sum_words"):
            if getattr(self, name) % 2:
                raise OptionError(f"{name} is {getattr(self, name)}; with a DMA it must be even: each half has a tile.")

    @property
    def groups(self) -> GroupedFormat | None:
        """The format, if it is one of groups."""
        return self.number if isinstance(self.number, GroupedFormat) else None

    @property
    def single(self) -> NumberFormat:
        """The format, for what works on single numbers; an error if it is a group format."""
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


def _check_words(name: str, words: int) -> None:
    if not 2 <= words <= MOST_WORDS:
        raise OptionError(f"{name} is {words}; it must be 2 to {MOST_WORDS}.")


@dataclass(frozen=True)
class Blueprint:
    """What a chip is made of: the sizes of its core and, in design `max`, of the predictor's."""

    design: str
    core: CoreSizes
    predictor: CoreSizes | None = None

    @property
    def cores(self) -> tuple[CoreSizes, ...]:
        """All cores, the layers' first."""
        return (self.core,) if self.predictor is None else (self.core, self.predictor)

    @property
    def memory_bits(self) -> int:
        """Bits of all banks and programs."""
        return sum(core.memory_bits for core in self.cores)


DESIGNS = ("baseline", "low", "efficient", "max")


def make_blueprint(
    design: str,
    array: Array,
    number: ArrayFormat,
    *,
    predictor_array: Array | None = None,
    value_words: int = 4096,
    sum_words: int = 2048,
    predictor_words: int = 19_664,
    pool_words: int = 1024,
    program_words: int = 512,
    stages: int = 0,
    dma_words: int = 0,
) -> Blueprint:
    """Return the blueprint of a design.

    The default banks are for 12 x 15 PEs of 16 bits: about the 512 kilobytes of adagp.hw's global buffer, and the
    predictor's weights for a layer of 4,608 inputs (3 x 3 of 512 channels), over the 15 columns. `max` has these in its
    own core's banks. `pool_words` are the totals in each column from which the predictor's means are taken: 4 x 4 of 512
    channels have room for one layer.
    """
    if design not in DESIGNS:
        raise unknown_name("design in hardware", design, DESIGNS)
    _check_words("predictor_words", predictor_words)
    _check_words("pool_words", pool_words)
    if dma_words and design != "baseline":
        raise OptionError(f"design '{design}' has no DMA; choose design baseline, or leave the DMA out.")
    core = CoreSizes(array, number, value_words, sum_words, program_words, stages=stages, dma_words=dma_words)
    if design != "baseline":
        if core.groups is not None:
            raise OptionError(
                f"design '{design}' has a predictor, which works on single numbers; format {number.name} has groups of them. "
                "Choose design baseline."
            )
        core = replace(core, pool_words=pool_words)
    if design == "efficient":
        core = replace(core, predictor_words=predictor_words)
    elif design == "low":
        core = replace(core, off_chip_words=predictor_words * array.columns)
    if design != "max":
        return Blueprint(design, core)
    second = predictor_array or Array(max(2, array.rows * 2 // 3), max(2, array.columns * 2 // 3))
    if second.rows > max(array.rows, array.columns) or second.columns > max(array.rows, array.columns):
        raise OptionError(f"the predictor's array {second} has more rows or columns than the array {array} has lanes.")
    words = -(-predictor_words * array.columns // second.columns)
    own = CoreSizes(second, number, value_words, sum_words, program_words, words, stages=stages, prefix="predictor_")
    return Blueprint(design, core, own)
