"""Gradient approximation (Wang and Nelaturu, 2019): zero, random or top-k weight gradients on some layers and batches."""

from dataclasses import dataclass
from typing import Annotated

from adagp.core.method_options import MethodOptions, declare_option
from adagp.core.methods import AcceleratorWork, Method, add_method
from adagp.core.registry import provide


class Zero(MethodOptions, method="zero"):
    """Weight gradients of some layers are 0."""


class Random(MethodOptions, method="random"):
    """Weight gradients of some layers are random."""


@dataclass(frozen=True, kw_only=True)
class TopK(MethodOptions, method="topk"):
    """Weight gradients of some layers, from the positions of largest output gradient."""

    topk: Annotated[int, declare_option("Number of positions that topk keeps.", low=1, parameter="k")] = 1
    published_scale: Annotated[
        bool,
        declare_option("Divide topk's gradients by the batch size, as printed in the paper.", parameter="published"),
    ] = False


add_method(
    Method(
        "zero",
        "approximation: weight gradients of some layers are 0",
        "adagp.sources.controls:ZeroSource",
        typed=Zero,
        schedule="approx:2",
        accelerator=AcceleratorWork(exchange="none"),
        parallel=("data", "fsdp", "pipeline"),
    )
)
add_method(
    Method(
        "random",
        "approximation: weight gradients of some layers are random",
        "adagp.papers.approximation.source:RandomSource",
        typed=Random,
        schedule="approx:2",
        accelerator=AcceleratorWork(exchange="none"),
        parallel=("data", "fsdp"),
    )
)
add_method(
    Method(
        "topk",
        "approximation: from the positions of largest output gradient",
        "adagp.papers.approximation.source:TopKSource",
        schedule="approx:2",
        typed=TopK,
        accelerator=AcceleratorWork("adagp.papers.approximation.hardware:top_one_gradient", input_gradients=True),
    )
)
provide("experiment", "adagp.papers.approximation.experiments")
provide("experiment", "adagp.papers.approximation.kernels")
provide("published", __name__)
