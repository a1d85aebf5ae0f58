"""`adagp models` and `adagp datasets`: what there is to train, and to train on."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from adagp.cli.options import DataFolder, Json, option
from adagp.cli.simulated_runs import Width
from adagp.workloads import parse_shape


def models(
    names: Annotated[list[str] | None, typer.Argument(help="Models to show; all by default.")] = None,
    image: Annotated[
        str | None, option("Image as CHANNELSxHEIGHTxWIDTH.", "--input", unset="each model's usual one")
    ] = None,
    classes: Annotated[
        int | None,
        option("Classes.", unset="1000 for images, 20 for detection", low=2, high=1_000_000, allowed="2 to 1,000,000"),
    ] = None,
    width: Width = 1.0,
    as_json: Json = False,
) -> None:
    """List the models: parameters, multiply-accumulates of a forward pass, sites, and the predictor they need."""
    shape = parse_shape(image)
    from adagp.model_table import describe_models

    rows = describe_models(names or None, image=shape, classes=classes, width=width)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    columns = ("model", "input", "parameters", "MACs", "sites", "predictor", "largest site")
    print_table(
        columns,
        [
            (
                row.name,
                "x".join(map(str, row.image)) if row.image else "text",
                _millions(row.parameters),
                _millions(row.macs),
                str(row.sites),
                _millions(row.predictor_parameters),
                row.largest_site,
            )
            for row in rows
        ],
        right=columns[2:6],
    )


def datasets(data_dir: DataFolder = None, as_json: Json = False) -> None:
    """List the data sets: what they hold, where they are looked for, and which are there."""
    from adagp.data import DEFAULT_DATA_DIR, describe_datasets
    from adagp.models.registry import LANGUAGE, TRANSLATION

    place = data_dir or DEFAULT_DATA_DIR
    rows = describe_datasets(place)
    if as_json:
        typer.echo(json.dumps([row.as_dict() for row in rows], indent=2))
        return
    columns = ("data set", "there", "sample", "classes", "train", "test", f"looked for in {place}")
    lines = []
    for row in rows:
        info, found = row.info, row.found or not row.looked_for
        there = "yes" if found else "download" if info.fetch else "no"
        sample = "x".join(map(str, info.shape)) or ("text" if info.task in (LANGUAGE, TRANSLATION) else "-")
        counts = (f"{count:,}" if count else "-" for count in (info.classes, info.train, info.test))
        names = ", ".join(info.files) or f"({'part of adagp' if row.found else 'made by its task'})"
        lines.append((info.name, there, sample, *counts, names))
    print_table(columns, lines, right=columns[3:6])


def _millions(count: int) -> str:
    return f"{count / 1e6:,.2f} M"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    """Print a table whose last column gives way where the terminal is narrow; a pipe or file gets it whole."""
    from rich.table import Table

    from adagp.cli.terminal import Terminal

    console = Terminal()
    table = Table()
    for name in columns:
        last = name == columns[-1]
        table.add_column(name, justify="right" if name in right else "left", no_wrap=not last, overflow="fold")
    for row in rows:
        table.add_row(*row)
    (console if console.is_terminal else Terminal(width=160)).print(table)
