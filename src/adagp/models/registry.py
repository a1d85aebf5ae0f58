"""The models by name, and the names of tasks and special tokens. No torch here.

A builder is named by text and imported when it is called.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from adagp.core.options import Option, keyword_options
from adagp.core.registry import Registry

PAD, BEGIN, END = 0, 1, 2
"""Tokens: padding after short sentences, the mark before the first piece, and the mark after the last."""
BYTES = 256
"""The number of different bytes, which are the tokens of language modelling."""


IMAGES = "images"
"""Image classification."""
TRANSLATION = "translation"
"""Translation of sentences."""
DETECTION = "detection"
"""Object detection."""
LANGUAGE = "language"
"""Language modelling: predict the next byte of a text."""


@dataclass(frozen=True)
class ModelInfo:
    """The description of a model, available without building it.

    `builder` names a function as `package.module:function`. For image models it is called with `name`,
    `classes`, `image` and `width` (see `build_model`) on the meta device. `image` is the usual input as
    channels, height, width, and `smallest` the least height and width in pixels; both concern image models
    only. `classes` is the usual number of classes, if it is not that of ImageNet or of the task.

    `options` are the model's own, which are also options of `adagp train`; the builder gets them by their `parameter`. With
    `ready` the builder is not called on the meta device, and returns a model with its weights.
    """

    name: str
    task: str
    description: str
    source: str
    builder: str
    image: tuple[int, int, int] | None = None
    smallest: int = 1
    classes: int | None = None
    options: tuple[Option, ...] = ()
    ready: bool = False

    def keywords(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model's own options as keyword arguments of its builder; one that is not in `options` has its default."""
        return keyword_options(self.options, options)


def is_ours(info: ModelInfo) -> bool:
    """Return whether a model is built by adagp itself, not by a plug-in."""
    return info.builder.startswith("adagp.")


def _image_models() -> Iterator[ModelInfo]:
    def model(
        name: str,
        function: str,
        source: str,
        description: str,
        smallest: int = 1,
        pixels: int = 224,
        channels: int = 3,
        classes: int | None = None,
    ) -> ModelInfo:
        builder = f"adagp.models.{function}"
        return ModelInfo(name, IMAGES, description, source, builder, (channels, pixels, pixels), smallest, classes)

    yield model(
        "digits_cnn",
        "cnns:digits_cnn",
        "adagp",
        "three small convolutions with batch norm",
        pixels=8,
        channels=1,
        classes=10,
    )
    yield model(
        "two_layer_cnn",
        "cnns:two_layer_cnn",
        "adagp",
        "two convolutions with batch norm, three linear layers (Wang, Nelaturu 2019)",
        pixels=32,
        classes=10,
    )
    for name, channels, ending in (
        ("six_conv_vgg", "16 to 64", "in the style of VGG"),
        ("six_conv_vgg_gap", "16 to 64", "global average pooling: for large batches and learning rates"),
        ("eight_conv_vgg", "32 to 256", "in the style of VGG"),
    ):
        text = f"{name.partition('_')[0]} 3x3 convolutions of {channels} channels with batch norm, {ending}"
        yield model(name, "cnns:small_vgg", "adagp", text, pixels=32, classes=10)
    yield model(
        "small_vit",
        "transformer:small_vit",
        "adagp",
        "vision transformer of 4 layers and 128 features, patches of 4x4 (Dosovitskiy et al. 2020)",
        smallest=4,
        pixels=32,
        classes=10,
    )
    for depth in (14, 20):
        text = f"residual network of {depth} layers for CIFAR, shortcuts without parameters (He et al. 2015)"
        yield model(f"resnet{depth}", "cnns:cifar_resnet", "torchvision blocks", text, pixels=32, classes=10)
    for depth in (50, 101, 152):
        text = f"residual network of {depth} layers (He et al. 2015)"
        yield model(f"resnet{depth}", "cnns:resnet", "torchvision", text)
    for depth in (11, 13, 16, 19):
        for suffix, kind in (("", "plain"), ("_bn", "with batch norm")):
            text = f"VGG of {depth} layers, {kind} (Simonyan, Zisserman 2014)"
            yield model(f"vgg{depth}{suffix}", "cnns:vgg", "torchvision", text, smallest=32)
    for depth in (121, 161, 169, 201):
        text = f"densely connected network of {depth} layers (Huang et al. 2016)"
        yield model(f"densenet{depth}", "cnns:densenet", "torchvision", text, smallest=8)
    yield model(
        "mobilenet_v2", "cnns:mobilenet_v2", "torchvision", "inverted residuals, depthwise (Sandler et al. 2018)"
    )
    yield model(
        "inception_v3",
        "cnns:inception_v3",
        "torchvision",
        "Inception-V3 without auxiliary head (Szegedy et al. 2015)",
        smallest=7,
        pixels=299,
    )
    yield model(
        "inception_v4", "cnns:inception_v4", "timm", "Inception-V4 (Szegedy et al. 2016)", smallest=7, pixels=299
    )


TORCHVISION = (
    *(
        "alexnet",
        "convnext_tiny",
        "efficientnet_b0",
        "googlenet",
        "mnasnet1_0",
        "mobilenet_v3_large",
        "mobilenet_v3_small",
    ),
    *(
        "regnet_y_400mf",
        "resnet18",
        "resnet34",
        "resnext50_32x4d",
        "shufflenet_v2_x1_0",
        "squeezenet1_0",
        "squeezenet1_1",
    ),
    *("swin_s", "swin_t", "vit_b_16", "vit_b_32", "wide_resnet50_2"),
)
"""Models of torchvision that people name without the library; see `torchvision.models.list_models()` for all."""


def _of_a_library(name: str) -> str | None:
    return f"torchvision:{name}" if name in TORCHVISION else None


MODELS: Registry[ModelInfo] = Registry("model", extensible=True, suggest=_of_a_library)

for _info in _image_models():
    MODELS.add(_info.name, _info)

MODELS.add(
    "transformer",
    ModelInfo(
        "transformer",
        TRANSLATION,
        "3 encoder and 3 decoder layers (Vaswani et al. 2017), normalised before each block",
        source="adagp",
        builder="adagp.models.transformer:transformer",
    ),
)

MODELS.add(
    "decoder",
    ModelInfo(
        "decoder",
        LANGUAGE,
        "decoder-only Transformer: 4 causal layers of 128 features, normalised before each block",
        source="adagp",
        builder="adagp.models.transformer:decoder",
    ),
)

for _info in (
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
