"""Which experiments a command line asks for."""

from adagp.errors import OptionError
from adagp.program.reproduce.experiment import EXPERIMENTS, Experiment
from adagp.program.reproduce.published import section_names

ALL = "all"


def all_experiments() -> list[Experiment]:
    """Return all experiments, in the order of the published figures; those without any come last."""
    order = {name: position for position, name in enumerate(section_names())}
    return sorted((EXPERIMENTS[name] for name in EXPERIMENTS), key=lambda one: order.get(one.name, len(order)))


def choose(names: list[str]) -> list[Experiment]:
    """Return the experiments that `names` ask for, in the catalogue's order; `all` stands for every one."""
    if not names:
        raise OptionError("name an experiment, several, or all; `adagp reproduce list` shows them.")
    chosen = {EXPERIMENTS[name].name for name in names if name != ALL}
    return [experiment for experiment in all_experiments() if experiment.name in chosen or ALL in names]
