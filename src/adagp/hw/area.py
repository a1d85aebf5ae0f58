"""Silicon area, simple and stated: the PEs' arithmetic and registers, and the bits of the memories.

    arithmetic   an exact 8-bit multiplier of 618 um2 at 45 nm (mul8_364 of EvoApprox8b, FreePDK45), wider ones by the square of
                 the width; an adder's bit is taken to be as large as a flip-flop (our assumption)
    registers    two operands and a sum for each PE in flip-flops of 4.522 um2 (DFF_X1, NanGate 45 nm open cell library); row
                 stationary has Eyeriss' scratchpads too: 12 inputs, 224 weights and 24 sums (JSSC 2017)
    memories     CACTI 7: 0.439 to 0.462 um2 a bit for 64 kB to 1 MB of lstp cells with a 64-bit port at 45 nm; 0.222 to 0.269
                 at 32 nm, 0.105 to 0.127 at 22 nm

Logic at other nodes, and memories at nodes that are not in the table, scale by the square of the node, which is ideal. Control,
network, clock tree and pads are left out, so areas compare designs with each other, not with chips.
"""

from adagp.hw.accelerator import Accelerator
from adagp.hw.dataflows import Array
from adagp.hw.simulate import DESIGNS, predictor_weights
from adagp.hw.workload import Workload

MULTIPLIER_8 = 618.0
"""Square micrometres of an exact 8-bit multiplier at 45 nm."""
FLIP_FLOP = 4.522
SCRATCHPAD = 12 + 224 + 24
MEMORY_BIT = {45: 0.448, 32: 0.248, 22: 0.117}
"""Square micrometres of a memory's bit by node: the mean over CACTI's results for several sizes."""
NODE = 45


def mac_area(bits: int, sum_bits: int) -> float:
    """Return the square micrometres of a multiplier and an adder at 45 nm."""
    return MULTIPLIER_8 * (bits / 8) ** 2 + sum_bits * FLIP_FLOP


def array_area(array: Array, accelerator: Accelerator) -> float:
    """Return the square millimetres of an array of this accelerator's PEs at its node."""
    words, sums = 2 + (SCRATCHPAD if accelerator.dataflow == "rs" else 0), accelerator.width("sums")
    registers = (words * accelerator.word_bits + sums) * FLIP_FLOP
    pe = mac_area(accelerator.multiplier_bits, sums) + registers
    return array.pes * pe * 1e-6 * (accelerator.technology.node / NODE) ** 2


def memory_area(kilobytes: float, node: int) -> float:
    """Return the square millimetres of a memory."""
    nearest = min(MEMORY_BIT, key=lambda known: abs(known - node))
    return kilobytes * 8192 * MEMORY_BIT[nearest] * 1e-6 * (node / nearest) ** 2


def design_area(name: str, array: Array, accelerator: Accelerator, workload: Workload) -> float:
    """Return the square millimetres of a design on `array`: with a predictor's memory and array where it has them."""
    design, node = DESIGNS[name], accelerator.technology.node
    area = array_area(array, accelerator) + memory_area(accelerator.buffer_kilobytes, node)
    if design.predictor_memory:
        area += memory_area(predictor_weights(workload, accelerator) * accelerator.width("weights") / 8192, node)
    if design.predictor_array:
        area += array_area(accelerator.predictor_array, accelerator)
    return area
