"""Write the verdicts of `adagp reproduce` into docs/results.md: `python -m tools.write_results OUT/verdicts.md`."""

import sys
from pathlib import Path

from adagp.core.files import write_atomically
from adagp.errors import DataError

DOCUMENT = Path(__file__).parent.parent / "docs" / "results.md"
BEGIN, END = "<!-- verdicts: begin, written by `make results` -->", "<!-- verdicts: end -->"


def put_verdicts(document: str, verdicts: str) -> str:
    """Return `document` with `verdicts` between the two comments; all else stays as it is."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise DataError(f"the document does not have the comments '{BEGIN}' and '{END}' in this order.")
    return f"{before}{BEGIN}\n\n{verdicts.strip()}\n\n{END}{after}"


def main() -> None:
    """Replace what is between the two comments."""
    verdicts = Path(sys.argv[1]).read_text("utf-8")
    write_atomically(DOCUMENT, put_verdicts(DOCUMENT.read_text("utf-8"), verdicts).encode())
    print(f"{DOCUMENT} has the verdicts of {sys.argv[1]}.")


if __name__ == "__main__":
    main()
