"""CAMEL (Zhang, Tambe, Cuevas, Wei, Brooks, HPCA 2024): a reversible branch beside a frozen backbone, in embedded DRAM."""

from adagp.core.registry import provide

provide("system", "adagp.papers.camel.accelerator")
provide("experiment", "adagp.papers.camel.experiments")
provide("published", __name__)
