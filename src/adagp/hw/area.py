"""Silicon area, simple and stated: the PEs' arithmetic and registers, and the bits of the memories, at 45 nm.

    arithmetic   synthesised at 45 nm: W. J. Dally, NIPS 2015 tutorial, beside Horowitz's energies; multiplier and adder
    registers    three words a PE (two operands, a sum) in flip-flops of 4.522 um2 (DFF_X1, NanGate 45 nm open cell library);
                 row stationary has Eyeriss' scratchpads besides: 12 inputs, 224 weights and 24 sums (JSSC 2017)
    memories     6T cells of 0.346 um2 (Mistry et al., IEDM 2007), 70 % of a memory's area (our assumption)

Other nodes scale by the square of the node, which is ideal. Control, network, clock tree and pads are left out, so areas
compare designs with each other, not with chips: Eyeriss' sizes at 65 nm come out at 0.70 of its 12.25 mm2 core.
"""

from adagp.hw.accelerator import Accelerator
from adagp.hw.array import Array
from adagp.hw.designs import DESIGNS
from adagp.hw.simulate import predictor_weights
from adagp.hw.workload import Workload

MAC_AREA = {8: 282.0 + 36.0, 16: 1640.0 + 1360.0, 32: 7700.0 + 4184.0}
"""Square micrometres of a multiplier and an adder by word width: integers of 8 bits, floating point of 16 and 32."""
FLIP_FLOP = 4.522
REGISTERS = 3
SCRATCHPAD = 12 + 224 + 24
MEMORY_BIT = 0.346 / 0.7
NODE = 45


def mac_area(bits: int) -> float:
    """Return the square micrometres of a multiplier and adder: those of the next width in the table, the square beyond it."""
    widest = max(MAC_AREA)
    return (
        MAC_AREA[min(width for width in MAC_AREA if width >= bits)]
        if bits <= widest
        else (MAC_AREA[widest] * (bits / widest) ** 2)
    )


def array_area(array: Array, accelerator: Accelerator) -> float:
    """Return the square millimetres of an array of this accelerator's PEs at its node."""
    words = REGISTERS + (SCRATCHPAD if accelerator.dataflow == "rs" else 0)
    pe = mac_area(accelerator.word_bits) + words * accelerator.word_bits * FLIP_FLOP
    return array.pes * pe * _scale(accelerator.technology.node)


def memory_area(kilobytes: float, node: int) -> float:
    """Return the square millimetres of a memory."""
    return kilobytes * 8192 * MEMORY_BIT * _scale(node)


def design_area(name: str, array: Array, accelerator: Accelerator, workload: Workload) -> float:
    """Return the square millimetres of a design on `array`: with a predictor's memory and array where it has them."""
    design, node = DESIGNS[name], accelerator.technology.node
    area = array_area(array, accelerator) + memory_area(accelerator.buffer_kilobytes, node)
    if design.predictor_memory:
        area += memory_area(predictor_weights(workload, accelerator) * accelerator.word_bits / 8192, node)
    if name == "max":
        area += array_area(accelerator.predictor_array, accelerator)
    return area


def _scale(node: int) -> float:
    return (node / NODE) ** 2 * 1e-6
