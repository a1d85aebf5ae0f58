"""What the shell offers at the tab key: names of models, data sets, methods and the like, and the choices of options.

`adagp --install-completion` sets it up. Files are left to the shell.
"""

from collections.abc import Callable, Iterable

from adagp.core.methods import METHODS
from adagp.core.options import Option
from adagp.hw.settings import PRESETS
from adagp.hw.simulate import DESIGNS
from adagp.models.registry import MODELS
from adagp.program.loggers import LOGGERS

Complete = Callable[[str], list[str]]


def offer(names: Iterable[str] | Callable[[], Iterable[str]]) -> Complete:
    """Return a function from the beginning of a word to those of `names` that go on from there.

    A word may be a list: after a comma the next name begins.
    """

    def complete(incomplete: str) -> list[str]:
        before, comma, word = incomplete.rpartition(",")
        known = names() if callable(names) else names
        return [f"{before}{comma}{name}" for name in known if name.startswith(word)]

    return complete


def datasets() -> Iterable[str]:
    """Return the names of the data sets; where they are listed needs numpy, so it is imported when asked."""
    from adagp.data.registry import DATASETS

    return DATASETS


def experiments() -> Iterable[str]:
    """Return what can be reproduced."""
    from adagp.program.reproduce.experiment import all_experiments

    return ["list", "all", *(experiment.name for experiment in all_experiments())]


NAMES: dict[str, Iterable[str] | Callable[[], Iterable[str]]] = {
    "dataset": datasets,
    "datasets": datasets,
    "design": DESIGNS,
    "designs": DESIGNS,
    "log": LOGGERS,
    "method": METHODS,
    "methods": METHODS,
    "model": MODELS,
    "models": MODELS,
    "preset": PRESETS,
}
"""Names by the option that takes them."""


def completion_of(option: Option) -> Complete | None:
    """Return what completes the values of an option, if there is anything to offer."""
    if option.choices is not None:
        return offer(option.choices)
    return offer(NAMES[option.name]) if option.name in NAMES else None
