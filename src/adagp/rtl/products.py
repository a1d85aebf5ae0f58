"""Matrix products on a simulated chip: where a dataflow puts the matrices, and what comes out, against adagp.hw."""

from dataclasses import dataclass

import numpy as np

from adagp.errors import OptionError, unknown_name
from adagp.hw.dataflows import array_cost
from adagp.hw.product import Bits, Cost, Operation, Product
from adagp.rtl.formats import NumberFormat, Words
from adagp.rtl.instructions import Mode, Opcode, Store
from adagp.rtl.simulation import Counts, SimulatedChip
from adagp.rtl.sizes import CoreSizes

OPERATIONS = {"forward": Operation.FORWARD, "dx": Operation.INPUT_GRADIENT, "dw": Operation.WEIGHT_GRADIENT}

_INDICES = {"x": ("rows", "depth"), "w": ("depth", "columns"), "y": ("rows", "columns")}
_FACTORS = {"forward": ("x", "w", "y"), "dx": ("y", "w", "x"), "dw": ("x", "y", "w")}
"""The two factors and the sum of each operation; gradients have the indices of what they are gradients of."""
PLACEMENTS = {
    "ws": ("depth", "columns", "rows"),
    "os": ("rows", "columns", "depth"),
    "is": ("depth", "rows", "columns"),
}
"""The indices that lie down and across the array, and the one that is time: as in `adagp.hw.dataflows`."""


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
        return next(name for name, pair in _INDICES.items() if set(pair) == set(indices))

    row, column, stationary = matrix(down, stream), matrix(across, stream), matrix(down, across)
    result = _FACTORS[operation][2]
    mode = Mode.STATIONARY if result == stationary else Mode.DOWN if result == row else Mode.ACROSS
    return Mapping(mode, tuple(named[one] for one in placement), placement, row, column, stationary, result)  # type: ignore[arg-type]


def model_cost(sizes: CoreSizes, dataflow: str, operation: str, rows: int, depth: int, columns: int) -> Cost:
    """Return what adagp.hw says the product costs, in words: each has one bit."""
    product = Product(rows, depth, columns, bits=Bits(1, 1, 1, 1)).gradient(OPERATIONS[operation])
    return array_cost(dataflow, product, sizes.array)


def check_fits(sizes: CoreSizes, mapping: Mapping) -> None:
    """Refuse a product whose matrices do not fit the banks, or whose sums could overflow."""
    down, across, stream = mapping.sizes
    array = sizes.array
    row_words, column_words = -(-down // array.rows) * stream, -(-across // array.columns) * stream
    stationary_words = -(-across // array.columns) * down
    values = max(row_words * (mapping.mode is not Mode.DOWN), *_value_words(mapping, column_words, stationary_words))
    sums = {Mode.ACROSS: column_words, Mode.DOWN: row_words, Mode.STATIONARY: stationary_words}[mapping.mode]
    for name, needed, there in (("values", values, sizes.value_words), ("sums", sums, sizes.sum_words)):
        if needed > there:
            raise OptionError(
                f"the product needs {needed} words in each bank of {name}; there are {there}. Give larger banks or a "
                "smaller product."
            )
    length = {Mode.ACROSS: down, Mode.DOWN: across, Mode.STATIONARY: stream}[mapping.mode]
    longest = sizes.number.longest_sum
    if longest is not None and length > longest:
        raise OptionError(f"a sum of {length} products could overflow {sizes.number.name}; at most {longest} fit.")


def _value_words(mapping: Mapping, column_words: int, stationary_words: int) -> tuple[int, int]:
    if mapping.mode is Mode.ACROSS:
        return stationary_words, 0
    if mapping.mode is Mode.DOWN:
        return stationary_words + column_words, 0
    return column_words, 0


def run_product(chip: SimulatedChip, mapping: Mapping, matrices: dict[str, Words]) -> tuple[Words, Counts]:
    """Write the factors into the chip, run the product and return the sums with what it took.

    `matrices` are in the layout of the forward product: x is rows x depth, w depth x columns, y rows x columns.
    """
    sizes = chip.blueprint.core
    check_fits(sizes, mapping)
    down, across, stream = mapping.sizes
    array = sizes.array
    turned = {
        "row": _turned(mapping, mapping.row, (0, 2), matrices),
        "column": _turned(mapping, mapping.column, (1, 2), matrices),
        "stationary": _turned(mapping, mapping.stationary, (1, 0), matrices),
    }
    stationary_words = -(-across // array.columns) * down
    bases = {"row": 0, "stationary": 0, "column": stationary_words if mapping.mode is Mode.DOWN else 0}
    for place in ("row", "column", "stationary"):
        if getattr(mapping, place) != mapping.result:
            memory = Store.ROW_VALUES if place == "row" else Store.COLUMN_VALUES
            _store(chip, memory, bases[place], turned[place])
    fields = {"mode": mapping.mode, "down": down, "across": across, "stream": stream, **bases}
    encoding = sizes.encoding
    chip.load([[encoding.pack(Opcode.ARRAY, fields), encoding.pack(Opcode.HALT)]])
    counts = chip.run()
    shape = {Mode.ACROSS: (across, stream), Mode.DOWN: (down, stream), Mode.STATIONARY: (across, down)}[mapping.mode]
    place = {Mode.ACROSS: "column", Mode.DOWN: "row", Mode.STATIONARY: "stationary"}[mapping.mode]
    memory = Store.ROW_SUMS if place == "row" else Store.COLUMN_SUMS
    found = fetch(chip, memory, bases[place], shape)
    order = {"row": (0, 2), "column": (1, 2), "stationary": (1, 0)}[place]
    straight = tuple(mapping.placement[index] for index in order) == _INDICES[mapping.result]
    return (found if straight else found.T), counts


def _turned(mapping: Mapping, name: str, order: tuple[int, int], matrices: dict[str, Words]) -> Words:
    """Return a matrix with the index of its lane first."""
    if name not in matrices:
        return np.zeros((0, 0), np.int64)
    straight = tuple(mapping.placement[index] for index in order) == _INDICES[name]
    return matrices[name] if straight else matrices[name].T


def _store(chip: SimulatedChip, memory: Store, base: int, matrix: Words) -> None:
    lanes = _lane_count(chip, memory)
    for line, words in enumerate(matrix):
        chip.write(0, memory, line % lanes, base + line // lanes * len(words), words)


def fetch(chip: SimulatedChip, memory: Store, base: int, shape: tuple[int, int], core: int = 0) -> Words:
    """Return a matrix from its banks, the index of its lane first."""
    lanes = _lane_count(chip, memory, core)
    lines = [
        chip.read(core, memory, line % lanes, base + line // lanes * shape[1], shape[1]) for line in range(shape[0])
    ]
    return np.array(lines, np.int64).reshape(shape)


def _lane_count(chip: SimulatedChip, memory: Store, core: int = 0) -> int:
    array = chip.blueprint.cores[core].array
    return array.rows if memory in (Store.ROW_VALUES, Store.ROW_SUMS) else array.columns


def expected(number: NumberFormat, operation: str, matrices: dict[str, Words]) -> Words:
    """Return the sums that the product has, by the format's model: added one after the other in the order of the index."""
    left, right = (matrices[name] for name in _FACTORS[operation][:2])
    if operation == "dx":
        right = right.T
    elif operation == "dw":
        left = left.T
    total = np.zeros((len(left), right.shape[1]), np.int64)
    for place in range(left.shape[1]):
        total = number.multiply_add(left[:, place, None], right[None, place], total)
    return total
