"""Lecture 11, Hardware Accelerator for DNN Training (course slides).

Three products on one systolic array, the backward formulas of a transformer, and noise on weight gradients.
"""

from adagp.core.registry import provide

provide("experiment", "adagp.papers.lecture.experiments")
provide("experiment", "adagp.papers.lecture.noise_experiment")
provide("published", __name__)
