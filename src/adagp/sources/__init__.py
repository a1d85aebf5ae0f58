"""Where a weight gradient comes from, when it does not come from backpropagation."""

from adagp.sources.base import SOURCES, Source
from adagp.sources.learned import LearnedSource, LearningOptions
from adagp.sources.norms import RunningNorms
from adagp.sources.predicted import PredictedSource
from adagp.sources.remapped import RemappedSource

__all__ = [
    "SOURCES",
    "LearnedSource",
    "LearningOptions",
    "PredictedSource",
    "RemappedSource",
    "RunningNorms",
    "Source",
]
