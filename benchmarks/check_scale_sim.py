"""Compare the systolic dataflows' cycles and buffer accesses with SCALE-Sim v3, run as an outside program.

    python -m venv /somewhere && /somewhere/bin/pip install 'numpy<2.4' scalesim==3.0.0
    python -m benchmarks.check_scale_sim --python /somewhere/bin/python

Draws convolutions, products and arrays of random shape, costs them with both programs, and prints every difference; the exit
code is 1 if there was one. The two gradients of each product are compared as well, as the ordinary products that they are with
`--backward same-dataflow`. SCALE-Sim reports the index of the last cycle, so one is added. It does not read partial sums back,
so those reads are left out of ours. For output-stationary products it counts more writes than there are outputs, which cannot
be right, so these writes are not compared.
"""

import argparse
import csv
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from adagp.hw import Accelerator, Array, Bits, Convolution, Operation, Product, array_cost
from adagp.hw.export import CONVOLUTION_HEADER, GEMM_HEADER, configuration, convolution_row
from adagp.hw.product import AXES, RESULTS


def convolution(draw: random.Random, index: int) -> Convolution:
    """Return a convolution of random shape, its input just large enough."""
    kernel = (draw.randint(1, 5), draw.randint(1, 5))
    output = (draw.randint(1, 9), draw.randint(1, 9))
    stride = draw.randint(1, 3)
    height, width = ((out - 1) * stride + side for out, side in zip(output, kernel, strict=True))
    return Convolution(
        f"conv{index}", draw.randint(1, 20), draw.randint(1, 40), kernel, (height, width), output, (stride, stride)
    )


@dataclass(frozen=True)
class Asked:
    """What is compared: cycles, and words of factors read and of results written at the array's edge."""

    cycles: int
    reads: int
    writes: int


def ask_scale_sim(python: str, array: Array, dataflow: str, header: str, rows: list[str], kind: str) -> list[Asked]:
    """Return SCALE-Sim's figures of each row."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "check.cfg").write_text(configuration(array, dataflow))
        (folder / "layers.csv").write_text("\n".join([header, *rows]) + "\n")
        (folder / "layout.csv").write_text("")
        options = ["-c", "check.cfg", "-t", "layers.csv", "-l", "layout.csv", "-p", "out", "-i", kind, "-s", "N"]
        command = [python, "-m", "scalesim.scale", *options]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        found = {path.name: path.read_text() for path in folder.glob("out/**/*_REPORT.csv")}
        if "COMPUTE_REPORT.csv" not in found:
            raise RuntimeError(f"SCALE-Sim failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    cycles = _column(found["COMPUTE_REPORT.csv"], "Total Cycles")
    accesses = found["DETAILED_ACCESS_REPORT.csv"]
    inputs, filters = (_column(accesses, f"SRAM {name} Reads") for name in ("IFMAP", "Filter"))
    writes = _column(accesses, "SRAM OFMAP Writes")
    return [
        Asked(last + 1, one + two, written)
        for last, one, two, written in zip(cycles, inputs, filters, writes, strict=True)
    ]


def _column(report: str, title: str) -> list[int]:
    lines = list(csv.reader(report.splitlines()))
    place = [cell.strip() for cell in lines[0]].index(title)
    return [int(float(line[place])) for line in lines[1:]]


def ask_adagp(dataflow: str, product: Product, array: Array) -> Asked:
    """Return our figures; words of one bit, so that bits are words."""
    cost = array_cost(dataflow, replace(product, bits=Bits(1, 1, 1, 1)), array)
    sizes = {"rows": product.rows, "depth": product.depth, "columns": product.columns}
    one, two = AXES[RESULTS[product.operation]]
    read_back = cost.buffer_writes - product.count * sizes[one] * sizes[two]
    return Asked(cost.cycles, cost.buffer_reads - read_back, cost.buffer_writes)


def as_gemm(product: Product, name: str) -> str:
    """Return a product, or the ordinary product that makes its gradient, as a line of SCALE-Sim's file: M, N, K."""
    rows, depth, columns = product.rows, product.depth, product.columns
    sizes = {
        Operation.FORWARD: (rows, columns, depth),
        Operation.INPUT_GRADIENT: (rows, depth, columns),
        Operation.WEIGHT_GRADIENT: (depth, columns, rows),
    }[product.operation]
    return f"{name}, {', '.join(map(str, sizes))},"


def compare(python: str, array: Array, layers: list[Convolution], products: list[Product]) -> tuple[int, list[str]]:
    """Return how many products were compared, and a line for each that differs."""
    trained = [product.gradient(operation, ordinary=True) for product in products for operation in Operation]
    gemms = [as_gemm(product, f"gemm{index}") for index, product in enumerate(trained)]
    compared, wrong = 0, []
    for dataflow in ("ws", "os", "is"):
        theirs = ask_scale_sim(python, array, dataflow, GEMM_HEADER, gemms, "gemm")
        asked = list(trained)
        if layers:
            rows = [convolution_row(layer.name, layer) for layer in layers]
            theirs += ask_scale_sim(python, array, dataflow, CONVOLUTION_HEADER, rows, "conv")
            asked += [layer.product(1) for layer in layers]
        for product, found in zip(asked, theirs, strict=True):
            compared += 1
            ours = ask_adagp(dataflow, product, array)
            if dataflow == "os":
                found = replace(found, writes=ours.writes)
            if ours != found:
                wrong.append(f"{dataflow} on {array}: {product} ours {ours}, SCALE-Sim {found}")
    return compared, wrong


def main() -> None:
    """Draw, ask, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter that has scalesim")
    parser.add_argument("--arrays", type=int, default=4)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    compared = wrong = 0
    default = Accelerator().array
    for number in range(options.arrays):
        array = default if number == 0 else Array(draw.randint(1, 20), draw.randint(1, 20))
        layers = [convolution(draw, index) for index in range(options.layers)]
        products = [
            Product(draw.randint(1, 90), draw.randint(1, 90), draw.randint(1, 90)) for _ in range(options.layers)
        ]
        count, differences = compare(options.python, array, layers, products)
        compared += count
        wrong += len(differences)
        print("\n".join([*differences, f"{array}: {count} compared"]))
    print(f"{compared} compared, {wrong} different")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
