"""adagp: train deep networks with predicted gradients, and know what that is worth.

The public names are imported on first use, so that `import adagp` and `adagp --help` cost nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from adagp._version import __version__

if TYPE_CHECKING:
    from adagp.engine.attach import attach
    from adagp.engine.guard import Guard
    from adagp.engine.trainer import Trainer
    from adagp.engine.validate import validate
    from adagp.errors import AdagpError
    from adagp.methods import METHODS, AcceleratorWork, register_method
    from adagp.options import Option
    from adagp.plan import Phase, Plan, Step
    from adagp.predictor.reorganize import register_rule
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
    from adagp.sources import (
        BatchContext,
        FeedbackSource,
        LearningOptions,
        MixedSource,
        PredictedSource,
        RemappedSource,
        Source,
        SyntheticSource,
        TopKSource,
    )
    from adagp.upkeep import DropBack, Upkeep

_HOMES = {
    "AcceleratorWork": "adagp.methods",
    "AdagpError": "adagp.errors",
    "Adaptive": "adagp.schedules",
    "BackpropOnly": "adagp.schedules",
    "DropBack": "adagp.upkeep",
    "EpochAlternation": "adagp.schedules",
    "FeedbackSource": "adagp.sources",
    "Guard": "adagp.engine.guard",
    "Ladder": "adagp.schedules",
    "LearningOptions": "adagp.sources",
    "METHODS": "adagp.methods",
    "MixedSource": "adagp.sources",
    "BatchContext": "adagp.sources",
    "Option": "adagp.options",
    "Pattern": "adagp.schedules",
    "Phase": "adagp.plan",
    "Plan": "adagp.plan",
    "PredictedSource": "adagp.sources",
    "RemappedSource": "adagp.sources",
    "Rung": "adagp.schedules",
    "Schedule": "adagp.schedules",
    "Source": "adagp.sources",
    "Step": "adagp.plan",
    "SyntheticSource": "adagp.sources",
    "TopKSource": "adagp.sources",
    "Trainer": "adagp.engine.trainer",
    "Upkeep": "adagp.upkeep",
    "WarmUp": "adagp.schedules",
    "attach": "adagp.engine.attach",
    "parse_schedule": "adagp.schedules",
    "register_method": "adagp.methods",
    "register_rule": "adagp.predictor.reorganize",
    "validate": "adagp.engine.validate",
}

__all__ = [
    "METHODS",
    "AcceleratorWork",
    "AdagpError",
    "Adaptive",
    "BackpropOnly",
    "BatchContext",
    "DropBack",
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
    "Upkeep",
    "WarmUp",
    "__version__",
    "attach",
    "parse_schedule",
    "register_method",
    "register_rule",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'adagp' has no attribute '{name}'")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
