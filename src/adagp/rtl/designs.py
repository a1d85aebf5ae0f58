"""Blueprints by the names of adagp.hw's designs, with banks of a size that suits the paper's chip or a small network."""

from dataclasses import replace

from adagp.errors import OptionError, unknown_name
from adagp.hw.array import Array
from adagp.rtl.chip import Blueprint
from adagp.rtl.formats import ArrayFormat
from adagp.rtl.sizes import MOST_WORDS, CoreSizes

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
) -> Blueprint:
    """Return the blueprint of a design.

    The default banks are for 12 x 15 PEs of 16 bits: about the 512 kilobytes of adagp.hw's global buffer, and the
    predictor's weights for a layer of 4,608 inputs (3 x 3 of 512 channels), over the 15 columns. `max` has these in its
    own core's banks. `pool_words` are the totals in each column from which the predictor's means are taken: 4 x 4 of 512
    channels have room for one layer.
    """
    if design not in DESIGNS:
        raise unknown_name("design in hardware", design, DESIGNS)
    if not 2 <= predictor_words <= MOST_WORDS:
        raise OptionError(f"predictor_words is {predictor_words}; it must be 2 to {MOST_WORDS}.")
    if not 2 <= pool_words <= MOST_WORDS:
        raise OptionError(f"pool_words is {pool_words}; it must be 2 to {MOST_WORDS}.")
    core = CoreSizes(array, number, value_words, sum_words, program_words, stages=stages)
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
    beside = predictor_array or Array(max(2, array.rows * 2 // 3), max(2, array.columns * 2 // 3))
    if beside.rows > max(array.rows, array.columns) or beside.columns > max(array.rows, array.columns):
        raise OptionError(f"the predictor's array {beside} has more rows or columns than the array {array} has lanes.")
    words = -(-predictor_words * array.columns // beside.columns)
    own = CoreSizes(beside, number, value_words, sum_words, program_words, words, stages=stages, prefix="predictor_")
    return Blueprint(design, core, own)
