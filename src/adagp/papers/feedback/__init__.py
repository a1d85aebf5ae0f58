"""feedback: each layer's output gradient is regressed on the error at the model's output."""

from dataclasses import replace

from adagp.core.methods import AcceleratorWork, Method, add_method, method_option
from adagp.core.registry import provide

_OPTIONS = (
    method_option(
        "features", int, 64, "Maximum number of features of the output error that feedback uses.", low=1, high=8192
    ),
    method_option("class_features", bool, False, "Also use the softmax of the outputs as features: as many again."),
    method_option("learn_every", int, 1, "Update feedback every N BP batches.", low=1),
    method_option("correct_every", int, 1, "Update feedback's bias correction every N BP batches.", low=1),
    method_option(
        "correction",
        float,
        0.3,
        "EMA rate of feedback's bias correction; 0: none.",
        low=0,
        high=1,
        allowed="0 (none) to 1",
    ),
)
_WORK = AcceleratorWork(
    "adagp.papers.feedback.hardware:feedback_gradient",
    predictions="adagp.papers.feedback.hardware:feedback_regression",
    output_error=True,
    variation="adagp.papers.feedback.hardware:feedback_turns",
)

add_method(
    Method(
        "feedback",
        "output gradients regressed on the output's error",
        "adagp.papers.feedback.source:FeedbackSource",
        schedule="1:1",
        options=_OPTIONS,
        accelerator=_WORK,
        parallel=("data", "fsdp", "pipeline"),
    )
)
add_method(
    Method(
        "feedback_replay",
        "the mean of feedback and the last true gradient",
        "adagp.papers.feedback.source:FeedbackReplaySource",
        schedule="1:1",
        options=_OPTIONS,
        accelerator=replace(_WORK, remembered=1),
    )
)
provide("experiment", "adagp.papers.feedback.experiments")
provide("published", __name__)
