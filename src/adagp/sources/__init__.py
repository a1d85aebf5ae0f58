"""Sources: what produces a weight gradient if backpropagation does not."""

from adagp.sources.base import BatchContext, RunFacts, RunningNorms, Source, build_source, default_source
from adagp.sources.controls import AverageSource, NoiseSource, ReplaySource, SkipSource, ZeroSource
from adagp.sources.learned import LearnedSource, LearningOptions
from adagp.sources.mixed import MixedSource
from adagp.sources.pipeline import ErrorSource, PipelineSource

__all__ = [
    "AverageSource",
    "BatchContext",
    "ErrorSource",
    "LearnedSource",
    "LearningOptions",
    "MixedSource",
    "NoiseSource",
    "PipelineSource",
    "ReplaySource",
    "RunFacts",
    "RunningNorms",
    "SkipSource",
    "Source",
    "ZeroSource",
    "build_source",
    "default_source",
]
