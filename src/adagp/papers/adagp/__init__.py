"""ADA-GP (Janfaza, Mandal, Mahmud, Muzahid, MICRO 2023): one shared network predicts the weight gradient of every layer."""

from dataclasses import dataclass
from typing import Annotated

from adagp.core.method_options import LABEL_CLASSES, PredictorOptions, declare_option
from adagp.core.methods import AcceleratorWork, Method, add_method
from adagp.core.registry import provide

PAPER_MODELS = (
    *("resnet50", "resnet101", "resnet152", "inception_v4", "inception_v3", "vgg13", "vgg16", "vgg19"),
    *("densenet121", "densenet161", "densenet169", "densenet201", "mobilenet_v2"),
)
"""The thirteen CNNs of ADA-GP, in its order."""


@dataclass(frozen=True, kw_only=True)
class SharedPredictorOptions(PredictorOptions):
    """The options of methods that use ADA-GP's predictor."""

    predictor_parts: Annotated[
        int, declare_option("Train the predictor on 1/N of each layer's rows in a BP batch.", low=1, parameter="parts")
    ] = 1


class AdaGP(SharedPredictorOptions, method="adagp"):
    """ADA-GP: one network, shared by all layers, predicts their weight gradients."""


class Shuffled(SharedPredictorOptions, method="shuffled"):
    """A control: ADA-GP's predictor with its input shuffled."""


@dataclass(frozen=True, kw_only=True)
class PredictedLabels(SharedPredictorOptions, method="predicted_labels"):
    """ADA-GP's predictor, which also sees the labels."""

    label_classes: Annotated[int | None, LABEL_CLASSES] = None


_SHARED_PREDICTOR = AcceleratorWork(predictor=True, exchange="adagp.papers.adagp.hardware:summaries_exchange")

add_method(
    Method(
        "adagp",
        "ADA-GP: one shared predictor, phases by batches",
        "adagp.papers.adagp.source:PredictedSource",
        source="predicted",
        typed=AdaGP,
        accelerator=_SHARED_PREDICTOR,
        parallel=("data", "fsdp", "pipeline"),
    )
)
add_method(
    Method(
        "shuffled",
        "control: ADA-GP's predictor with its input shuffled",
        "adagp.papers.adagp.source:ShuffledSource",
        typed=Shuffled,
        accelerator=_SHARED_PREDICTOR,
    )
)
add_method(
    Method(
        "predicted_labels",
        "ADA-GP's predictor, which also sees the labels",
        "adagp.papers.adagp.source:LabelledSource",
        typed=PredictedLabels,
        accelerator=_SHARED_PREDICTOR,
    )
)
provide("design", "adagp.papers.adagp.hardware")
for _module in ("accuracy", "error", "training", "task", "synthesis", "accelerator", "timeline", "statement", "chip"):
    provide("experiment", f"adagp.papers.adagp.{_module}_experiments")
provide("experiment", "adagp.papers.adagp.hypotheses")
provide("published", __name__)
