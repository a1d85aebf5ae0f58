"""CAMEL (Zhang, Tambe, Cuevas, Wei, Brooks, HPCA 2024): a reversible branch next to a frozen backbone, in embedded DRAM."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from adagp.core.options import declared_options, option
from adagp.core.registry import provide
from adagp.models.registry import IMAGES, MODELS, ModelInfo

_option = partial(option, panel="Duplex model")


@dataclass(frozen=True)
class DuplexSettings:
    """The options of `--model duplex`."""

    backbone: Annotated[
        str, _option("Frozen part of --model duplex: a model name, torchvision:NAME, timm:NAME, or none.")
    ] = "resnet20"
    backbone_weights: Annotated[
        str | None,
        _option(
            "Weights of the backbone: a run's model.pt, or a state_dict of torchvision.",
            parameter="weights",
            unset="random",
        ),
    ] = None
    backbone_width: Annotated[float, _option("Multiplier of the backbone's channels.", above=0, high=1000)] = 1.0
    branch: Annotated[
        int, _option("Number of reversible blocks in the branch.", parameter="blocks", low=1, high=1000)
    ] = 6
    branch_channels: Annotated[
        int,
        _option(
            "Channels of each half of the branch. The default is adagp's choice; the paper gives none.",
            parameter="channels",
            low=1,
            high=10_000,
        ),
    ] = 16
    stream: Annotated[
        str,
        _option(
            "Arithmetic of the branch's activations: float, bfp (6 bits) or fixed (exactly invertible).",
            choices=("float", "bfp", "fixed"),
        ),
    ] = "float"
    recompute: Annotated[bool, _option("Recompute activations from outputs instead of storing them.")] = True
    read_faults: Annotated[
        float, _option("Fraction of the branch's values that are read from memory with an error.", low=0, high=1)
    ] = 0.0
    trained: Annotated[
        str,
        _option(
            "Parameters to train: branch; classifier (a new last layer on the backbone); all (also the backbone).",
            choices=("branch", "classifier", "all"),
        ),
    ] = "branch"


MODELS.add(
    "duplex",
    ModelInfo(
        "duplex",
        IMAGES,
        "a reversible branch of 6 blocks next to a frozen ResNet-20, as in CAMEL (Zhang et al. 2024)",
        source="adagp",
        builder="adagp.papers.camel.duplex:duplex",
        image=(3, 32, 32),
        smallest=2,
        classes=10,
        ready=True,
        options=tuple(declared_options(DuplexSettings).values()),
    ),
)
provide("system", "adagp.papers.camel.hardware")
provide("experiment", "adagp.papers.camel.experiments")
provide("published", __name__)
