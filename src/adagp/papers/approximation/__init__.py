"""Gradient approximation (Wang and Nelaturu, 2019): zero, random or top-k weight gradients on some layers and batches."""

from adagp.core.methods import AcceleratorWork, Method, add_method, method_option
from adagp.core.registry import provide

add_method(
    Method(
        "zero",
        "approximation: weight gradients of some layers are 0",
        "adagp.sources.controls:ZeroSource",
        schedule="approx:2",
        accelerator=AcceleratorWork(),
        parallel=("data", "fsdp", "pipeline"),
    )
)
add_method(
    Method(
        "random",
        "approximation: weight gradients of some layers are random",
        "adagp.papers.approximation.random_gradient:RandomSource",
        schedule="approx:2",
        accelerator=AcceleratorWork(),
        parallel=("data", "fsdp"),
    )
)
add_method(
    Method(
        "topk",
        "approximation: from the positions of largest output gradient",
        "adagp.papers.approximation.topk:TopKSource",
        schedule="approx:2",
        options=(
            method_option("topk", int, 1, "Number of positions that topk keeps.", low=1, parameter="k"),
            method_option(
                "published_scale",
                bool,
                False,
                "Divide topk's gradients by the batch size, as printed in the paper.",
                parameter="published",
            ),
        ),
        accelerator=AcceleratorWork("adagp.papers.approximation.hardware:top_one_gradient", input_gradients=True),
    )
)
provide("experiment", "adagp.papers.approximation.experiments")
provide("experiment", "adagp.papers.approximation.kernels")
provide("published", __name__)
