"""The error at a model's output as rows of features for a site: one row a sample, or one a word."""

import torch
from torch import Tensor

from adagp.errors import ModelError
from adagp.sites import Site


class ErrorFeatures:
    """Turns output errors into at most `most` features; more outputs than that are projected at random.

    A random projection keeps inner products in expectation. An error `(N, T, V)` is one of sequences: V is projected.
    Other errors are flattened, samples first.
    """

    def __init__(self, most: int, seed: int) -> None:
        self.most = most
        self.seed = seed
        self._projection: Tensor | None = None

    def of(self, error: Tensor) -> Tensor:
        """Return `(N, features)`, or `(N, T, features)` of sequences."""
        error = error.detach().float()
        rows = error if error.dim() == 3 else error.reshape(len(error), -1)
        width = rows.shape[-1]
        if width <= self.most:
            return rows
        if self._projection is None or self._projection.shape[0] != width:
            generator = torch.Generator().manual_seed(self.seed)
            signs = torch.randint(0, 2, (width, self.most), generator=generator) * 2 - 1
            self._projection = (signs / self.most**0.5).to(rows.device)
        return rows @ self._projection


def rows_for(site: Site, shape: torch.Size, features: Tensor) -> Tensor:
    """Return the features `(rows, features)` for a site whose output has `shape`, as many rows as it has.

    A convolution, or a linear layer without a sequence, has a row a sample. A linear layer over a sequence has a row a
    position: with the features of the same position, if the model's output has as many; else with those of its sample.
    """
    if shape[0] != len(features):
        raise ModelError(
            f"site '{site.name}' was called with {shape[0]} samples, but the model's output has {len(features)}: "
            "the output's error cannot be assigned to them. Exclude the site."
        )
    positions = shape[1:-1] if site.rule.kind == "linear" else torch.Size()
    if features.dim() == 3 and positions == features.shape[1:2]:
        return features.reshape(-1, features.shape[-1])
    samples = features.sum(1) if features.dim() == 3 else features
    if not positions:
        return samples
    return samples.repeat_interleave(positions.numel(), dim=0)
