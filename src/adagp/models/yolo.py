"""YOLO-v3 (Redmon and Farhadi 2018, arXiv 1804.02767): a Darknet backbone, a neck and three heads.

For images `(N, 3, height, width)` a model returns three tensors, finest grid first: strides of 8, 16 and 32 pixels. Each is
`(N, 3, rows, columns, 5 + classes)`: for each of the scale's three anchors and each cell the raw numbers tx, ty, tw, th,
the logit of objectness, and a logit for each class. `adagp.program.tasks.yolo` turns them into boxes.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

ANCHORS_A_SCALE = 3
DARKNET53 = ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4))
SMALL = ((16, 0), (32, 1), (64, 1), (128, 2), (256, 1))
_RARE = 0.01


def yolov3(classes: int, width: float = 1.0) -> nn.Module:
    """Return YOLO-v3 as published: Darknet-53 with 61,949,149 parameters in all for 80 classes."""
    return YoloV3(classes, 32, DARKNET53, width)


def yolov3_small(classes: int, width: float = 1.0) -> nn.Module:
    """Return the same design with a quarter of the channels and 5 residual blocks instead of 23, for small machines."""
    return YoloV3(classes, 8, SMALL, width)


class YoloV3(nn.Module):
    """The detector over a backbone of five `stages`, each (channels, residual blocks) at half the size of the one before."""

    def __init__(self, classes: int, stem: int, stages: Sequence[tuple[int, int]], width: float = 1.0) -> None:
        super().__init__()
        stages = [(even(channels, width), blocks) for channels, blocks in stages]
        self.backbone = Darknet(even(stem, width), stages)
        fine, middle, coarse = (channels for channels, _ in stages[2:])
        self.coarse = Neck(coarse, coarse // 2)
        self.to_middle = unit(coarse // 2, middle // 2, 1)
        self.middle = Neck(middle // 2 + middle, middle // 2)
        self.to_fine = unit(middle // 2, fine // 2, 1)
        self.fine = Neck(fine // 2 + fine, fine // 2)
        self.heads = nn.ModuleList(Head(channels // 2, classes) for channels in (fine, middle, coarse))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the raw outputs at strides 8, 16 and 32."""
        fine, middle, coarse = self.backbone(images)
        coarse = self.coarse(coarse)
        middle = self.middle(torch.cat([interpolate(self.to_middle(coarse), scale_factor=2.0), middle], 1))
        fine = self.fine(torch.cat([interpolate(self.to_fine(middle), scale_factor=2.0), fine], 1))
        return tuple(head(features) for head, features in zip(self.heads, (fine, middle, coarse), strict=True))


class Darknet(nn.Module):
    """Convolutions of stride 2, each followed by residual blocks; returns the features of the last three stages."""

    def __init__(self, stem: int, stages: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.stem = unit(3, stem, 3)
        inputs, built = stem, []
        for channels, blocks in stages:
            built.append(nn.Sequential(unit(inputs, channels, 3, 2), *(Residual(channels) for _ in range(blocks))))
            inputs = channels
        self.stages = nn.ModuleList(built)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the features at strides 8, 16 and 32."""
        features, scales = self.stem(images), []
        for stage in self.stages:
            features = stage(features)
            scales.append(features)
        return scales[-3:]


class Residual(nn.Module):
    """A 1x1 convolution to half the channels and a 3x3 back, added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(unit(channels, channels // 2, 1), unit(channels // 2, channels, 3))

    def forward(self, features: Tensor) -> Tensor:
        """Return the input plus the output of the two convolutions."""
        added: Tensor = features + self.body(features)
        return added


class Neck(nn.Sequential):
    """Five convolutions, alternately 1x1 and 3x3, that end with `channels` channels."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__(
            unit(inputs, channels, 1),
            unit(channels, channels * 2, 3),
            unit(channels * 2, channels, 1),
            unit(channels, channels * 2, 3),
            unit(channels * 2, channels, 1),
        )


class Head(nn.Module):
    """A 3x3 convolution and a 1x1 convolution to the outputs of one scale."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.features = unit(channels, channels * 2, 3)
        self.answers = Answers(channels * 2, ANCHORS_A_SCALE * (5 + classes), 1)

    def forward(self, features: Tensor) -> Tensor:
        """Return `(N, anchors, rows, columns, 5 + classes)`."""
        outputs: Tensor = self.answers(self.features(features))
        count, _, rows, columns = outputs.shape
        return outputs.view(count, ANCHORS_A_SCALE, -1, rows, columns).permute(0, 1, 3, 4, 2)


class Answers(nn.Conv2d):
    """The last convolution of a head, whose objectness bias starts at a probability of 1 in 100.

    Nearly all cells are empty; starting at one half would let them dominate the first epochs.
    """

    def reset_parameters(self) -> None:
        """Draw the weights as torch does, and set the bias of objectness."""
        super().reset_parameters()
        assert self.bias is not None
        with torch.no_grad():
            self.bias.view(ANCHORS_A_SCALE, -1)[:, 4] = -math.log((1 - _RARE) / _RARE)


def even(channels: int, width: float) -> int:
    """Return `channels` times `width`, rounded to an even number, since blocks use half of it."""
    return max(1, round(channels * width / 2)) * 2


def unit(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return Darknet's unit: a convolution, batch norm and a leaky ReLU with slope 0.1."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.LeakyReLU(0.1, inplace=True),
    )
