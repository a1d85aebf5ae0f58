"""Where a weight gradient comes from, when it does not come from backpropagation."""

from adagp.sources.base import BatchContext, RunFacts, Source
from adagp.sources.build import build_source, default_source
from adagp.sources.constant import SkipSource, ZeroSource
from adagp.sources.feedback import FeedbackSource
from adagp.sources.mixed import FeedbackReplaySource, MixedSource
from adagp.sources.predicted import PredictedSource
from adagp.sources.random import NoiseSource, RandomSource
from adagp.sources.remapped import RemappedSource
from adagp.sources.remembered import AverageSource, ReplaySource
from adagp.sources.support.learned import LearnedSource
from adagp.sources.support.norms import RunningNorms
from adagp.sources.support.options import LearningOptions
from adagp.sources.synthetic import LabelledSyntheticSource, SyntheticSource
from adagp.sources.topk import TopKSource
from adagp.sources.variants import LabelledSource, ShuffledSource

__all__ = [
    "AverageSource",
    "BatchContext",
    "FeedbackReplaySource",
    "FeedbackSource",
    "LabelledSource",
    "LabelledSyntheticSource",
    "LearnedSource",
    "LearningOptions",
    "MixedSource",
    "NoiseSource",
    "PredictedSource",
    "RandomSource",
    "RemappedSource",
    "ReplaySource",
    "RunFacts",
    "RunningNorms",
    "ShuffledSource",
    "SkipSource",
    "Source",
    "SyntheticSource",
    "TopKSource",
    "ZeroSource",
    "build_source",
    "default_source",
]
