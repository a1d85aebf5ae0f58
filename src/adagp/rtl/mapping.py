"""How a dataflow runs a product on the array: what each matrix is there, which banks hold it, and whether it fits."""

from dataclasses import dataclass

from adagp.errors import OptionError, unknown_name
from adagp.hw.product import Operation
from adagp.rtl.blueprint import CoreSizes
from adagp.rtl.instructions import Mode, Store

OPERATIONS = {"forward": Operation.FORWARD, "dx": Operation.INPUT_GRADIENT, "dw": Operation.WEIGHT_GRADIENT}

INDICES = {"x": ("rows", "depth"), "w": ("depth", "columns"), "y": ("rows", "columns")}
FACTORS = {"forward": ("x", "w", "y"), "dx": ("y", "w", "x"), "dw": ("x", "y", "w")}
"""The two factors and the sum of each operation; gradients have the indices of what they are gradients of."""
PLACEMENTS = {
    "ws": ("depth", "columns", "rows"),
    "os": ("rows", "columns", "depth"),
    "is": ("depth", "rows", "columns"),
}
"""The indices that lie down and across the array, and the one that is time: as in `adagp.hw.dataflows`."""


ROLES = ("row", "column", "stationary")
Chunks = dict[str, int]


@dataclass(frozen=True)
class Mapping:
    """A product on the array: its mode, its sizes (down, across, stream), and what each matrix is there.

    `row`, `column` and `stationary` name the matrices of these places. A row's lane has one index down the array, and time; a
    column's lane the one across, and time; the stationary matrix lies in the columns' lanes by the index down.
    """

    mode: Mode
    sizes: tuple[int, int, int]
    placement: tuple[str, str, str]
    row: str
    column: str
    stationary: str
    result: str

    @property
    def result_role(self) -> str:
        """Which of `row`, `column` and `stationary` the result is."""
        return {Mode.ACROSS: "column", Mode.DOWN: "row", Mode.STATIONARY: "stationary"}[self.mode]

    def layout(self, role: str) -> tuple[str, str]:
        """Return the indices of the lines and of the words of the matrix at a place: lines go over lanes."""
        down, across, stream = self.placement
        return {"row": (down, stream), "column": (across, stream), "stationary": (across, down)}[role]

    def extents(self, role: str) -> tuple[int, int]:
        """Return the number of lines and of words in a line of the matrix at a place."""
        sizes = dict(zip(self.placement, self.sizes, strict=True))
        line, word = self.layout(role)
        return sizes[line], sizes[word]


def value_store(role: str) -> Store:
    """Return the banks of values for the matrix at a place."""
    return Store.ROW_VALUES if role == "row" else Store.COLUMN_VALUES


def sum_store(role: str) -> Store:
    """Return the banks of sums for a result at a place."""
    return Store.ROW_SUMS if role == "row" else Store.COLUMN_SUMS


def find_mapping(dataflow: str, operation: str, rows: int, depth: int, columns: int) -> Mapping:
    """Return how `dataflow` runs the operation of a (rows x depth) by (depth x columns) forward product."""
    if dataflow not in PLACEMENTS:
        raise unknown_name("dataflow in hardware", dataflow, PLACEMENTS)
    if operation not in OPERATIONS:
        raise unknown_name("operation", operation, OPERATIONS)
    placement = PLACEMENTS[dataflow]
    named = {"rows": rows, "depth": depth, "columns": columns}
    for name, value in named.items():
        if not 1 <= value < 1 << 16:
            raise OptionError(f"{name} of a product is {value}; it must be 1 to 65535.")
    down, across, stream = placement

    def matrix(*indices: str) -> str:
        return next(name for name, pair in INDICES.items() if set(pair) == set(indices))

    row, column, stationary = matrix(down, stream), matrix(across, stream), matrix(down, across)
    result = FACTORS[operation][2]
    mode = Mode.STATIONARY if result == stationary else Mode.DOWN if result == row else Mode.ACROSS
    return Mapping(mode, tuple(named[index] for index in placement), placement, row, column, stationary, result)  # type: ignore[arg-type]


def check_fits(sizes: CoreSizes, mapping: Mapping, chunks: Chunks | None = None) -> None:
    """Check that a product's factors and sums fit the banks, and that its sums cannot overflow; `chunks` are the words of
    each value of the matrix at a place, if they are more than one."""
    several = chunks or {}
    words = {role: _words(sizes, mapping, role) * several.get(role, 1) for role in ROLES}
    words[mapping.result_role] = 0
    _check_bank("values", max(words["row"], words["column"] + words["stationary"]), sizes.value_words)
    check_sums(sizes, mapping)


def check_sums(sizes: CoreSizes, mapping: Mapping) -> None:
    """Check that a product's sums fit the banks and cannot overflow."""
    _check_bank("sums", _words(sizes, mapping, mapping.result_role), sizes.sum_words)
    check_overflow(sizes, mapping)


def check_overflow(sizes: CoreSizes, mapping: Mapping) -> None:
    """Check that a product's sums cannot overflow."""
    down, across, stream = mapping.sizes
    length = {Mode.ACROSS: down, Mode.DOWN: across, Mode.STATIONARY: stream}[mapping.mode]
    longest = sizes.number.longest_sum
    if longest is not None and length > longest:
        raise OptionError(f"a sum of {length} products could overflow {sizes.number.name}; at most {longest} fit.")


def _words(sizes: CoreSizes, mapping: Mapping, role: str) -> int:
    lines, extent = mapping.extents(role)
    return -(-lines // (sizes.array.rows if role == "row" else sizes.array.columns)) * extent


def _check_bank(name: str, needed: int, there: int) -> None:
    if needed > there:
        raise OptionError(
            f"the product needs {needed} words in each bank of {name}; there are {there}. Give larger banks or a "
            "smaller product."
        )
