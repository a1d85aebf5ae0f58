"""Where a weight gradient comes from, when it does not come from backpropagation."""

from adagp.sources.base import SOURCES, Moment, Source
from adagp.sources.constant import SkipSource, ZeroSource
from adagp.sources.feedback import FeedbackSource
from adagp.sources.mixed import MixedSource, feedback_and_replay
from adagp.sources.predicted import PredictedSource
from adagp.sources.random import NoiseSource, RandomSource
from adagp.sources.remapped import RemappedSource
from adagp.sources.remembered import AverageSource, ReplaySource
from adagp.sources.support.learned import LearnedSource
from adagp.sources.support.norms import RunningNorms
from adagp.sources.support.options import LearningOptions
from adagp.sources.synthetic import SyntheticSource
from adagp.sources.topk import TopKSource
from adagp.sources.variants import LabelledSource, ShuffledSource

__all__ = [
    "SOURCES",
    "AverageSource",
    "FeedbackSource",
    "LabelledSource",
    "LearnedSource",
    "LearningOptions",
    "MixedSource",
    "Moment",
    "NoiseSource",
    "PredictedSource",
    "RandomSource",
    "RemappedSource",
    "ReplaySource",
    "RunningNorms",
    "ShuffledSource",
    "SkipSource",
    "Source",
    "SyntheticSource",
    "TopKSource",
    "ZeroSource",
    "feedback_and_replay",
]
