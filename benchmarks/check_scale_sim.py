"""Compare the systolic dataflows' cycles with SCALE-Sim v3, run as an outside program.

    python -m venv /somewhere && /somewhere/bin/pip install 'numpy<2.4' scalesim==3.0.0
    python -m benchmarks.check_scale_sim --python /somewhere/bin/python

Draws convolutions, products and arrays of random shape, asks both, and prints every difference; the exit code says
whether there was one. SCALE-Sim reports the index of the last cycle, so one is added.
"""

import argparse
import csv
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from adagp.hw import Accelerator, Array, Convolution, Product, array_cost
from adagp.hw.export.scale_sim import CONVOLUTION_HEADER, GEMM_HEADER, configuration, convolution_row


def convolution(draw: random.Random, index: int) -> Convolution:
    """Return a convolution of random shape, its input just large enough."""
    kernel = (draw.randint(1, 5), draw.randint(1, 5))
    output = (draw.randint(1, 9), draw.randint(1, 9))
    stride = draw.randint(1, 3)
    height, width = ((out - 1) * stride + side for out, side in zip(output, kernel, strict=True))
    return Convolution(
        f"conv{index}", draw.randint(1, 20), draw.randint(1, 40), kernel, (height, width), output, (stride, stride)
    )


def scale_sim_cycles(python: str, array: Array, dataflow: str, header: str, rows: list[str], kind: str) -> list[int]:
    """Return SCALE-Sim's compute cycles of each row."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "check.cfg").write_text(configuration(array, dataflow))
        (folder / "layers.csv").write_text("\n".join([header, *rows]) + "\n")
        (folder / "layout.csv").write_text("")
        options = ["-c", "check.cfg", "-t", "layers.csv", "-l", "layout.csv", "-p", "out", "-i", kind, "-s", "N"]
        command = [python, "-m", "scalesim.scale", *options]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        reports = list(folder.glob("out/**/COMPUTE_REPORT.csv"))
        if not reports:
            sys.exit(f"SCALE-Sim failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        lines = list(csv.reader(reports[0].read_text().splitlines()))
    place = next(index for index, title in enumerate(lines[0]) if title.strip() == "Total Cycles")
    return [int(float(line[place])) + 1 for line in lines[1:]]


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
        gemms = [f"gemm{index}, {p.rows}, {p.columns}, {p.depth}," for index, p in enumerate(products)]
        for dataflow in ("ws", "os", "is"):
            rows = [convolution_row(layer.name, layer) for layer in layers]
            theirs = scale_sim_cycles(options.python, array, dataflow, CONVOLUTION_HEADER, rows, "conv")
            theirs += scale_sim_cycles(options.python, array, dataflow, GEMM_HEADER, gemms, "gemm")
            asked = [layer.product(1) for layer in layers] + products
            for product, cycles in zip(asked, theirs, strict=True):
                ours = array_cost(dataflow, product, array).cycles
                compared += 1
                if ours != cycles:
                    wrong += 1
                    print(f"{dataflow} on {array}: {product} ours {ours}, SCALE-Sim {cycles}")
        print(f"{array}: {3 * 2 * options.layers} compared")
    print(f"{compared} compared, {wrong} different")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
