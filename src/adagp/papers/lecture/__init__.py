"""Lecture 11, Hardware Accelerator for DNN Training (course slides).

Three products on one systolic array, and the backward formulas of a transformer.
"""

from adagp.core.registry import provide

provide("experiment", "adagp.papers.lecture.experiments")
provide("published", __name__)
