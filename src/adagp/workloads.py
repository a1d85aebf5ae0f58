"""Models as workloads of the accelerator, for the data sets they are trained on."""

from typing import TYPE_CHECKING

from adagp.hw import Workload
from adagp.models import MODELS

if TYPE_CHECKING:
    from adagp.data.registry import DatasetInfo

PAPER_MODELS = (
    "resnet50",
    "resnet101",
    "resnet152",
    "inception_v4",
    "inception_v3",
    "vgg13",
    "vgg16",
    "vgg19",
    "densenet121",
    "densenet161",
    "densenet169",
    "densenet201",
    "mobilenet_v2",
)
"""The thirteen CNNs of ADA-GP, in its order."""


def model_workload(
    name: str,
    dataset: str,
    shape: tuple[int, ...] | None = None,
    width: float = 1.0,
    *,
    classes: int | None = None,
    length: int | None = None,
) -> Workload:
    """Trace a model for a data set, or for images of another shape, other classes or sequences of another length.

    Where a set's images vary in size, the model's usual size counts, if it is larger.
    """
    info = dataset_info(dataset)
    image = (info.shape or None) if shape is None else shape
    if shape is None and info.size_varies and name in MODELS:
        usual = MODELS[name].image
        image = usual if usual is not None and image is not None and usual[1] > image[1] else image
    from adagp.trace import trace_model

    classes = info.classes if classes is None else classes
    return trace_model(name, classes=classes, image=image, width=width, task=info.task, length=length)


def run_workload(name: str, dataset: str, image_size: int | None, width: float, length: int | None = None) -> Workload:
    """Trace a model as a training run has it: its images have the run's size; None is the data set's own."""
    shape = dataset_info(dataset).shape
    image = (shape[0], image_size, image_size) if image_size else shape or None
    return model_workload(name, dataset, image, width, length=length)


def dataset_info(name: str) -> "DatasetInfo":
    """Return what is known of a data set. The data room needs numpy, so it is imported only when asked."""
    from adagp.data.registry import DATASETS

    return DATASETS[name]
