"""Write the table "Does it work?" from the finished comparisons: `python -m tools.fill_summary`.

A comparison is a folder of docs/measured with the report.json that `adagp compare` wrote. docs/results.md gets every regime of
each, a row for each method. README gets one row for each comparison, at equal cost. It leaves out comparisons on a single
device in which backprop had one batch size only: it could have had a better one. Both tables are between two marks.
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
    tables = {
        root / "README.md": overview([one for one in documents if is_fair(one)]),
        root / "docs" / "results.md": [HEAD, *(row for one in documents for row in rows(one))],
    }
    return {page: filled(page.read_text("utf-8"), "\n".join(table)) for page, table in tables.items()}


def filled(text: str, table: str) -> str:
    """Return the text with the table between its marks."""
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{table}\n{END}", text, flags=re.DOTALL)


def is_fair(document: dict[str, Any]) -> bool:
    """Return whether backprop's batch size was tuned, or is that of a run on several devices, where it is fixed."""
    return len(document.get("backprop_batch_sizes", ())) > 1 or "cluster" in document["regimes"]


def overview(documents: list[dict[str, Any]]) -> list[str]:
    """Return a table with a row for each comparison: every method in the first regime of `EQUAL`."""
    methods = list(dict.fromkeys(name for one in documents for name in one["regimes"][_regimes(one)[0]]["methods"]))
    head = ("network (CIFAR-10)", "at equal", "seeds", *(f"`{name}`" for name in methods), "verdict")
    lines = [_line(*head), "|" + "---|" * len(head)]
    for document in documents:
        regime = _regimes(document)[0]
        found = document["regimes"][regime]["methods"]
        cells = [_result(document, name, found[name]) if name in found else "" for name in methods]
        seeds = max(row["runs"] for row in found.values())
        lines.append(_line(network(document), EQUAL[regime], str(seeds), *cells, _verdicts(found)))
    return lines


def rows(document: dict[str, Any]) -> Iterator[str]:
    """Yield a row for each regime and each method other than backprop."""
    for regime in _regimes(document):
        methods = document["regimes"][regime]["methods"]
        plain = next(row for row in methods.values() if row["method"] == "bp")
        for name, row in methods.items():
            if row is not plain:
                cells = (network(document), _batch_sizes(document, name), f"`{name}`", EQUAL[regime])
                yield _line(*cells, _against(row, plain), _verdict(row))


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _regimes(document: dict[str, Any]) -> list[str]:
    return [regime for regime in EQUAL if regime in document["regimes"]]


def _result(document: dict[str, Any], name: str, row: dict[str, Any]) -> str:
    """Return the accuracy at the method's batch size, and the points ahead of backprop."""
    accuracy = f"{row['accuracy_mean']:.1%}, batch {document['batch_sizes'][name]:,}"
    return accuracy if row["method"] == "bp" else f"{accuracy}: {_points(row)}"


def _verdicts(methods: dict[str, dict[str, Any]]) -> str:
    """Return which methods are ahead of backprop, level with it, or behind."""
    verdicts = {name: _verdict(row) for name, row in methods.items() if row["method"] != "bp"}
    if len(set(verdicts.values())) == 1:
        return f"all {next(iter(verdicts.values()))}"
    kinds = {kind: [name.split("@")[0] for name, own in verdicts.items() if own == kind] for kind in verdicts.values()}
    return "; ".join(f"{' and '.join(names)} {kind}" for kind, names in kinds.items())


def network(document: dict[str, Any]) -> str:
    """Return the network of a comparison, with its width if that is not 1."""
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
    values = f"{row['accuracy_mean']:.1%} against {plain['accuracy_mean']:.1%}"
    return f"{values}: {_points(row, ' points')}, {row['runs']} seeds"


def _points(row: dict[str, Any], unit: str = "") -> str:
    ends = f" ({100 * row['ahead_low']:+.1f} to {100 * row['ahead_high']:+.1f})" if row["ahead_low"] is not None else ""
    return f"{100 * row['ahead_mean']:+.1f}{unit}{ends}"


def _verdict(row: dict[str, Any]) -> str:
    if row["ahead_low"] is None:
        return "one seed"
    return "ahead" if row["ahead_low"] > 0 else "behind" if row["ahead_high"] < 0 else "level"


if __name__ == "__main__":
    main()
