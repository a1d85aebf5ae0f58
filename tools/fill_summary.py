"""Write the table "Does it work?" from the finished comparisons: `python -m tools.fill_summary`.

A comparison is a folder of docs/measured with the report.json that `adagp compare` wrote. docs/results.md gets a row for each
comparison of `METHODS` and each way to count cost. README gets one row for each network and way to count cost: the comparison
with the most seeds. It leaves out comparisons on a single device in which backprop had one batch size only: it could have had
a better one. Both tables are between two marks.
"""

import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MEASURED = Path("docs/measured")
BEGIN, END = "<!-- summary -->", "<!-- end of summary -->"
METHODS = ("bp", "feedback@1:1", "skip@1:1", "adagp@1:1")
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
    compared = [document for document in documents if len({*METHODS}.intersection(document["methods"])) > 1]
    compared.sort(key=is_fair, reverse=True)
    tables = {
        root / "README.md": table((document, _regimes(document)[0]) for document in best_known(compared)),
        root / "docs" / "results.md": table(
            (document, regime) for document in compared for regime in _regimes(document)
        ),
    }
    return {page: filled(page.read_text("utf-8"), "\n".join(table)) for page, table in tables.items()}


def filled(text: str, table: str) -> str:
    """Return the text with the table between its marks."""
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{table}\n{END}", text, flags=re.DOTALL)


def best_known(compared: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the fair comparison with the most seeds for each network and first regime."""
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for document in filter(is_fair, compared):
        key = network(document), _regimes(document)[0]
        if key not in best or document["seeds"] > best[key]["seeds"]:
            best[key] = document
    return list(best.values())


def is_fair(document: dict[str, Any]) -> bool:
    """Return whether backprop's batch size was tuned, or fixed because the comparison is on several devices."""
    return len(document.get("backprop_batch_sizes", ())) > 1 or "cluster" in document["regimes"]


def table(regimes: Iterable[tuple[dict[str, Any], str]]) -> list[str]:
    """Return a table with a row for each regime of a comparison, and a column for each of `METHODS`."""
    head = ("network (CIFAR-10)", "at equal", "seeds", *(f"`{name}`" for name in METHODS), "verdict")
    lines = [_line(*head), "|" + "---|" * len(head)]
    for document, regime in regimes:
        methods = document["regimes"][regime]["methods"]
        cells = [_result(document, name, methods[name]) if name in methods else "" for name in METHODS]
        seeds = max(row["runs"] for row in methods.values())
        lines.append(_line(network(document), EQUAL[regime], str(seeds), *cells, _verdicts(methods)))
    return lines


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _regimes(document: dict[str, Any]) -> list[str]:
    return [regime for regime in EQUAL if regime in document["regimes"]]


def _result(document: dict[str, Any], name: str, row: dict[str, Any]) -> str:
    """Return the accuracy at the method's batch size, and the points ahead of backprop."""
    accuracy = f"{row['accuracy_mean']:.1%}, batch {_batch_size(document, name):,}"
    return accuracy if row["method"] == "bp" else f"{accuracy}: {_points(row)}"


def _verdicts(methods: dict[str, dict[str, Any]]) -> str:
    """Return which methods are ahead of backprop, level with it, or behind."""
    verdicts = {name: _verdict(row) for name, row in methods.items() if row["method"] != "bp"}
    if len(set(verdicts.values())) == 1:
        return ("all " if len(verdicts) > 1 else "") + next(iter(verdicts.values()))
    kinds = {kind: [name.split("@")[0] for name, own in verdicts.items() if own == kind] for kind in verdicts.values()}
    return "; ".join(f"{' and '.join(names)} {kind}" for kind, names in kinds.items())


def network(document: dict[str, Any]) -> str:
    """Return the network of a comparison, with its width if that is not 1."""
    width = _option(document, "--width", "1")
    return str(document["model"]) + ("" if float(width) == 1 else f", width {width}")


def _batch_size(document: dict[str, Any], name: str) -> int:
    sizes: dict[str, int] | None = document.get("batch_sizes")
    return int(_option(document, "--batch-size")) if sizes is None else sizes[name]  # None: of an earlier version


def _option(document: dict[str, Any], flag: str, default: str = "?") -> str:
    words = shlex.split(document["command"])
    return words[words.index(flag) + 1] if flag in words else default


def _points(row: dict[str, Any]) -> str:
    ends = f" ({100 * row['ahead_low']:+.1f} to {100 * row['ahead_high']:+.1f})" if row["ahead_low"] is not None else ""
    return f"{100 * row['ahead_mean']:+.1f}{ends}"


def _verdict(row: dict[str, Any]) -> str:
    if row["ahead_low"] is None:
        return "one seed"
    return "ahead" if row["ahead_low"] > 0 else "behind" if row["ahead_high"] < 0 else "level"


if __name__ == "__main__":
    main()
