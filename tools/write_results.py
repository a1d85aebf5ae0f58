"""Write the verdicts of `adagp reproduce` into docs/results/verdicts.md: `python -m tools.write_results OUT/verdicts.md`.

Rows that cannot be compared (another data set, a smaller network) are left out; the count of all verdicts stays.
"""

import re
import sys
from pathlib import Path

from adagp.core.files import write_atomically
from adagp.errors import DataError

DOCUMENT = Path(__file__).parent.parent / "docs" / "results" / "verdicts.md"
BEGIN, END = "<!-- verdicts: begin, written by `make results` -->", "<!-- verdicts: end -->"
_TABLE = re.compile(r"(?m)^\|.*\n\| ?---.*\n(?:\|.*(?:\n|\Z))*")
NOTHING = "Nothing of it can be compared at this budget.\n"


def put_verdicts(document: str, verdicts: str) -> str:
    """Return `document` with the comparable `verdicts` between the two comments; all else stays as it is."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise DataError(f"the document does not have the comments '{BEGIN}' and '{END}' in this order.")
    return f"{before}{BEGIN}\n\n{comparable(verdicts).strip()}\n\n{END}{after}"


def comparable(verdicts: str) -> str:
    """Return the verdicts without the rows that are not comparable; headings are one level higher, for a page of its own."""
    return _TABLE.sub(_comparable_rows, re.sub(r"(?m)^###", "##", verdicts))


def _comparable_rows(table: re.Match[str]) -> str:
    head, line, *rows = table[0].splitlines(keepends=True)
    kept = [row for row in rows if "| not comparable" not in row]
    if not rows or len(kept) == len(rows):
        return table[0]
    return "".join([head, line, *kept]) if kept else NOTHING


def main() -> None:
    """Replace what is between the two comments."""
    verdicts = Path(sys.argv[1]).read_text("utf-8")
    write_atomically(DOCUMENT, put_verdicts(DOCUMENT.read_text("utf-8"), verdicts).encode())
    print(f"{DOCUMENT} has the verdicts of {sys.argv[1]}.")


if __name__ == "__main__":
    main()
