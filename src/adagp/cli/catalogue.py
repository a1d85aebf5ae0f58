"""`adagp methods`, `adagp models` and `adagp datasets`: lists of training methods, models and data sets."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from adagp.cli.options import NAMES, DataFolder, Json, offer
from adagp.cli.simulation_options import Width
from adagp.core.methods import METHODS, Method
from adagp.core.options import option
from adagp.errors import OptionError
from adagp.program.workloads import parse_shape

if TYPE_CHECKING:
    from adagp.data.registry import DatasetRow


def methods(as_json: Json = False) -> None:
    """List the methods: what each does, its default schedule and its options."""
    from adagp.cli.terminal import print_table

    known = [METHODS[name] for name in METHODS]
    if as_json:
        rows = [
            {
                "name": method.name,
                "description": method.description,
                "schedule": method.schedule,
                "options": method.defaults,
                "parallel": list(method.parallel),
                "simulated": method.builds is None or method.accelerator is not None,
            }
            for method in known
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    columns = ("method", "default schedule", "description; options with their defaults")
    print_table(
        columns,
        [(method.name, method.schedule, "; ".join((method.description, *own_options(method)))) for method in known],
        (),
    )


def own_options(method: Method) -> list[str]:
    """Return a method's options as on a command line, each with its default."""
    return [
        f"{option.flag} ({option.unset})" if option.default is None else " ".join(option.words(option.default))
        for option in method.options
    ]


def models(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Models to show; all by default.", autocompletion=offer(NAMES["model"])),
    ] = None,
    image: Annotated[
        str | None, option("Image shape, CHANNELSxHEIGHTxWIDTH.", "--input", unset="each model's usual one")
    ] = None,
    image_size: Annotated[
        int | None, option("Height and width of the images.", unset="each model's usual one", low=1, high=65_536)
    ] = None,
    classes: Annotated[
        int | None,
        option(
            "Number of classes.", unset="each model's usual number", low=2, high=1_000_000, allowed="2 to 1,000,000"
        ),
    ] = None,
    width: Width = 1.0,
    as_json: Json = False,
) -> None:
    """List the models: parameters, multiply-accumulates of a forward pass, sites, and the size of the predictor."""
    shape = parse_shape(image)
    if shape is not None and image_size is not None:
        raise OptionError("--input and --image-size both set the image size; give one of them.")
    from adagp.cli.terminal import busy, print_table
    from adagp.program.model_table import describe_models

    with busy("tracing the models…") as say:
        rows = describe_models(
            names or None,
            image=shape,
            image_size=image_size,
            classes=classes,
            width=width,
            tell=lambda name: say(f"tracing {name}…"),
        )
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    columns = ("model", "input", "classes", "parameters", "MACs", "sites", "predictor", "largest site")
    print_table(
        columns,
        [
            (
                row.name,
                "x".join(map(str, row.image)) if row.image else "text",
                f"{row.classes:,}",
                count_text(row.parameters),
                count_text(row.macs),
                str(row.sites),
                count_text(row.predictor_parameters),
                row.largest_site,
            )
            for row in rows
        ],
        right=columns[2:7],
    )


def count_text(count: int) -> str:
    """Return a number in full, or in millions from a million on."""
    return f"{count:,}" if count < 1_000_000 else f"{count / 1e6:,.2f} M"


def datasets(data_dir: DataFolder = None, as_json: Json = False) -> None:
    """List the data sets: contents, where adagp looks for them, and which are installed."""
    from adagp.cli.terminal import print_table
    from adagp.data import DEFAULT_DATA_DIR, describe_datasets

    folder = data_dir or DEFAULT_DATA_DIR
    rows = describe_datasets(folder)
    if as_json:
        typer.echo(json.dumps([row.as_dict() for row in rows], indent=2))
        return
    columns = ("data set", "found", "sample", "classes", "train", "test", f"files in {folder}")
    print_table(columns, [_dataset_line(row) for row in rows], right=columns[3:6])


def _dataset_line(row: "DatasetRow") -> tuple[str, ...]:
    from adagp.models.registry import LANGUAGE, TRANSLATION

    info, is_there = row.info, row.found or not row.looked_for
    there = "yes" if is_there else "download" if info.fetch else "no"
    sample = "x".join(map(str, info.shape)) or ("text" if info.task in (LANGUAGE, TRANSLATION) else "-")
    counts = (f"{count:,}" if count else "-" for count in (info.classes, info.train, info.test))
    names = ", ".join(info.files) or f"({'part of adagp' if row.found else 'made by its task'})"
    return info.name, there, sample, *counts, names
