"""Problem files of Timeloop (version 0.4), one for each product.

A layer's three problems have the same dimensions and projections; they differ in which data space is written.
"""

from collections.abc import Mapping, Sequence

from adagp.hw.accelerator import Accelerator
from adagp.hw.export.work import Work
from adagp.hw.product import Operation
from adagp.hw.workload import Convolution

WRITTEN = {Operation.FORWARD: "Outputs", Operation.INPUT_GRADIENT: "Inputs", Operation.WEIGHT_GRADIENT: "Weights"}
CONVOLUTION: Mapping[str, Sequence[str]] = {
    "Weights": ("[G]", "[C]", "[M]", "[R]", "[S]"),
    "Inputs": ("[N]", "[G]", "[C]", "[R, Hdilation], [P, Hstride]", "[S, Wdilation], [Q, Wstride]"),
    "Outputs": ("[N]", "[G]", "[M]", "[P]", "[Q]"),
}
PRODUCT: Mapping[str, Sequence[str]] = {
    "Weights": ("[G]", "[C]", "[M]"),
    "Inputs": ("[G]", "[N]", "[C]"),
    "Outputs": ("[G]", "[N]", "[M]"),
}


def timeloop_files(works: Sequence[Work], accelerator: Accelerator) -> dict[str, str]:
    """Return a file for each product."""
    return {f"{work.name}.{work.operation}.yaml": _problem(work) for work in works}


def _problem(work: Work) -> str:
    layer = work.convolution
    spaces, kind = (PRODUCT, "matrix_product") if layer is None else (CONVOLUTION, "convolution")
    sizes = _product_sizes(work) if layer is None else _convolution_sizes(layer, work.batch)
    steps = {} if layer is None else _steps(layer)
    lines = ["problem:", "  version: 0.4", "  shape:", f"    name: {kind}"]
    lines.append(f"    dimensions: [{', '.join(sizes)}]")
    if steps:
        lines.append("    coefficients:")
    for name in steps:
        lines += [f"      - name: {name}", "        default: 1"]
    lines.append("    data_spaces:")
    written = WRITTEN[work.operation]
    for name in sorted(spaces, key=lambda space: space == written):  # what is written comes last
        lines += [f"      - name: {name}", "        projection:"]
        lines += [f"          - [{index}]" for index in spaces[name]]
        if name == written:
            lines.append("        read_write: true")
    lines.append("  instance:")
    lines += [f"    {name}: {size}" for name, size in (sizes | steps).items()]
    return "\n".join(lines) + "\n"


def _convolution_sizes(layer: Convolution, batch: int) -> dict[str, int]:
    return {
        "N": batch,
        "G": layer.groups,
        "C": layer.in_channels // layer.groups,
        "M": layer.out_channels // layer.groups,
        "R": layer.kernel[0],
        "S": layer.kernel[1],
        "P": layer.output_size[0],
        "Q": layer.output_size[1],
    }


def _steps(layer: Convolution) -> dict[str, int]:
    return {
        "Hstride": layer.stride[0],
        "Wstride": layer.stride[1],
        "Hdilation": layer.dilation[0],
        "Wdilation": layer.dilation[1],
    }


def _product_sizes(work: Work) -> dict[str, int]:
    product = work.layer.product(work.batch)
    return {"G": product.count, "N": product.rows, "C": product.depth, "M": product.columns}
