"""Tensor re-mapping (Mandal, Kishore, Robin, Daoo): one fixed-size prediction, repeated over each weight."""

from adagp.core.methods import AcceleratorWork, Method, add_method, method_option, predictor_options
from adagp.core.registry import provide

add_method(
    Method(
        "remap",
        "tensor re-mapping: a fixed-size prediction, phases by epochs",
        "adagp.papers.remap.source:RemappedSource",
        source="remapped",
        schedule="epochs:3:1",
        options=(
            *predictor_options("plateau"),
            method_option(
                "remap_outputs",
                int,
                10_000,
                "Number of values that remap predicts per layer.",
                low=1,
                high=1_000_000,
                parameter="outputs",
            ),
        ),
        accelerator=AcceleratorWork(predictor=True),
        parallel=("data",),
        plateau=(0.5, 3),
    )
)
provide("experiment", "adagp.papers.remap.experiments")
provide("published", __name__)
