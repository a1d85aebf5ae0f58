"""Write the table "Does it work?" from the finished comparisons: `python -m tools.fill_summary`.

A comparison is a folder of docs/measured with the report.json that `adagp compare` wrote. docs/results.md gets every regime of
each. README gets one row for each method, at equal cost. It leaves out comparisons on a single device in which backprop had one
batch size only: it could have had a better one. Both tables are between two marks.
"""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MEASURED = Path("docs/measured")
BEGIN, END = "<!-- summary -->", "<!-- end of summary -->"
HEAD = (
    "| network (CIFAR-10) | batch size | method | at equal | against backprop (95% interval) | verdict |\n"
    "|---|---|---|---|---|---|"
)
EQUAL = {
    "seconds": "CPU seconds",
    "accelerator": "cycles of an accelerator (modelled)",
    "pipeline": "cycles of a pipeline (modelled)",
    "cluster": "cycles of data-parallel devices (modelled)",
    "batches": "batches",
}
"""The regimes in the order of preference; README shows the first one that a comparison has."""


def main() -> None:
    """Fill README and the page of results."""
    for page, content in pages().items():
        page.write_text(content, "utf-8")


def pages(root: Path = Path()) -> dict[Path, str]:
    """Return README and the page of results with their tables filled in."""
    documents = [json.loads(path.read_text("utf-8")) for path in sorted((root / MEASURED).glob("*/report.json"))]
    return {
        page: filled(
            page.read_text("utf-8"),
            "\n".join([HEAD, *(row for one in documents if every or is_fair(one) for row in rows(one, every))]),
        )
        for page, every in ((root / "README.md", False), (root / "docs" / "results.md", True))
    }


def filled(text: str, table: str) -> str:
    """Return the text with the table between its marks."""
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{table}\n{END}", text, flags=re.DOTALL)


def is_fair(document: dict[str, Any]) -> bool:
    """Return whether backprop's batch size was tuned, or is that of a run on several devices, where it is fixed."""
    return len(document.get("backprop_batch_sizes", ())) > 1 or "cluster" in document["regimes"]


def rows(document: dict[str, Any], every: bool) -> Iterator[str]:
    """Yield a row for each method other than backprop: in the first regime of `EQUAL`, or in every one."""
    regimes = [regime for regime in EQUAL if regime in document["regimes"]]
    for regime in regimes if every else regimes[:1]:
        methods = document["regimes"][regime]["methods"]
        plain = next(row for row in methods.values() if row["method"] == "bp")
        for name, row in methods.items():
            if row is not plain:
                cells = (_network(document), _batch_sizes(document, name), f"`{name}`", EQUAL[regime])
                values = (_against(row, plain), _verdict(row))
                yield f"| {' | '.join((*cells, *values))} |"


def _network(document: dict[str, Any]) -> str:
    width = _option(document, "--width", "1")
    return str(document["model"]) + ("" if float(width) == 1 else f", width {width}")


def _batch_sizes(document: dict[str, Any], name: str) -> str:
    """Return the method's batch size, and backprop's if it has another."""
    sizes = document.get("batch_sizes")
    if sizes is None:  # a report of an earlier version
        return _option(document, "--batch-size")
    own, plain = sizes[name], sizes[document["reference"]]
    return f"{own:,}" if own == plain else f"{own:,} (`bp` {plain:,})"


def _option(document: dict[str, Any], flag: str, default: str = "?") -> str:
    words = shlex.split(document["command"])
    return words[words.index(flag) + 1] if flag in words else default


def _against(row: dict[str, Any], plain: dict[str, Any]) -> str:
    ends = f" ({100 * row['ahead_low']:+.1f} to {100 * row['ahead_high']:+.1f})" if row["ahead_low"] is not None else ""
    values = f"{row['accuracy_mean']:.1%} against {plain['accuracy_mean']:.1%}"
    return f"{values}: {100 * row['ahead_mean']:+.1f} points{ends}, {row['runs']} seeds"


def _verdict(row: dict[str, Any]) -> str:
    if row["ahead_low"] is None:
        return "one seed"
    return "ahead" if row["ahead_low"] > 0 else "behind" if row["ahead_high"] < 0 else "level"


if __name__ == "__main__":
    main()
