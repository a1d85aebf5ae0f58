"""Where a weight gradient comes from, when it does not come from backpropagation."""

from adagp.sources.base import BatchContext, RunFacts, Source
from adagp.sources.build import build_source, default_source
from adagp.sources.constant import SkipSource, ZeroSource
from adagp.sources.mixed import MixedSource
from adagp.sources.pipeline import ErrorSource, PipelineSource
from adagp.sources.random import NoiseSource, RandomSource
from adagp.sources.remembered import AverageSource, ReplaySource
from adagp.sources.support.learned import LearnedSource
from adagp.sources.support.norms import RunningNorms
from adagp.sources.support.options import LearningOptions

__all__ = [
    "AverageSource",
    "BatchContext",
    "ErrorSource",
    "LearnedSource",
    "LearningOptions",
    "MixedSource",
    "NoiseSource",
    "PipelineSource",
    "RandomSource",
    "ReplaySource",
    "RunFacts",
    "RunningNorms",
    "SkipSource",
    "Source",
    "ZeroSource",
    "build_source",
    "default_source",
]
