"""feedback: each layer's output gradient is regressed on the error at the model's output."""

from dataclasses import dataclass, replace
from typing import Annotated

from adagp.core.method_options import MethodOptions, declare_option
from adagp.core.methods import AcceleratorWork, Method, add_method
from adagp.core.registry import provide


@dataclass(frozen=True, kw_only=True)
class FeedbackOptions(MethodOptions):
    """The options of methods that regress output gradients on the error."""

    features: Annotated[
        int, declare_option("Maximum number of features of the output error that feedback uses.", low=1, high=8192)
    ] = 64
    class_features: Annotated[
        bool, declare_option("Also use the softmax of the outputs as features, which doubles their number.")
    ] = False
    learn_every: Annotated[int, declare_option("Update feedback every N BP batches.", low=1)] = 1
    correct_every: Annotated[int, declare_option("Update feedback's bias correction every N BP batches.", low=1)] = 1
    correction: Annotated[
        float,
        declare_option("EMA rate of feedback's bias correction; 0: none.", low=0, high=1, allowed="0 (none) to 1"),
    ] = 0.3
    memory_limit: Annotated[
        float,
        declare_option(
            "Average large feature maps so that feedback stores at most N times the weights' memory, or 64 MB if that is more.",
            low=0,
        ),
    ] = 2.0


class Feedback(FeedbackOptions, method="feedback"):
    """Each layer's output gradient is regressed on the error at the model's output."""


class FeedbackReplay(FeedbackOptions, method="feedback_replay"):
    """The mean of feedback and the last true gradient."""


_WORK = AcceleratorWork(
    "adagp.papers.feedback.hardware:feedback_gradient",
    predictions="adagp.papers.feedback.hardware:feedback_regression",
    output_error=True,
    variation="adagp.papers.feedback.hardware:feedback_turns",
    exchange="adagp.papers.feedback.hardware:feedback_exchange",
)

add_method(
    Method(
        "feedback",
        "output gradients regressed on the output's error",
        "adagp.papers.feedback.source:FeedbackSource",
        schedule="1:1",
        typed=Feedback,
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
        typed=FeedbackReplay,
        accelerator=replace(_WORK, remembered=1),
    )
)
provide("experiment", "adagp.papers.feedback.experiments")
provide("experiment", "adagp.papers.feedback.batch_size_experiment")
provide("published", __name__)
