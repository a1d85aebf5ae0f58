"""A workload file of ZigZag 3 (`workload.yaml`): one layer for each product, independent of the others.

Forward passes and weight gradients of convolutions keep their loops, so that windows overlap; the sum of the input gradient
has overlapping positions, which ZigZag's outputs cannot, so it is lowered to a product. A workload has no
padding: a convolution's input is as large as its windows reach.
"""

from collections.abc import Sequence

from adagp.hw.accelerator import Accelerator
from adagp.hw.export.work import Work
from adagp.hw.product import Operation

CONVOLUTIONS = {
    Operation.FORWARD: "O[b][g][k][oy][ox]+=W[g][k][c][fy][fx]*I[b][g][c][iy][ix]",
    Operation.WEIGHT_GRADIENT: "O[g][k][c][fy][fx]+=W[b][g][k][oy][ox]*I[b][g][c][iy][ix]",
}
PRODUCT = "O[h][d][k]+=I[h][d][c]*W[h][c][k]"


def zigzag_files(works: Sequence[Work], accelerator: Accelerator) -> dict[str, str]:
    """Return the one file."""
    layers = (_layer(number, work, accelerator.word_bits) for number, work in enumerate(works))
    return {"workload.yaml": "".join(layers)}


def _layer(number: int, work: Work, bits: int) -> str:
    layer = work.convolution
    if layer is not None and work.operation in CONVOLUTIONS:
        equation, operator = CONVOLUTIONS[work.operation], "Conv"
        loops = {
            "B": work.batch,
            "K": layer.out_channels // layer.groups,
            "G": layer.groups,
            "OX": layer.output_size[1],
            "OY": layer.output_size[0],
            "C": layer.in_channels // layer.groups,
            "FX": layer.kernel[1],
            "FY": layer.kernel[0],
        }
        relations = [
            f"ix={layer.stride[1]}*ox+{layer.dilation[1]}*fx",
            f"iy={layer.stride[0]}*oy+{layer.dilation[0]}*fy",
        ]
    else:
        rows, columns, depth = work.sizes
        equation, operator, relations = PRODUCT, "Gemm", []
        loops = {"C": depth, "D": rows, "K": columns, "H": work.count}
    return f"""- id: {number}
  name: {work.name}.{work.operation}
  operator_type: {operator}
  equation: "{equation}"
  dimension_relations: [{", ".join(relations)}]
  loop_dims: [{", ".join(loops)}]
  loop_sizes: [{", ".join(map(str, loops.values()))}]
  operand_precision: {{W: {bits}, I: {bits}, O: {bits}, O_final: {bits}}}
  operand_source: {{W: {number}, I: {number}}}
"""
