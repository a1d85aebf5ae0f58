"""Putting the verdicts into a document, between two comments that mark their place."""

from adagp.errors import DataError

BEGIN, END = "<!-- verdicts: begin, written by `make results` -->", "<!-- verdicts: end -->"


def put_verdicts(document: str, verdicts: str) -> str:
    """Return `document` with `verdicts` between the two comments; all else stays as it is."""
    before, found, rest = document.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise DataError(f"the document does not have the comments '{BEGIN}' and '{END}' in this order.")
    return f"{before}{BEGIN}\n\n{verdicts.strip()}\n\n{END}{after}"
