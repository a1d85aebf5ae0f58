"""A lecture on training accelerators: three products on one systolic array, and the backward formulas of a transformer."""

from adagp.core.registry import provide

provide("experiment", "adagp.papers.lecture.experiments")
provide("published", __name__)
