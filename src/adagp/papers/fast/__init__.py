"""FAST (Zhang, McDanel, Kung, HPCA 2022): training in block floating point whose precision follows the run."""

from adagp.core.registry import provide

provide("precision", "adagp.papers.fast.precision")
provide("design", "adagp.papers.fast.hardware")
provide("experiment", "adagp.papers.fast.experiments")
provide("published", __name__)
provide("number format", "adagp.papers.fast.rtl")
