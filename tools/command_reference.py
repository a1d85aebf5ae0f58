"""The commands as pages of the site, made of the program's own declarations: nothing here is kept by hand."""

import re
from collections.abc import Iterator
from typing import Any

import typer

from adagp.cli import make_app

Command = Any
"""A command or a group of commands, as typer makes them of functions; typer does not export these classes."""


def commands() -> dict[str, Command]:
    """Return every command by its words: `train`, `rtl simulate`."""
    found: dict[str, Command] = {}

    def collect(group: Command, words: tuple[str, ...]) -> None:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                collect(command, (*words, name))
            else:
                found[" ".join((*words, name))] = command

    collect(typer.main.get_command(make_app()), ())
    return found


def command_page(words: str, command: Command) -> str:
    """Return the page of a command in Markdown: what it does, how it is called, and its options by panel."""
    context = typer.Context(command, info_name=f"adagp {words}")
    usage = " ".join(command.get_usage(context).removeprefix("Usage:").split())
    parts = [f"# adagp {words}", escaped(command.help or ""), f"```text\n{usage}\n```"]
    panels: dict[str, list[str]] = {}
    for panel, line in _lines(command, context):
        panels.setdefault(panel, []).append(line)
    for panel, lines in panels.items():
        parts.append("\n".join([f"## {panel}", "", "| option | meaning |", "|---|---|", *lines]))
    if command.epilog:
        parts.append(escaped(command.epilog))
    return "\n\n".join(parts) + "\n"


def _lines(command: Command, context: typer.Context) -> Iterator[tuple[str, str]]:
    """Yield for each argument and option its panel and its row."""
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None:
            names, text = record
            usual = "Options" if names.startswith("-") else "Arguments"
            panel = getattr(parameter, "rich_help_panel", None) or usual
            yield panel, f"| `{names.replace('|', chr(92) + '|')}` | {escaped(text)} |"


def escaped(text: str) -> str:
    """Return plain text in one line of Markdown that shows it as it is."""
    return re.sub(r"([\\`*_|<>#])", r"\\\1", " ".join(text.split()))
