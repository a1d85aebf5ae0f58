"""A finished comparison, read from its folder: for notebooks and for programs that go on with its figures."""

from dataclasses import dataclass
from pathlib import Path

from adagp.core.escape import shown
from adagp.core.html_tables import html_table
from adagp.errors import RunError
from adagp.program.compare.records import Record
from adagp.program.compare.tables import Sheet, markdown, sheets
from adagp.program.run.folder import RunFolder


@dataclass(frozen=True)
class FinishedComparison:
    """What `adagp compare` found. `document` is all of it, as its `report.json` has it; `sheets` are the tables."""

    document: Record
    sheets: tuple[Sheet, ...]

    def __str__(self) -> str:
        return markdown(self.document)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return the tables, for notebooks; then what failed."""
        failed = [f"failed: {one['name']}: {one['reason']}" for one in self.document["failed"]]
        tables = [html_table(sheet.title, sheet.heads, sheet.rows, [sheet.note]) for sheet in self.sheets]
        return "".join([*tables, html_table("Failed", ("run",), [[one] for one in failed]) if failed else ""])


def read_comparison(folder: Path | str) -> FinishedComparison:
    """Return the comparison that `adagp compare --out FOLDER` finished."""
    document = read_report(Path(folder))
    try:
        return FinishedComparison(document, tuple(sheets(document)))
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError):
        raise RunError(f"'{shown(folder)}' holds a report.json that is not the report of a comparison.") from None


def read_report(folder: Path) -> Record:
    """Return the report of a finished comparison as it was written; refuse a folder that has none."""
    if not (folder / "report.json").is_file():
        raise RunError(f"'{shown(folder)}' holds no finished comparison: it has no report.json.")
    document = RunFolder(folder).read_json("report.json")
    return document if isinstance(document, dict) else {}
