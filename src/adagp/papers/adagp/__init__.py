"""ADA-GP (Janfaza, Mandal, Mahmud, Muzahid, MICRO 2023): one shared network predicts the weight gradient of every layer."""

from adagp.core.methods import LABEL_CLASSES, AcceleratorWork, Method, add_method, method_option, predictor_options
from adagp.core.registry import provide

PAPER_MODELS = (
    *("resnet50", "resnet101", "resnet152", "inception_v4", "inception_v3", "vgg13", "vgg16", "vgg19"),
    *("densenet121", "densenet161", "densenet169", "densenet201", "mobilenet_v2"),
)
"""The thirteen CNNs of ADA-GP, in its order."""

_PARTS = method_option(
    "predictor_parts",
    int,
    1,
    "Train the predictor on 1/N of each layer's rows in a BP batch.",
    low=1,
    parameter="parts",
)
_SHARED_PREDICTOR = AcceleratorWork(predictor=True)

add_method(
    Method(
        "adagp",
        "ADA-GP: one shared predictor, phases by batches",
        "adagp.papers.adagp.source:PredictedSource",
        source="predicted",
        options=(*predictor_options(), _PARTS),
        accelerator=_SHARED_PREDICTOR,
        parallel=("data", "fsdp", "pipeline"),
    )
)
add_method(
    Method(
        "shuffled",
        "control: ADA-GP's predictor with its input shuffled",
        "adagp.papers.adagp.source:ShuffledSource",
        options=(*predictor_options(), _PARTS),
        accelerator=_SHARED_PREDICTOR,
    )
)
add_method(
    Method(
        "predicted_labels",
        "ADA-GP's predictor, which also sees the labels",
        "adagp.papers.adagp.source:LabelledSource",
        options=(*predictor_options(), _PARTS, LABEL_CLASSES),
        accelerator=_SHARED_PREDICTOR,
    )
)
provide("design", "adagp.papers.adagp.hardware")
for _module in ("accuracy", "error", "training", "task", "synthesis", "accelerator"):
    provide("experiment", f"adagp.papers.adagp.{_module}_experiments")
provide("experiment", "adagp.papers.adagp.hypotheses")
provide("published", __name__)
