"""The options of control in text form; no torch here."""

from typing import Any

from adagp.core.methods import METHODS, Method, find_method
from adagp.errors import OptionError

AUTO = "auto"
RANDOM, ERROR = "random", "error"
SELECTIONS = (RANDOM, ERROR)
DEFAULT_PREDICTOR = "feedback:correction=0"


def check_share(text: str) -> None:
    """Raise unless `text` is a share or `auto`."""
    read_share(text)


def read_share(text: str) -> float | None:
    """Return the share that `text` gives, None for `auto`."""
    if text == AUTO:
        return None
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise OptionError(f"true_share is '{text}'; it must be above 0 and at most 1, or auto.")
    return share


def check_predictor(text: str) -> None:
    """Raise unless `text` names a method that predicts, with options that it has."""
    # If the default predictor's paper is not installed, only runs by control fail, when they are built.
    if text != DEFAULT_PREDICTOR or text in METHODS:
        parse_predictor(text)


def parse_predictor(text: str) -> tuple[Method, dict[str, Any]]:
    """Return the method that `text` names, and its options."""
    name, _, rest = text.partition(":")
    method = find_method(name)
    if method.builds is None or method.name == "control":
        raise OptionError(f"predictor is '{text}'; method '{name}' predicts nothing that control could use.")
    options_by_name = {option.name: option for option in method.options}
    options: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        option, equals, value = pair.partition("=")
        option = option.strip().replace("-", "_")
        if not equals or option not in options_by_name:
            raise OptionError(
                f"predictor is '{text}'; '{pair}' is not an option=value of method '{name}', which has: "
                f"{', '.join(options_by_name)}."
            )
        options[option] = _read(text, value, options_by_name[option].kind)
        options_by_name[option].check(options[option])
    return method, options


def _read(text: str, value: str, kind: type) -> Any:
    if kind is bool and value in ("true", "false"):
        return value == "true"
    try:
        if kind is not bool:
            return kind(value)
    except ValueError:
        pass
    raise OptionError(f"predictor is '{text}'; '{value}' is not of type {kind.__name__}.")
