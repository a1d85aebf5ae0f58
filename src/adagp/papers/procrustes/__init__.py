"""Procrustes (Yang et al., MICRO 2020): sparse training, in which only a share of the weights may move."""

from adagp.core.registry import provide

provide("weight update hook", "adagp.papers.procrustes.dropback")
provide("system", "adagp.papers.procrustes.accelerator")
provide("experiment", "adagp.papers.procrustes.experiments")
provide("published", __name__)
