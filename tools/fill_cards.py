"""Put the figures of comparisons into the method cards: `python -m tools.fill_cards COMPARISON...`.

A COMPARISON is a folder that `adagp compare` wrote. Each card in docs/methods gets tables between its two marks: the method's
rows of all regimes, with backprop and `skip` for reference. `--table FILE` puts the whole tables between the marks of FILE.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CARDS = Path("docs/methods")
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"
REFERENCES = ("bp", "skip")
HEAD = (
    "| regime | method | batches (GP) | test accuracy, mean (95% interval) | gap to `bp` closed | seconds | peak memory "
    "| cosine, minibatch | cosine, large batch |\n|---|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    """Fill the cards, and the table of another page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("comparisons", type=Path, nargs="+")
    parser.add_argument("--table", type=Path, help="also put the tables of all methods into this page")
    arguments = parser.parse_args()
    documents = [json.loads((folder / "report.json").read_text("utf-8")) for folder in arguments.comparisons]
    for card in sorted(CARDS.glob("*.md")):
        tables = []
        for document in documents:
            own = [name for name in document["methods"] if name.partition("@")[0] == card.stem]
            others = [name for name in REFERENCES if name not in own]
            tables += [table(document, [*own, *others])] if own else []
        if BEGIN in card.read_text("utf-8"):
            fill(card, "\n\n".join(tables) or "Not part of a comparison on real data yet.")
    if arguments.table is not None:
        fill(arguments.table, "\n\n".join(table(document, document["methods"]) for document in documents))


def table(document: dict[str, Any], names: Iterable[str]) -> str:
    """Return the rows of `names`, regime by regime, and how they were measured."""
    chosen = list(names)
    rows = [
        row(regime, name, content["methods"][name])
        for regime, content in document["regimes"].items()
        for name in chosen
        if name in content["methods"]
    ]
    seeds = "1 seed" if document["seeds"] == 1 else f"{document['seeds']} seeds"
    conditions = (
        f"{document['model']} on {document['dataset']}, {seeds}, {document['batches']} batches (`bp`), "
        f"one thread per run, {document['jobs']} runs at a time."
    )
    return "\n".join([conditions, "", HEAD, *rows])


def row(regime: str, name: str, figures: dict[str, Any]) -> str:
    """Return one line of the table."""
    low, high = figures["accuracy_low"], figures["accuracy_high"]
    interval = "" if low is None else f" ({low:.1%} to {high:.1%})"
    closed = figures["gap_closed"] if figures["gap_clear"] else None
    cells = [
        "equal batches" if regime == "epochs" else f"equal {regime}",
        f"`{name}`",
        f"{figures['batches']:.0f} ({figures['gp_batches']:.0f})",
        f"{figures['accuracy_mean']:.1%}{interval}",
        "" if closed is None or name in REFERENCES else f"{closed:.0%}",
        f"{figures['seconds_mean']:.0f}",
        f"{figures['peak_memory'] / 1e6:.0f} MB",
        *("" if figures[key] is None else f"{figures[key]:.2f}" for key in ("cosine_true", "cosine_large_batch")),
    ]
    return f"| {' | '.join(cells)} |"


def fill(page: Path, text: str) -> None:
    """Put `text` between the marks of a page."""
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
