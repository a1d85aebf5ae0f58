"""`adagp validate`: what a method predicts in a model, its memory and cost, and what it cannot train."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from adagp.cli.options import NAMES, offer
from adagp.cli.simulation_options import BATCH, BATCH_SIZE, Width
from adagp.core.escape import escaped
from adagp.core.methods import DEFAULT_METHOD, method_options
from adagp.core.options import Option, option
from adagp.errors import OptionError
from adagp.program.workloads import parse_shape

HAS_PROBLEMS = 2
"""The exit code if the method cannot train the model."""
USUAL = "the model's usual one"


def more_options(command: str) -> Sequence[Option]:
    """Return the options of all methods."""
    return list(method_options().values())


def validate(
    overrides: dict[str, Any],
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Model name, timm:NAME, torchvision:NAME, hf:FILE.json, or package.module:function.",
            autocompletion=offer(NAMES["model"]),
        ),
    ],
    method: Annotated[str, option("Method that provides the gradients of GP batches.")] = DEFAULT_METHOD,
    batch_size: Annotated[int, option("Samples per batch.", *BATCH_SIZE, low=1, high=1_000_000)] = BATCH,
    image: Annotated[str | None, option("Image shape, CHANNELSxHEIGHTxWIDTH.", "--input", unset=USUAL)] = None,
    image_size: Annotated[
        int | None, option("Height and width of the images.", unset=USUAL, low=1, high=65_536)
    ] = None,
    classes: Annotated[
        int | None,
        option("Number of classes.", unset="the model's usual number", low=2, high=1_000_000, allowed="2 to 1,000,000"),
    ] = None,
    width: Width = 1.0,
) -> None:
    """Print which layers of a model a method predicts, what that costs in memory and work, and what cannot be trained."""
    shape = parse_shape(image)
    if shape is not None and image_size is not None:
        raise OptionError("--input and --image-size both set the image size; give one of them.")
    from adagp.cli.terminal import busy
    from adagp.program.model_validation import validate_model

    with busy(f"tracing {model}…"):
        validation = validate_model(
            model,
            method,
            overrides,
            batch=batch_size,
            image=shape,
            image_size=image_size,
            classes=classes,
            width=width,
        )
    typer.echo("\n".join(escaped(line) for line in str(validation).splitlines()))
    if validation.problems:
        raise typer.Exit(HAS_PROBLEMS)
