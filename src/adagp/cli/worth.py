"""`adagp worth`: from a finished comparison, what a GP batch is worth and on which platforms that pays."""

from pathlib import Path
from typing import Annotated, Any

import typer

from adagp.cli.options import Json, Picture
from adagp.core.escape import shown
from adagp.errors import RunError
from adagp.program.run.folder import to_json


def worth(
    comparison: Annotated[Path, typer.Argument(help="Folder of adagp compare --curve ..., finished.")],
    as_json: Json = False,
    plot: Picture = None,
) -> None:
    """Tell from a comparison what a GP batch is worth in BP batches, what it costs on each platform, and where it pays."""
    found = read_worth(comparison)
    if plot is not None:
        from adagp.program.compare.plots import draw_worth

        draw_worth(found, plot)
    if as_json:
        typer.echo(to_json(found, indent=2))
        return
    from adagp.cli.compare import print_sheets
    from adagp.program.compare.tables import worth_sheets

    print_sheets(worth_sheets(found))


def read_worth(folder: Path) -> dict[str, Any]:
    """Return the break-even that a comparison found; refuse a folder that has none."""
    from adagp.program.compare.tables import read_report

    found: dict[str, Any] | None = read_report(folder).get("worth")
    if not found or not found["methods"]:
        raise RunError(
            f"'{shown(folder)}' does not tell what a GP batch is worth: that needs backprop at several lengths. Repeat the "
            "command of the comparison with --curve 0.5,0.75,1.25; its finished runs are kept."
        )
    return found
