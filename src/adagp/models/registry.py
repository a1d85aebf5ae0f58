"""The models by name. No torch here: a builder is named by text and imported when it is called."""

from dataclasses import dataclass

from adagp.registry import Registry

IMAGES = "images"
"""The task of telling an image's class."""
DETECTION = "detection"
"""The task of finding the objects in an image."""


@dataclass(frozen=True)
class ModelInfo:
    """What is known of a model without building it.

    `builder` names a function as `package.module:function`; it is called with the keyword arguments it
    accepts out of those of its task (for images: `classes`, `image`, `width`, see `build_model`). `image` is
    the usual input as channels, height, width, and `smallest` the least height and width in pixels; both
    concern image models only.
    """

    name: str
    task: str
    description: str
    source: str
    builder: str
    image: tuple[int, int, int] | None = None
    smallest: int = 1


MODELS: Registry[ModelInfo] = Registry("model")

for _info in (
    ModelInfo(
        "digits_cnn",
        IMAGES,
        "three small convolutions with batch norm and a linear layer, for the embedded digits",
        source="adagp",
        builder="adagp.models.small:digits_cnn",
        image=(1, 8, 8),
        smallest=2,
    ),
    ModelInfo(
        "two_layer_cnn",
        IMAGES,
        "two 5x5 convolutions and three linear layers, of gradient approximation (Wang, Nelaturu 2019)",
        source="adagp",
        builder="adagp.models.small:two_layer_cnn",
        image=(3, 32, 32),
        smallest=2,
    ),
    ModelInfo(
        "yolov3",
        DETECTION,
        "YOLO-v3: Darknet-53, a neck and heads at three scales (Redmon, Farhadi 2018)",
        source="adagp",
        builder="adagp.models.yolo:yolov3",
        image=(3, 416, 416),
        smallest=32,
    ),
    ModelInfo(
        "yolov3_small",
        DETECTION,
        "the design of YOLO-v3 with a quarter of the channels and 5 residual blocks instead of 23",
        source="adagp",
        builder="adagp.models.yolo:yolov3_small",
        image=(3, 128, 128),
        smallest=32,
    ),
):
    MODELS.add(_info.name, _info)
