"""All experiments by name, in the order of the published figures."""

from adagp.errors import OptionError
from adagp.registry import Registry
from adagp.reproduce import (
    accelerator,
    adagp_tasks,
    adagp_training,
    approximation,
    camel,
    devices,
    fast,
    fast_hardware,
    feedback_worth,
    hypotheses,
    kernels,
    pipelines,
    procrustes,
    ratios_and_rivals,
    remapping,
)
from adagp.reproduce.experiment import Experiment
from adagp.reproduce.published import section_names

ALL = "all"
EXPERIMENTS: Registry[Experiment] = Registry("experiment")
_ROOMS = (
    accelerator,
    adagp_tasks,
    adagp_training,
    approximation,
    camel,
    devices,
    fast,
    fast_hardware,
    feedback_worth,
    hypotheses,
    kernels,
    ratios_and_rivals,
    pipelines,
    procrustes,
    remapping,
)
_KNOWN = {experiment.name: experiment for room in _ROOMS for experiment in room.EXPERIMENTS}
for _name in section_names():
    if _name in _KNOWN:
        EXPERIMENTS.add(_name, _KNOWN[_name])


def choose(names: list[str]) -> list[Experiment]:
    """Return the experiments that `names` ask for, in the catalogue's order; `all` stands for every one."""
    if not names:
        raise OptionError("name an experiment, several, or all; `adagp reproduce list` shows them.")
    chosen = {EXPERIMENTS[name].name for name in names if name != ALL}
    return [EXPERIMENTS[name] for name in EXPERIMENTS if name in chosen or ALL in names]
