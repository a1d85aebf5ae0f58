"""The duplex model of CAMEL: a small reversible branch that is trained next to a frozen, pretrained backbone.

The backbone runs forward only. Its stages' outputs are tapped, pooled to the size of the branch and given to the branch's
blocks. The branch has no normalisation. Where the published text leaves it open, the shape of the branch is our choice: a
stem (pooling to 8x8, a 1x1 convolution), blocks whose functions are two 3x3 convolutions with ReLU between them, of which the
last starts at zero, taps brought to the branch's channels by a 1x1 convolution and added to the input of F1, and a head of
pooling and one linear layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagp.errors import ModelError, OptionError, unknown_name
from adagp.models.build import build_model, find_in_zoo, materialise
from adagp.models.registry import IMAGES, MODELS
from adagp.papers.camel.reversible import ReversibleBlock, ReversibleChain
from adagp.papers.camel.streams import ReadFaults
from adagp.program.train.checkpoint import load_weights, read_weights

SIZE = 8
"""Height and width of the branch's maps, or those of the image if they are smaller."""
MOST_TAPS = 4
TRAINED = ("branch", "classifier", "all")
NO_BACKBONE = "none"


@dataclass(frozen=True)
class DuplexOptions:
    """How a duplex model is built.

    `backbone` names another model, of which `weights` is a file with its state_dict (a run's `model.pt`, or torchvision's);
    `none` leaves it out. `trained` selects what learns: the `branch`; `classifier`: no branch, a new last layer on the frozen
    backbone; `all`: the backbone too, with a new last layer and no branch.
    """

    backbone: str = "resnet20"
    weights: str | None = None
    backbone_width: float = 1.0
    blocks: int = 6
    channels: int = 16
    stream: str = "float"
    recompute: bool = True
    read_faults: float = 0.0
    trained: str = "branch"


class TappedInput(nn.Module):
    """F1: two convolutions of the stream's half plus the tap."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = convolutions(channels)

    def forward(self, values: Tensor, tap: Tensor | None = None) -> Tensor:
        """Return what is added to the other half."""
        result: Tensor = self.layers(values if tap is None else values + tap)
        return result


class ZeroConv2d(nn.Conv2d):
    """A convolution whose weight starts at zero."""

    def reset_parameters(self) -> None:
        """Set weight and bias to zero."""
        nn.init.zeros_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def convolutions(channels: int) -> nn.Sequential:
    """Return two 3x3 convolutions with ReLU between; the last starts at zero, so that a block starts as the identity."""
    last = ZeroConv2d(channels, channels, 3, padding=1)
    return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), last)


class Branch(nn.Module):
    """The part that learns: stem, taps, reversible blocks, head."""

    def __init__(self, classes: int, image: Sequence[int], tapped: Sequence[int], options: DuplexOptions) -> None:
        super().__init__()
        channels = options.channels
        self.size = (min(SIZE, image[1]), min(SIZE, image[2]))
        self.stem = nn.Conv2d(image[0], 2 * channels, 1)
        self.taps = nn.ModuleList(nn.Conv2d(count, channels, 1) for count in tapped)
        blocks = [ReversibleBlock(TappedInput(channels), convolutions(channels)) for _ in range(options.blocks)]
        spread = [
            block * len(tapped) // options.blocks for block in range(options.blocks)
        ]  # early blocks, early stages
        self.chain = ReversibleChain(
            blocks,
            stream=options.stream,
            recompute=options.recompute,
            faults=ReadFaults(options.read_faults),
            block_taps=spread if tapped else None,
        )
        self.head = nn.Linear(2 * channels, classes)

    def forward(self, images: Tensor, tapped: Sequence[Tensor]) -> Tensor:
        """Return the scores of the classes."""
        first, second = self.stem(F.adaptive_avg_pool2d(images, self.size)).chunk(2, dim=1)
        taps = [
            layer(F.adaptive_avg_pool2d(values, self.size)) for layer, values in zip(self.taps, tapped, strict=True)
        ]
        halves = self.chain(first.contiguous(), second.contiguous(), *taps)
        scores: Tensor = self.head(torch.cat(halves, dim=1).mean((2, 3)))
        return scores


class DuplexModel(nn.Module):
    """A frozen backbone, always in evaluation mode, and a branch next to it."""

    def __init__(
        self, backbone: nn.Module | None, classes: int, image: tuple[int, ...], options: DuplexOptions
    ) -> None:
        super().__init__()
        self.backbone = backbone
        stages = [] if backbone is None else find_stages(backbone, image)
        self.stages = [name for name, _ in stages]
        self.branch = Branch(classes, image, [count for _, count in stages], options)
        if backbone is not None:
            backbone.requires_grad_(False)

    def train(self, mode: bool = True) -> "DuplexModel":
        """Set the mode of the branch; the backbone stays in evaluation mode, so that its running statistics stay too."""
        super().train(mode)
        if self.backbone is not None:
            self.backbone.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes."""
        tapped = [] if self.backbone is None else outputs_of(self.backbone, self.stages, images)
        scores: Tensor = self.branch(images, tapped)
        return scores


class TunedModel(nn.Module):
    """A backbone with a new last layer, for the two controls: the backbone is frozen, or all of it is trained."""

    def __init__(self, backbone: nn.Module, classes: int, image: tuple[int, ...], *, frozen: bool) -> None:
        super().__init__()
        self.backbone, self.frozen = backbone, frozen
        self.stage, channels = find_stages(backbone, image)[-1]
        self.head = nn.Linear(channels, classes)
        if frozen:
            backbone.requires_grad_(False)

    def train(self, mode: bool = True) -> "TunedModel":
        """Set the mode; a frozen backbone stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes."""
        (features,) = outputs_of(self.backbone, [self.stage], images, frozen=self.frozen)
        scores: Tensor = self.head(features.mean((2, 3)))
        return scores


def outputs_of(model: nn.Module, names: Sequence[str], images: Tensor, *, frozen: bool = True) -> list[Tensor]:
    """Run a model and return the last output of each layer that is named, without a graph if it is frozen."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            outputs[name] = output

        return hook

    handles = [model.get_submodule(name).register_forward_hook(keep(name)) for name in names]
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    return [outputs[name] for name in names]


def find_stages(backbone: nn.Module, image: tuple[int, ...]) -> list[tuple[str, int]]:
    """Return the last layers of the last stages, at most four, with their channels. A stage is a run of layers whose outputs
    have one height and width above 1; found by a trial forward pass."""
    stages: dict[tuple[int, ...], tuple[str, int]] = {}
    for name, shape in _output_shapes(backbone, image):
        if len(shape) == 4 and shape[-1] > 1:
            stages[tuple(shape[2:])] = (name, shape[1])
    if not stages:
        raise ModelError("the backbone has no layer whose output is a map: there is nothing to tap.")
    return list(stages.values())[-MOST_TAPS:]


def _output_shapes(backbone: nn.Module, image: tuple[int, ...]) -> list[tuple[str, torch.Size]]:
    """Return the layers in the order of their calls, with the shapes of their outputs."""
    seen: list[tuple[str, torch.Size]] = []
    handles = [
        module.register_forward_hook(lambda _, __, output, name=name: seen.append((name, output.shape)))
        for name, module in backbone.named_modules()
        if name and not any(True for _ in module.children())
    ]
    device = next(backbone.parameters()).device
    modes = {module: module.training for module in backbone.modules()}
    try:
        with torch.no_grad():
            backbone.eval()(torch.zeros(1, *image, device=device))
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
    return seen


def duplex(name: str, classes: int, image: tuple[int, ...], width: float, **options: Any) -> nn.Module:
    """Return a duplex model with the `DuplexOptions` in `options`: the builder in the table of models."""
    chosen = DuplexOptions(**options)
    if torch.get_default_device().type == "meta":  # no values: no weights to read, no arithmetic to emulate
        chosen = replace(chosen, weights=None, stream="float", read_faults=0.0)
    return build_duplex(classes, image, chosen, width)


def build_duplex(classes: int, image: tuple[int, ...], options: DuplexOptions, width: float = 1.0) -> nn.Module:
    """Return a duplex model, or a control, with the weights of its backbone; `width` scales the branch's channels."""
    check_options(options)
    state = None if options.weights is None else read_weights(Path(options.weights))
    before = classes if state is None else last_rows(state, classes)
    chosen = replace(options, channels=scaled_channels(options.channels, width))
    with torch.device("meta"):
        network = duplex_network(classes, image, chosen, before)
    network = materialise(network)
    if state is not None:
        backbone = network.get_submodule("backbone")
        load_weights(
            backbone, state, f"the backbone '{options.backbone}' of width {options.backbone_width:g}", options.weights
        )
    return network


def duplex_network(classes: int, image: tuple[int, ...], options: DuplexOptions, before: int) -> nn.Module:
    """Return the model with weights as torch makes them; its backbone is for `before` classes."""
    backbone = None
    if options.backbone != NO_BACKBONE:
        backbone = build_model(options.backbone, classes=before, image=image, width=options.backbone_width)
    if options.trained == "branch" or backbone is None:
        return DuplexModel(backbone, classes, image, options)
    return TunedModel(backbone, classes, image, frozen=options.trained == "classifier")


def check_options(options: DuplexOptions) -> None:
    """Raise if the backbone is not an image model, or if options need one and there is none."""
    name = options.backbone
    if options.trained not in TRAINED:
        raise unknown_name("trained part", options.trained, TRAINED)
    if name == NO_BACKBONE:
        if options.trained != "branch" or options.weights is not None:
            raise OptionError(
                "with --backbone none only the branch is left and trained: leave out --backbone-weights and --trained."
            )
        return
    known = [model for model in MODELS if MODELS[model].task == IMAGES and model != "duplex"]
    if name not in known and find_in_zoo(name) is None:
        raise unknown_name("backbone", name, [*known, NO_BACKBONE])


def scaled_channels(channels: int, width: float) -> int:
    """Return the branch's channels at a width."""
    scaled = channels * width
    if scaled != int(scaled) or scaled < 1:
        raise OptionError(f"width {width:g} leaves fractions of the branch's {channels} channels.")
    return int(scaled)


def last_rows(state: dict[str, Tensor], otherwise: int) -> int:
    """Return for how many classes a backbone was trained: the rows of its last matrix."""
    rows = [tensor.shape[0] for tensor in state.values() if tensor.dim() == 2]
    return rows[-1] if rows else otherwise
