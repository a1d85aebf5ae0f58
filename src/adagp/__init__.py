"""adagp: train deep networks with predicted gradients, and know what that is worth.

In a training loop of your own:

    trainer = adagp.attach(model, optimizer, method="feedback", epochs=90, batches_per_epoch=len(loader))
    for epoch in range(90):
        for inputs, targets in loader:
            trainer.step(inputs, targets, loss_fn)

attach, validate             begin; or only list which layers are predicted, and why the others are not
METHODS                      all methods by name, with their options: `list(adagp.METHODS)`
EngineOptions                how batches are computed, checked and measured: precision, compilation, guard, ...
Trainer                      what attach returns: step, batch, rehearse, state_dict, ...
Plan, Phase, Step            which gradient each layer gets in a batch, and which batch it is
parse_schedule, Ladder, ...  when batches are predicted: from text, or as objects
Source, register_method      a gradient source of your own, and a method of it
register_rule                a layer type of your own
Guard, WeightUpdateHook      what rejects bad predictions; what changes the weights after a step
AdagpError                   the base class of all errors

`python -m adagp --help` is the command line. The names are imported on first use, so that `import adagp` costs nothing.
"""

from typing import TYPE_CHECKING

from adagp._version import __version__

if TYPE_CHECKING:
    from adagp.core.methods import METHODS, AcceleratorWork, register_method
    from adagp.core.options import Option
    from adagp.core.plan import Phase, Plan, Step
    from adagp.engine.attach import EngineOptions, attach
    from adagp.engine.guard import Guard
    from adagp.engine.trainer import Trainer
    from adagp.engine.validate import validate
    from adagp.engine.weight_update import WeightUpdateHook
    from adagp.errors import AdagpError
    from adagp.layers.rules import register_rule
    from adagp.papers.adagp.source import PredictedSource
    from adagp.papers.approximation.topk import TopKSource
    from adagp.papers.dni.source import SyntheticSource
    from adagp.papers.feedback.source import FeedbackSource
    from adagp.papers.procrustes.dropback import DropBack
    from adagp.papers.remap.source import RemappedSource
    from adagp.schedules import (
        Adaptive,
        BackpropOnly,
        EpochAlternation,
        Ladder,
        Pattern,
        Rung,
        Schedule,
        WarmUp,
        parse_schedule,
    )
    from adagp.sources import BatchContext, LearningOptions, Source
    from adagp.sources.mixed import MixedSource

_HOMES = {
    "AcceleratorWork": "adagp.core.methods",
    "AdagpError": "adagp.errors",
    "Adaptive": "adagp.schedules",
    "BackpropOnly": "adagp.schedules",
    "DropBack": "adagp.papers.procrustes.dropback",
    "EngineOptions": "adagp.engine.attach",
    "EpochAlternation": "adagp.schedules",
    "FeedbackSource": "adagp.papers.feedback.source",
    "Guard": "adagp.engine.guard",
    "Ladder": "adagp.schedules",
    "LearningOptions": "adagp.sources",
    "METHODS": "adagp.core.methods",
    "MixedSource": "adagp.sources.mixed",
    "BatchContext": "adagp.sources",
    "Option": "adagp.core.options",
    "Pattern": "adagp.schedules",
    "Phase": "adagp.core.plan",
    "Plan": "adagp.core.plan",
    "PredictedSource": "adagp.papers.adagp.source",
    "RemappedSource": "adagp.papers.remap.source",
    "Rung": "adagp.schedules",
    "Schedule": "adagp.schedules",
    "Source": "adagp.sources",
    "Step": "adagp.core.plan",
    "SyntheticSource": "adagp.papers.dni.source",
    "TopKSource": "adagp.papers.approximation.topk",
    "Trainer": "adagp.engine.trainer",
    "WarmUp": "adagp.schedules",
    "WeightUpdateHook": "adagp.engine.weight_update",
    "attach": "adagp.engine.attach",
    "parse_schedule": "adagp.schedules",
    "register_method": "adagp.core.methods",
    "register_rule": "adagp.layers.rules",
    "validate": "adagp.engine.validate",
}

_RENAMED = {"Upkeep": "WeightUpdateHook"}
"""Names of earlier versions; using one warns."""

__all__ = [
    "METHODS",
    "AcceleratorWork",
    "AdagpError",
    "Adaptive",
    "BackpropOnly",
    "BatchContext",
    "DropBack",
    "EngineOptions",
    "EpochAlternation",
    "FeedbackSource",
    "Guard",
    "Ladder",
    "LearningOptions",
    "MixedSource",
    "Option",
    "Pattern",
    "Phase",
    "Plan",
    "PredictedSource",
    "RemappedSource",
    "Rung",
    "Schedule",
    "Source",
    "Step",
    "SyntheticSource",
    "TopKSource",
    "Trainer",
    "WarmUp",
    "WeightUpdateHook",
    "__version__",
    "attach",
    "parse_schedule",
    "register_method",
    "register_rule",
    "validate",
]


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:  # to a type checker it would mean that every name is there

    def __getattr__(name: str) -> object:
        if name in _RENAMED:
            import warnings

            warnings.warn(f"adagp.{name} is now adagp.{_RENAMED[name]}.", DeprecationWarning, stacklevel=2)
            return __getattr__(_RENAMED[name])
        if name not in _HOMES:
            raise AttributeError(f"module 'adagp' has no attribute '{name}'")
        from importlib import import_module

        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
