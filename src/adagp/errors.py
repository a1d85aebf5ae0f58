"""The exceptions of adagp.

A message states what was wrong, the value given, and what is allowed. The command line prints it and exits with code 2;
anything that is not an `AdagpError` is a defect of ours and keeps its traceback.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class AdagpError(Exception):
    """Base of all errors that a user can cause and fix."""


class OptionError(AdagpError, ValueError):
    """An option or argument has a value that is not allowed."""


class ModelError(AdagpError, ValueError):
    """A model, optimizer or layer cannot be trained in the requested way."""


class UsageError(AdagpError, RuntimeError):
    """Calls were made in an order that cannot work."""


class TaskError(AdagpError, TypeError):
    """A task does not keep to what it declares."""


class DataError(AdagpError, ValueError):
    """A data set is missing, broken, or does not fit the model."""


class RunError(AdagpError, RuntimeError):
    """A run folder or checkpoint cannot be read, written or continued."""


class ToolError(AdagpError, RuntimeError):
    """A program that is needed is not installed, or could not do its work."""


def unknown_name(kind: str, name: str, options: Iterable[str], suggestion: str | None = None) -> OptionError:
    """Return the error for a name that is not among `options`, with `suggestion` or the nearest match if there is one."""
    names = sorted(options)
    near = [suggestion] if suggestion else get_close_matches(name.lower(), names, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return OptionError(f"unknown {kind} '{name}'.{hint} Choose from: {', '.join(names)}.")


class AdagpWarning(UserWarning):
    """Training goes on, but not as one might expect."""
