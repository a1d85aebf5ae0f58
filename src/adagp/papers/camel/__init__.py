"""CAMEL (Zhang, Tambe, Cuevas, Wei, Brooks, HPCA 2024): a reversible branch beside a frozen backbone, in embedded DRAM."""

from functools import partial

from adagp.core.options import Option
from adagp.core.registry import provide
from adagp.models.registry import IMAGES, MODELS, ModelInfo

_option = partial(Option, panel="Duplex model")

MODELS.add(
    "duplex",
    ModelInfo(
        "duplex",
        IMAGES,
        "a reversible branch of 6 blocks beside a frozen ResNet-20, as in CAMEL (Zhang et al. 2024)",
        source="adagp",
        builder="adagp.papers.camel.duplex:duplex",
        image=(3, 32, 32),
        smallest=2,
        classes=10,
        ready=True,
        options=(
            _option(
                "backbone",
                str,
                "resnet20",
                "Frozen part of --model duplex: a model name, torchvision:NAME, timm:NAME, or none.",
            ),
            _option(
                "backbone_weights",
                str,
                None,
                "Weights of the backbone: a run's model.pt, or a state_dict of torchvision.",
                parameter="weights",
                optional=True,
                unset="random",
            ),
            _option("backbone_width", float, 1.0, "Multiplier of the backbone's channels.", above=0, high=1000),
            _option(
                "branch", int, 6, "Number of reversible blocks in the branch.", parameter="blocks", low=1, high=1000
            ),
            _option(
                "branch_channels",
                int,
                16,
                "Channels of each half of the branch. The default is our choice; the paper gives none.",
                parameter="channels",
                low=1,
                high=10_000,
            ),
            _option(
                "stream",
                str,
                "float",
                "Arithmetic of the branch's activations: float, bfp (6 bits) or fixed (exactly invertible).",
                choices=("float", "bfp", "fixed"),
            ),
            _option("recompute", bool, True, "Recompute activations from outputs instead of storing them."),
            _option(
                "read_faults",
                float,
                0.0,
                "Share of the branch's values that are read from memory with an error.",
                low=0,
                high=1,
            ),
            _option(
                "trained",
                str,
                "branch",
                "Parameters to train: branch; classifier (a new last layer on the backbone); all (also the backbone).",
                choices=("branch", "classifier", "all"),
            ),
        ),
    ),
)
provide("system", "adagp.papers.camel.hardware")
provide("experiment", "adagp.papers.camel.experiments")
provide("published", __name__)
