"""Feedback alignment (Lillicrap and others, 2016) and direct feedback alignment (Nokland, 2016): fixed random matrices carry
the error backward in the place of the layers' own weights."""

from adagp.core.method_options import MethodOptions
from adagp.core.methods import AcceleratorWork, Method, add_method
from adagp.core.registry import provide

EVERY_BATCH = "sites=all; first=allowed"
"""The published regime: all weights in all batches. `--ratio ladder` uses the methods in GP batches only."""


class FeedbackAlignment(MethodOptions, method="fa"):
    """Random matrices take the place of the weights in the backward pass."""


class DirectFeedbackAlignment(MethodOptions, method="dfa"):
    """The output's error reaches each layer by a random matrix."""


add_method(
    Method(
        "fa",
        "feedback alignment: random matrices in place of the weights in the backward pass",
        "adagp.papers.feedback_alignment.source:FeedbackAlignmentSource",
        schedule=EVERY_BATCH,
        typed=FeedbackAlignment,
        accelerator=AcceleratorWork("exact", input_gradients=True),  # its products have the sizes of backprop's
    )
)
add_method(
    Method(
        "dfa",
        "direct feedback alignment: the output's error reaches each layer by a random matrix",
        "adagp.papers.feedback_alignment.source:DirectFeedbackSource",
        schedule=EVERY_BATCH,
        typed=DirectFeedbackAlignment,
        accelerator=AcceleratorWork(
            "exact",
            cuts_chain=True,
            predictions="adagp.papers.feedback_alignment.hardware:projected_error",
            output_error=True,
        ),
    )
)
provide("experiment", "adagp.papers.feedback_alignment.experiments")
provide("published", __name__)
