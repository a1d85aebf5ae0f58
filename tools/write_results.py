"""Write the verdicts of `adagp reproduce` into docs/results.md: `python -m tools.write_results OUT/verdicts.md`."""

import sys
from pathlib import Path

from adagp.core.files import write_atomically
from adagp.program.reproduce.document import put_verdicts

DOCUMENT = Path(__file__).parent.parent / "docs" / "results.md"


def main() -> None:
    """Replace what is between the two comments."""
    verdicts = Path(sys.argv[1]).read_text("utf-8")
    write_atomically(DOCUMENT, put_verdicts(DOCUMENT.read_text("utf-8"), verdicts).encode())
    print(f"{DOCUMENT} has the verdicts of {sys.argv[1]}.")


if __name__ == "__main__":
    main()
