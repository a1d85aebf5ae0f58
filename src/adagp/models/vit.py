"""A small vision transformer for small images (Dosovitskiy et al. 2020), normalised before each block, without dropout.

Patches of 4x4 pixels, positions as sinusoids, the mean over the patches for the class scores. All its projections are
`nn.Linear` modules, and thereby sites. It has no batch norm: a sample's gradient depends on no other sample.
"""

import torch
from torch import Tensor, nn

from adagp.models.transformer import EncoderLayer, scaled_size, sinusoids

PATCH, SIZE, LAYERS = 4, 128, 4


def small_vit(name: str, classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return a model with `width` times 128 features a patch."""
    size = scaled_size(SIZE, width)
    return SmallVit(image[0], classes, size)


class SmallVit(nn.Module):
    """Returns class scores `(N, classes)` for images `(N, channels, height, width)`; sizes are cut to whole patches."""

    def __init__(self, channels: int, classes: int, size: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, size, PATCH, PATCH)
        self.layers = nn.ModuleList(EncoderLayer(size, 4 * size, dropout=0.0) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the class scores."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = x + sinusoids(0, x.shape[1], x.shape[2], x.device)
        everywhere = torch.ones(1, 1, 1, x.shape[1], dtype=torch.bool, device=x.device)
        for layer in self.layers:
            x = layer(x, everywhere)
        scores: Tensor = self.head(self.norm(x).mean(1))
        return scores
