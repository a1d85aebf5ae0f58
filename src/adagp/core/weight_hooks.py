"""The table of weight-update hooks: what changes a run's weights after each step of its optimizer. No torch here.

A hook is one declaration: its name, the class that builds it as `package.module:Class`, and its options, one of which turns it
on. `adagp train` offers the options of all hooks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adagp.core.options import Option
from adagp.core.registry import Registry


@dataclass(frozen=True)
class WeightHookInfo:
    """A hook by name. It is on where the option `switch`, which is None by default, has a value.

    `builds` names the class. It is called with the options, by their `parameter`, and with `regenerate`, which draws the
    run's initial weights again, by parameter name. `parallel` are the kinds of parallel runs that it can take part in.
    """

    name: str
    builds: str
    switch: str
    options: tuple[Option, ...]
    parallel: tuple[str, ...] = ("data",)

    def is_on(self, values: Mapping[str, Any]) -> bool:
        """Return whether a run with these options uses the hook."""
        return values.get(self.switch) is not None


WEIGHT_UPDATE_HOOKS: Registry[WeightHookInfo] = Registry("weight update hook", extensible=True)


def hooks_in_use(values: Mapping[str, Any]) -> list[WeightHookInfo]:
    """Return the hooks that are on in a run with these options, in the order of the table."""
    return [WEIGHT_UPDATE_HOOKS[name] for name in WEIGHT_UPDATE_HOOKS if WEIGHT_UPDATE_HOOKS[name].is_on(values)]
