"""adagp: train deep networks with predicted gradients, and measure what that is worth.

In your own training loop:

    trainer = adagp.attach(model, optimizer, method="feedback", length=adagp.Epochs(90, len(loader)))
    for epoch in range(90):
        for inputs, targets in loader:
            trainer.step(inputs, targets, loss_fn)

Start here
    attach, Epochs           returns a trainer for your model; the length of a run that has epochs
    validate                 which layers are predicted, and why the others are not
    EngineOptions            how batches are computed, checked and measured: precision, compilation, guard, ...
    Trainer                  what attach returns: step, batch, rehearse, state_dict, ...
    Batch, BatchResult       a batch in progress; what Trainer.step returns
    AdagpError, AdagpWarning the base class of all errors; a warning: training continues, but not as expected

Methods, with their options: attach(..., method=adagp.Feedback(features=32)); all by name: list(adagp.METHODS)
    Feedback, FeedbackReplay, AdaGP, PredictedLabels, Remap, RemapProgram, DNI, DNILabels, DNIDecoupled, TopK, Random, Zero,
    FeedbackAlignment, DirectFeedbackAlignment, Control
    Backprop, Skip, Momentum, Replay, Average, Noise, Shuffled: plain backprop and controls
    NamedMethod              a method of a plug-in or of your own; MethodName, MethodOptions: the types of built-in methods

Schedules: when batches are predicted
    parse_schedule           from text; Schedule is the base class
    Ladder, Rung, EpochAlternation, Adaptive, Pattern, BackpropOnly, WarmUp
    Plan, Phase, Step        which gradient each layer gets in a batch, and which batch it is

Your own
    Source, register_method  a gradient source and a method of it; BatchContext, LearningOptions, Option, AcceleratorWork
    FeedbackSource, PredictedSource, RemappedSource, SyntheticSource, TopKSource, MixedSource: sources of the methods above
    register_rule            a layer type
    Guard                    what rejects bad predictions
    WeightUpdateHook         what changes the weights after a step: DropBack

For details see `help(adagp.attach)` and so on, and `python -m adagp --help` for the command line. Names are imported on first
use, which keeps `import adagp` fast.
"""

from typing import TYPE_CHECKING

from adagp._version import __version__

if TYPE_CHECKING:
    from adagp.core.method_options import MethodName, MethodOptions, NamedMethod
    from adagp.core.methods import (
        METHODS,
        AcceleratorWork,
        Average,
        Backprop,
        Momentum,
        Noise,
        Replay,
        Skip,
        register_method,
    )
    from adagp.core.options import Option
    from adagp.core.plan import Epochs, Phase, Plan, Step
    from adagp.engine.attach import EngineOptions, attach
    from adagp.engine.batch import Batch, BatchResult
    from adagp.engine.extensions import WeightUpdateHook
    from adagp.engine.guard import Guard
    from adagp.engine.trainer import Trainer
    from adagp.engine.validate import validate
    from adagp.errors import AdagpError, AdagpWarning
    from adagp.layers.rules import register_rule
    from adagp.papers.adagp import AdaGP, PredictedLabels, Shuffled
    from adagp.papers.adagp.source import PredictedSource
    from adagp.papers.approximation import Random, TopK, Zero
    from adagp.papers.approximation.source import TopKSource
    from adagp.papers.control import Control
    from adagp.papers.dni import DNI, DNIDecoupled, DNILabels
    from adagp.papers.dni.source import SyntheticSource
    from adagp.papers.feedback import Feedback, FeedbackReplay
    from adagp.papers.feedback.source import FeedbackSource
    from adagp.papers.feedback_alignment import DirectFeedbackAlignment, FeedbackAlignment
    from adagp.papers.procrustes.dropback import DropBack
    from adagp.papers.remap import Remap, RemapProgram
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

    # Not at run time: help(adagp) would print every class in full.
    __all__ = [
        "DNI",
        "METHODS",
        "AcceleratorWork",
        "AdaGP",
        "AdagpError",
        "AdagpWarning",
        "Adaptive",
        "Average",
        "Backprop",
        "BackpropOnly",
        "Batch",
        "BatchContext",
        "BatchResult",
        "Control",
        "DNIDecoupled",
        "DNILabels",
        "DirectFeedbackAlignment",
        "DropBack",
        "EngineOptions",
        "EpochAlternation",
        "Epochs",
        "Feedback",
        "FeedbackAlignment",
        "FeedbackReplay",
        "FeedbackSource",
        "Guard",
        "Ladder",
        "LearningOptions",
        "MethodName",
        "MethodOptions",
        "MixedSource",
        "Momentum",
        "NamedMethod",
        "Noise",
        "Option",
        "Pattern",
        "Phase",
        "Plan",
        "PredictedLabels",
        "PredictedSource",
        "Random",
        "Remap",
        "RemapProgram",
        "RemappedSource",
        "Replay",
        "Rung",
        "Schedule",
        "Shuffled",
        "Skip",
        "Source",
        "Step",
        "SyntheticSource",
        "TopK",
        "TopKSource",
        "Trainer",
        "WarmUp",
        "WeightUpdateHook",
        "Zero",
        "__version__",
        "attach",
        "parse_schedule",
        "register_method",
        "register_rule",
        "validate",
    ]

_HOMES = {
    name: module
    for module, names in {
        "adagp.core.method_options": "MethodName MethodOptions NamedMethod",
        "adagp.core.methods": "METHODS AcceleratorWork Average Backprop Momentum Noise Replay Skip register_method",
        "adagp.core.options": "Option",
        "adagp.core.plan": "Epochs Phase Plan Step",
        "adagp.engine.attach": "EngineOptions attach",
        "adagp.engine.batch": "Batch BatchResult",
        "adagp.engine.guard": "Guard",
        "adagp.engine.trainer": "Trainer",
        "adagp.engine.validate": "validate",
        "adagp.engine.extensions": "WeightUpdateHook",
        "adagp.errors": "AdagpError AdagpWarning",
        "adagp.layers.rules": "register_rule",
        "adagp.papers.adagp": "AdaGP PredictedLabels Shuffled",
        "adagp.papers.adagp.source": "PredictedSource",
        "adagp.papers.approximation": "Random TopK Zero",
        "adagp.papers.approximation.source": "TopKSource",
        "adagp.papers.dni": "DNI DNIDecoupled DNILabels",
        "adagp.papers.dni.source": "SyntheticSource",
        "adagp.papers.control": "Control",
        "adagp.papers.feedback": "Feedback FeedbackReplay",
        "adagp.papers.feedback.source": "FeedbackSource",
        "adagp.papers.feedback_alignment": "DirectFeedbackAlignment FeedbackAlignment",
        "adagp.papers.procrustes.dropback": "DropBack",
        "adagp.papers.remap": "Remap RemapProgram",
        "adagp.papers.remap.source": "RemappedSource",
        "adagp.schedules": "Adaptive BackpropOnly EpochAlternation Ladder Pattern Rung Schedule WarmUp parse_schedule",
        "adagp.sources": "BatchContext LearningOptions Source",
        "adagp.sources.mixed": "MixedSource",
    }.items()
    for name in names.split()
}
"""The module of each public name."""

_RENAMED = {"Upkeep": "WeightUpdateHook"}
"""Names of earlier versions; using one warns."""


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])


if not TYPE_CHECKING:  # with a module-level __getattr__, type checkers accept any name

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
