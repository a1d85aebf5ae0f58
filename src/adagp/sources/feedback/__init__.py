"""Gradients from the output's error: each site's output gradient is regressed on it, without a chain through the layers."""

from adagp.sources.feedback.source import FeedbackSource

__all__ = ["FeedbackSource"]
