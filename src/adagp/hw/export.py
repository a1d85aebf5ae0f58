"""A batch's products as inputs of other accelerator models: SCALE-Sim, ZigZag, Timeloop. A new one is a line in `EXPORTERS`."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from adagp.core.files import check_output_folder, write_atomically
from adagp.errors import OptionError, unknown_name
from adagp.hw.accelerator import Accelerator
from adagp.hw.dataflows import Array
from adagp.hw.product import Operation
from adagp.hw.workload import ArrayLayer, Attention, Convolution, Workload


@dataclass(frozen=True)
class Work:
    """One of a layer's three products, of `batch` samples."""

    name: str
    layer: ArrayLayer
    operation: Operation
    batch: int

    @property
    def count(self) -> int:
        """Equal products that make up this one: groups of a convolution, heads of attention."""
        return self.layer.product(self.batch).count

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The product as an ordinary one, (M x K) (K x N): M, N and K.

        Y = X W, dX = dY W^T and dW = X^T dY are products of the same three sizes in another order.
        """
        product = self.layer.product(self.batch)
        rows, depth, columns = product.rows, product.depth, product.columns
        if self.operation is Operation.FORWARD:
            return rows, columns, depth
        if self.operation is Operation.INPUT_GRADIENT:
            return rows, depth, columns
        return depth, columns, rows

    @property
    def convolution(self) -> Convolution | None:
        """The layer, if its loops are those of a convolution; None if not (a transposed one is lowered to a product)."""
        plain = isinstance(self.layer, Convolution) and not self.layer.transposed
        return self.layer if plain and isinstance(self.layer, Convolution) else None


def training_work(workload: Workload, batch: int) -> tuple[Work, ...]:
    """Return every product that a batch of backprop needs: forward in order, then backward from the last layer."""
    layers = [(f"{index:03d}_{plain_name(layer.name)}", layer) for index, layer in enumerate(workload.array_layers)]
    forward = [Work(name, layer, Operation.FORWARD, batch) for name, layer in layers]
    backward: list[Work] = []
    for name, layer in reversed(layers):
        both = isinstance(layer, Attention) and layer.input_gradient  # two activations have two gradients
        if layer.trainable or both:
            backward.append(Work(name, layer, Operation.WEIGHT_GRADIENT, batch))
        if layer.input_gradient:
            backward.append(Work(name, layer, Operation.INPUT_GRADIENT, batch))
    return (*forward, *backward)


def plain_name(name: str) -> str:
    """Return a name of lower-case letters, digits and underscores: SCALE-Sim takes an upper-case DP for depthwise."""
    return re.sub(r"\W+", "_", name).strip("_").lower() or "layer"


ZIGZAG_CONVOLUTIONS = {
    Operation.FORWARD: "O[b][g][k][oy][ox]+=W[g][k][c][fy][fx]*I[b][g][c][iy][ix]",
    Operation.WEIGHT_GRADIENT: "O[g][k][c][fy][fx]+=W[b][g][k][oy][ox]*I[b][g][c][iy][ix]",
}
ZIGZAG_PRODUCT = "O[h][d][k]+=I[h][d][c]*W[h][c][k]"


def zigzag_files(works: Sequence[Work], accelerator: Accelerator) -> dict[str, str]:
    """Return a workload file of ZigZag 3: one layer for each product, independent of the others.

    Forward passes and weight gradients of convolutions keep their loops, so that windows overlap; the sum of the input gradient
    has overlapping positions, which ZigZag's outputs cannot, so it is lowered to a product. A workload has no padding: a
    convolution's input is as large as its windows reach.
    """
    layers = (_zigzag_layer(number, work, accelerator.word_bits) for number, work in enumerate(works))
    return {"workload.yaml": "".join(layers)}


def _zigzag_layer(number: int, work: Work, bits: int) -> str:
    layer = work.convolution
    if layer is not None and work.operation in ZIGZAG_CONVOLUTIONS:
        equation, operator = ZIGZAG_CONVOLUTIONS[work.operation], "Conv"
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
        equation, operator, relations = ZIGZAG_PRODUCT, "Gemm", []
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


SCALE_SIM_CONFIGURATION = """[general]
run_name = adagp
[architecture_presets]
ArrayHeight = {rows}
ArrayWidth = {columns}
IfmapSramSzkB = {kilobytes}
FilterSramSzkB = {kilobytes}
OfmapSramSzkB = {kilobytes}
IfmapOffset = 0
FilterOffset = 10000000
OfmapOffset = 20000000
Dataflow = {dataflow}
Bandwidth = 100
ReadRequestBuffer = 32
WriteRequestBuffer = 32
[layout]
IfmapCustomLayout = False
IfmapSRAMBankBandwidth = 10
IfmapSRAMBankNum = 10
IfmapSRAMBankPort = 2
FilterCustomLayout = False
FilterSRAMBankBandwidth = 10
FilterSRAMBankNum = 10
FilterSRAMBankPort = 2
[sparsity]
SparsitySupport = false
SparseRep = ellpack_block
OptimizedMapping = false
BlockSize = 8
RandomNumberGeneratorSeed = 40
[run_presets]
InterfaceBandwidth = CALC
UseRamulatorTrace = False
"""
SCALE_SIM_DATAFLOWS = ("ws", "os", "is")
GEMM_HEADER = "Layer, M, N, K,"
CONVOLUTION_HEADER = "Layer, IFMAP height, IFMAP width, Filter height, Filter width, Channels, Num filter, Stride,"


def scale_sim_files(works: Sequence[Work], accelerator: Accelerator) -> dict[str, str]:
    """Return topology files of SCALE-Sim 3: `gemm` files of the forward and both backward products, and a `conv` file.

        python -m scalesim.scale -c scale.cfg -t forward_gemm.csv -l layout.csv -p out -i gemm -s N

    Each row stands for `count` equal products; `products.csv` has the counts. SCALE-Sim's convolutions have no batch, no
    dilation and one stride, and their input is as large as the windows reach, so padding is part of it. It has the dataflows
    `ws`, `os` and `is`; for another one there is no configuration file.
    """
    files = {
        f"{operation}_gemm.csv": _lines(GEMM_HEADER, (gemm_row(work) for work in works if work.operation is operation))
        for operation in Operation
    }
    convolutions = (
        convolution_row(work.name, work.convolution)
        for work in works
        if work.operation is Operation.FORWARD and work.convolution is not None and is_plain(work.convolution)
    )
    files["forward_conv.csv"] = _lines(CONVOLUTION_HEADER, convolutions)
    files["products.csv"] = _lines(
        "file,layer,count,batch", (f"{work.operation}_gemm.csv,{work.name},{work.count},{work.batch}" for work in works)
    )
    files["layout.csv"] = ""
    if accelerator.dataflow in SCALE_SIM_DATAFLOWS:
        third = max(1, round(accelerator.buffer_kilobytes / 3))
        files["scale.cfg"] = configuration(accelerator.array, accelerator.dataflow, third)
    return files


def configuration(array: Array, dataflow: str, kilobytes: int = 1024) -> str:
    """Return a configuration with `kilobytes` for each of the three matrices, whose memory never stalls the array."""
    return SCALE_SIM_CONFIGURATION.format(
        rows=array.rows, columns=array.columns, kilobytes=kilobytes, dataflow=dataflow
    )


def gemm_row(work: Work) -> str:
    """Return a line of a `gemm` file."""
    return f"{work.name}, {', '.join(map(str, work.sizes))},"


def is_plain(layer: Convolution) -> bool:
    """Return whether SCALE-Sim has convolutions like this one."""
    return layer.dilation == (1, 1) and layer.stride[0] == layer.stride[1]


def convolution_row(name: str, layer: Convolution) -> str:
    """Return a line of a `conv` file: one sample, one group."""
    reach = [
        (size - 1) * step + side for size, step, side in zip(layer.output_size, layer.stride, layer.kernel, strict=True)
    ]
    channels = (layer.in_channels // layer.groups, layer.out_channels // layer.groups)
    return f"{name}, {', '.join(map(str, (*reach, *layer.kernel, *channels, layer.stride[0])))},"


def _lines(header: str, rows: Iterable[str]) -> str:
    return "\n".join([header, *rows]) + "\n"


WRITTEN = {Operation.FORWARD: "Outputs", Operation.INPUT_GRADIENT: "Inputs", Operation.WEIGHT_GRADIENT: "Weights"}
TIMELOOP_CONVOLUTION: Mapping[str, Sequence[str]] = {
    "Weights": ("[G]", "[C]", "[M]", "[R]", "[S]"),
    "Inputs": ("[N]", "[G]", "[C]", "[R, Hdilation], [P, Hstride]", "[S, Wdilation], [Q, Wstride]"),
    "Outputs": ("[N]", "[G]", "[M]", "[P]", "[Q]"),
}
TIMELOOP_PRODUCT: Mapping[str, Sequence[str]] = {
    "Weights": ("[G]", "[C]", "[M]"),
    "Inputs": ("[G]", "[N]", "[C]"),
    "Outputs": ("[G]", "[N]", "[M]"),
}


def timeloop_files(works: Sequence[Work], accelerator: Accelerator) -> dict[str, str]:
    """Return a problem file of Timeloop (version 0.4) for each product.

    A layer's three problems have the same dimensions and projections; they differ in which data space is written.
    """
    return {f"{work.name}.{work.operation}.yaml": _timeloop_problem(work) for work in works}


def _timeloop_problem(work: Work) -> str:
    layer = work.convolution
    spaces, kind = (TIMELOOP_PRODUCT, "matrix_product") if layer is None else (TIMELOOP_CONVOLUTION, "convolution")
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


Exporter = Callable[[tuple[Work, ...], Accelerator], dict[str, str]]
EXPORTERS: Mapping[str, Exporter] = {"scale-sim": scale_sim_files, "zigzag": zigzag_files, "timeloop": timeloop_files}
"""From the work of a batch to the text of each file."""


def check_export(tool: str | None, folder: Path | None) -> None:
    """Raise, before any work, for an unknown tool or a folder that is not empty."""
    if (tool is None) != (folder is None):
        raise OptionError("--export TOOL and --out DIR go together; give both.")
    if tool is None or folder is None:
        return
    if tool not in EXPORTERS:
        raise unknown_name("export format", tool, EXPORTERS)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OptionError(f"'{folder}' exists already and is not an empty folder; give another name.")
    if not folder.parent.is_dir():
        raise OptionError(f"cannot make '{folder}': there is no folder '{folder.parent}'.")
    check_output_folder(folder)


def export_workload(
    tool: str, workload: Workload, accelerator: Accelerator, batch: int, folder: Path
) -> tuple[Path, ...]:
    """Write the forward and both backward products of batches of `batch` samples into `folder`; return the files."""
    files = EXPORTERS[tool](training_work(workload, batch), accelerator)
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        write_atomically(folder / name, text.encode())
    return tuple(folder / name for name in files)
