"""`make bench`: run all benchmarks, print their ratios, write them as JSON."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.engine import measure


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/bench.json"))
    arguments = parser.parse_args()
    rows = [*measure("digits_cnn", 32, (1, 8, 8)), *measure("resnet20", 128), *measure("vgg13_bn", 32)]
    for row in rows:
        limit = "" if row.at_most is None else f"  at most {row.at_most}"
        print(f"{row.name:<60} {row.ratio:6.2f}{limit}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    print(f"written: {arguments.out}")


main()
