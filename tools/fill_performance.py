"""Put ratios into docs/performance.md: `python -m tools.fill_performance runs/bench.json`.

Run it on the machine that measured the ratios: the page names the machine that this program runs on.
"""

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch
from tools.fill_cards import fill

PAGE = Path("docs/performance.md")
HEAD = "| measured / against | ratio | at most | |\n|---|---|---|---|"


def main() -> None:
    """Fill the page."""
    rows = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    fill(PAGE, f"{machine()}\n\n{table(rows)}")
    print(f"{PAGE} has the {len(rows)} ratios of {sys.argv[1]}.")


def machine() -> str:
    """Return this machine in a sentence."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text("utf-8").splitlines() if information.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} CPUs ({processor}, {torch.backends.cpu.get_cpu_capability()}), {memory:.0f} GiB, "
        f"{platform.system()}, Python {platform.python_version()}, torch {torch.__version__.partition('+')[0]}."
    )


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows in their order; a ratio over its limit is bold."""
    return "\n".join([HEAD, *(line(row) for row in rows)])


def line(row: dict[str, Any]) -> str:
    """Return one line of the table."""
    exceeds = row["at_most"] is not None and row["ratio"] > row["at_most"]
    ratio = f"{row['ratio']:.3f}" if row["ratio"] >= 1e-3 else f"{row['ratio']:.1e}"
    limit = "" if row["at_most"] is None else f"{row['at_most']:.3f}"
    return f"| {row['name']} | {f'**{ratio}**' if exceeds else ratio} | {limit} | {row['detail']} |"


if __name__ == "__main__":
    main()
