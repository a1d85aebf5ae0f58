"""Topology files of SCALE-Sim 3: `gemm` files of the forward and both backward products, and a `conv` file.

    python -m scalesim.scale -c scale.cfg -t forward_gemm.csv -l layout.csv -p out -i gemm -s N

Each row stands for `count` equal products; `products.csv` has the counts. SCALE-Sim's convolutions have no batch, no
dilation and one stride, and their input is as large as the windows reach, so padding is part of it. It has the dataflows `ws`,
`os` and `is`; for another one there is no configuration file.
"""

from collections.abc import Iterable, Sequence

from adagp.hw.accelerator import Accelerator
from adagp.hw.dataflows import Array
from adagp.hw.export.work import Work
from adagp.hw.product import Operation
from adagp.hw.workload import Convolution

CONFIGURATION = """[general]
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
DATAFLOWS = ("ws", "os", "is")
GEMM_HEADER = "Layer, M, N, K,"
CONVOLUTION_HEADER = "Layer, IFMAP height, IFMAP width, Filter height, Filter width, Channels, Num filter, Stride,"


def scale_sim_files(works: Sequence[Work], accelerator: Accelerator) -> dict[str, str]:
    """Return the files by name."""
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
    if accelerator.dataflow in DATAFLOWS:
        third = max(1, round(accelerator.buffer_kilobytes / 3))
        files["scale.cfg"] = configuration(accelerator.array, accelerator.dataflow, third)
    return files


def configuration(array: Array, dataflow: str, kilobytes: int = 1024) -> str:
    """Return a configuration with `kilobytes` for each of the three matrices, whose memory never stalls the array."""
    return CONFIGURATION.format(rows=array.rows, columns=array.columns, kilobytes=kilobytes, dataflow=dataflow)


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
