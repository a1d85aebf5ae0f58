"""The options of runs by name: which there are, what they are where nobody gives them, and which files may give them."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adagp.core.files import read_text
from adagp.core.methods import METHODS, Method, find_method, method_options, methods_with
from adagp.core.options import Option
from adagp.core.precision import precision_forms
from adagp.errors import OptionError, unknown_name
from adagp.program.run.defaults import DATASET_DEFAULTS
from adagp.program.run.parallel import parallel_choices
from adagp.program.run.settings import CONFIG_OPTIONS, DUPLEX
from adagp.schedules.text import schedule_forms


def default_options(method: Method, dataset: str) -> dict[str, Any]:
    """Return what every option of a run with this method and data set is where it is not given."""
    defaults = {option.name: option.default for option in CONFIG_OPTIONS.values()}
    return defaults | method.defaults | DATASET_DEFAULTS.get(dataset, {})


def refuse_idle_options(given: Mapping[str, Any]) -> None:
    """Refuse options of sparse training where nothing says that the run is sparse, and of duplex models with other models."""
    foreign = [name for name in given if CONFIG_OPTIONS.get(name) and CONFIG_OPTIONS[name].panel == DUPLEX]
    if foreign and given.get("model") != "duplex":
        raise OptionError(f"{CONFIG_OPTIONS[foreign[0]].flag} is about the duplex model; give --model duplex.")
    idle = [name for name in given if name.startswith("keep_")]
    if idle and given.get("keep") is None:
        raise OptionError(
            f"{CONFIG_OPTIONS[idle[0]].flag} is about sparse training; give --keep, the share of weights to keep."
        )


def known_options() -> dict[str, Option]:
    """Return all options of runs by name: those of every run, then those of single methods."""
    own = method_options()
    for name in own.keys() & CONFIG_OPTIONS.keys():
        raise OptionError(f"method '{methods_with(name)[0]}' has an option '{name}', as every run has; rename it.")
    return {**CONFIG_OPTIONS, **own}


def help_text(option: Option) -> str:
    """Return an option's line of help, with the choices that plugins may have added and the methods that it belongs to."""
    text = option.help.replace("{forms}", schedule_forms()).replace("{parallel}", ", ".join(parallel_choices()))
    text = text.replace("{precisions}", ", ".join(precision_forms()))
    if option.name == "method":
        text += f" One of: {', '.join(METHODS)}."
    if option.name in CONFIG_OPTIONS:
        return text
    able = {name: METHODS[name].defaults[option.name] for name in methods_with(option.name)}
    if not able:
        return text
    others = "".join(f" {name}: {value}." for name, value in able.items() if value != option.default)
    return f"{text} For: {', '.join(able)}.{others}"


def read_toml(path: Path) -> dict[str, Any]:
    """Return the options in a TOML file, names and types checked; hyphens and underscores in names are the same."""
    try:
        content = tomllib.loads(read_text(path, "the configuration file"))
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"'{path}' is not valid TOML: {error}.") from None
    values: dict[str, Any] = {}
    for name, value in content.items():
        plain = name.replace("-", "_")
        if plain in values:
            raise OptionError(f"{path}: option '{plain}' is given twice, with hyphens and with underscores.")
        values[plain] = value
    check_names_and_types(values, str(path))
    return values


def check_names_and_types(values: Mapping[str, Any], origin: str) -> None:
    """Refuse names that are no options and values of a wrong type, naming `origin`."""
    if ":" in str(values.get("method", "")):
        find_method(str(values["method"]))  # its own options are known from here on
    known = known_options()
    for name, value in values.items():
        if name not in known:
            raise OptionError(f"{origin}: {unknown_name('option', name, known)}")
        if name in CONFIG_OPTIONS or value is not None:
            known[name].check_type(value, origin)
