"""A model: an image is cut into patches, which two kinds of linear layers mix (after Tolstikhin et al. 2021).

adagp train --plugin examples.plugins.patch_mixer --model patch_mixer --lr 0.05
"""

from torch import Tensor, nn

from adagp.models import IMAGES, MODELS, ModelInfo

PATCH = 2
"""Height and width of a patch in pixels."""


class Mixer(nn.Module):
    """One block: mix over the patches, then over the channels, each around a shortcut."""

    def __init__(self, patches: int, channels: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.over_patches, self.over_channels = nn.Linear(patches, patches), nn.Linear(channels, channels)

    def forward(self, value: Tensor) -> Tensor:
        """Return `(samples, patches, channels)` mixed."""
        mixed = self.over_patches(self.first_norm(value).transpose(1, 2)).transpose(1, 2)
        value = value + nn.functional.gelu(mixed)
        return value + nn.functional.gelu(self.over_channels(self.second_norm(value)))


class PatchMixer(nn.Module):
    """Patches, a few blocks, the mean over the patches, and a classifier."""

    def __init__(self, classes: int, image: tuple[int, int, int], channels: int, blocks: int = 2) -> None:
        super().__init__()
        patches = (image[1] // PATCH) * (image[2] // PATCH)
        self.patches = nn.Conv2d(image[0], channels, PATCH, stride=PATCH)
        self.blocks = nn.Sequential(*(Mixer(patches, channels) for _ in range(blocks)))
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes."""
        value = self.patches(images).flatten(2).transpose(1, 2)
        return self.head(self.blocks(value).mean(1))  # type: ignore[no-any-return]


def patch_mixer(name: str, classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return the model; `width` scales its 64 channels."""
    return PatchMixer(classes, image, max(1, round(64 * width)))


MODELS.add(
    "patch_mixer",
    ModelInfo(
        "patch_mixer",
        IMAGES,
        "two mixer blocks over patches of 2x2 pixels",
        "examples",
        f"{__name__}:patch_mixer",
        image=(1, 8, 8),
        smallest=PATCH,
    ),
)
