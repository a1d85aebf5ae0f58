"""What a run was begun with, and what a run folder may not decide: whose code is run."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from adagp.core.methods import METHODS
from adagp.core.plugins import load_plugin, loaded_plugins
from adagp.errors import RunError
from adagp.program.run.config import default_options

TRUST = "--trust"
CODE = ("model", "method")
"""Options that may name code: `package.module:name`."""
LIBRARIES = ("timm", "torchvision", "hf")
"""What stands before the colon in the names of models of installed libraries (`timm:NAME`): a folder's own code has no part."""


def admit_code(config: Mapping[str, Any], path: Path, named: Collection[str] = (), *, trust: bool = False) -> None:
    """Refuse the run in `path` if its configuration names code that the user has not named on the command line.

    `named` are the models and methods that were named there; plugins have been loaded if they were. With `trust` the user
    takes the folder's word: its plugins are loaded here, and its model and method may be imported.
    """
    plugins = [name for name in config.get("plugins") or () if name not in loaded_plugins()]
    if not trust:
        wanted = [("plugin", name) for name in plugins]
        wanted += [(option, str(config[option])) for option in CODE if _is_code(option, config.get(option), named)]
        for option, name in wanted:
            raise RunError(
                f"the run in '{path}' wants to run code that it names itself: --{option} {name}. If you know it and trust "
                f"it, give --{option} {name} as well, or {TRUST}."
            )
    for name in plugins:
        load_plugin(name)


def _is_code(option: str, name: Any, named: Collection[str]) -> bool:
    """Tell whether a folder's option names code that the user has not named; `torchvision.models:NAME` is a library's model."""
    if not isinstance(name, str):
        return False
    package = name.partition(":")[0]
    if option == "model" and (package in LIBRARIES or package.startswith(("timm.", "torchvision."))):
        return False
    return ":" in name and name not in named and name not in METHODS


def refuse_other_origin(before: Any, now: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Refuse to continue the run in `path` from a checkpoint that was made with other options or other data.

    `before` is what the checkpoint was made with, `now` what it would be continued with: tables `options` and `data`. A
    checkpoint of before they were kept has none; an option that came later than a checkpoint had its default then.
    """
    if not isinstance(before, Mapping):
        return
    words = {
        "options": "was begun with other options than its config.json has now: {}. Put them back, or start a new run "
        "with --out.",
        "data": "was begun with other data: {}. Put them back, or start a new run with --out.",
    }
    for kind, sentence in words.items():
        old = before.get(kind)
        if not isinstance(old, Mapping):
            continue
        names = dict.fromkeys((*old, *now[kind]))
        if kind == "options" and "method" in now[kind]:
            old = default_options(now[kind]) | dict(old)
            names = dict.fromkeys(now[kind])  # older checkpoints also have the options of models and hooks not in use
        changed = [
            f"{str(name).replace('_', ' ') if kind == 'data' else name} (was {old.get(name)}, now {now[kind].get(name)})"
            for name in names
            if old.get(name) != now[kind].get(name)
        ]
        if changed:
            raise RunError(f"the run in '{path}' {sentence.format(', '.join(changed))}")
