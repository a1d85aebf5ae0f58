"""Commands as typer makes them, but for two things: a flag takes no value, so help shows none; and `-h` is help, too."""

from typing import Any

from typer.core import TyperCommand, TyperGroup

HELP_FLAGS = {"help_option_names": ["-h", "--help"]}


def without_values_of_flags(parameters: list[Any]) -> list[Any]:
    """Return the parameters of a command; those that are flags are shown without the type that they have inside."""
    for one in parameters:
        if getattr(one, "is_flag", False):
            one.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command of the program."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters, that of help among them."""
        return without_values_of_flags(super().get_params(ctx))


class CommandGroup(TyperGroup):
    """A command that has others below it."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters, that of help among them."""
        return without_values_of_flags(super().get_params(ctx))
