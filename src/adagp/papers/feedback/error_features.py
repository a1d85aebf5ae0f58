"""The error at a model's output as rows of features for a site: one row per sample, or one per word."""

from collections.abc import Sequence

import torch
from torch import Tensor

from adagp.errors import ModelError
from adagp.layers.sites import Site
from adagp.sources.base import ModelCall


class ErrorFeatures:
    """Turns output errors into at most `most` features; more outputs than that are projected at random.

    A random projection keeps inner products in expectation. An error `(N, T, V)` is one of sequences: V is projected.
    Other errors are flattened, samples first. Of several outputs those count that the loss depends on in the first batch.
    """

    def __init__(self, most: int, seed: int) -> None:
        self.most = most
        self.seed = seed
        self.outputs: list[int] = []
        self._projection: Tensor | None = None

    def of_call(self, call: ModelCall) -> Tensor:
        """Return the features of the errors at the outputs of `call`, as `of` does."""
        found = [place for place, error in enumerate(call.errors) if error is not None]
        self.outputs = self.outputs or found
        new = [place for place in found if place not in self.outputs]
        if new:
            raise ModelError(
                f"the loss depends on output number {new[0] + 1} of the model now, and did not in the first batch. Say which "
                "outputs count: adagp.attach(output=...)."
            )
        known = call.errors[found[0]]
        assert known is not None, "a call without an error has no features"
        errors = []
        for place in self.outputs:
            error = call.errors[place]
            errors.append(known.new_zeros(call.shapes[place]) if error is None else error)
        return self.of_several(errors)

    def of_several(self, errors: Sequence[Tensor]) -> Tensor:
        """Return the features of the errors at several outputs, as `of` does."""
        if len(errors) == 1:
            return self.of(errors[0])
        alike = all(error.dim() == 3 and error.shape[:2] == errors[0].shape[:2] for error in errors)
        if any(len(error) != len(errors[0]) for error in errors):
            raise ModelError(
                "the outputs that the loss depends on differ in their number of samples: "
                f"{', '.join(str(tuple(error.shape)) for error in errors)}. Say which one counts: adagp.attach(output=...)."
            )
        return self.of(torch.cat(list(errors) if alike else [error.flatten(1) for error in errors], dim=-1))

    def of(self, error: Tensor) -> Tensor:
        """Return `(N, features)`, or `(N, T, features)` of sequences."""
        error = error.detach().float()
        rows = error[:, None] if error.dim() == 1 else error if error.dim() == 3 else error.flatten(1)
        width = rows.shape[-1]
        if width <= self.most:
            return rows
        if self._projection is None or self._projection.shape[0] != width:
            generator = torch.Generator().manual_seed(self.seed)
            signs = torch.randint(0, 2, (width, self.most), generator=generator) * 2 - 1
            self._projection = (signs / self.most**0.5).to(rows)
        return rows @ self._projection


def rows_for(site: Site, shape: torch.Size, features: Tensor, axis: int = 0) -> Tensor:
    """Return the features `(rows, features)` for a site whose output has `shape`, as many rows as it has.

    A convolution, or a linear layer without a sequence, has a row per sample. A linear layer over a sequence has a row per
    position: with the features of the same position, if the model's output has as many; else with those of its sample.
    Samples, which are first in the features, are counted on `axis` of the site's output.
    """
    width = features.shape[-1]
    if site.rule.kind == "linear" and len(shape) == 3 and features.dim() == 3 and shape[1 - axis] == features.shape[1]:
        return (features.transpose(0, 1) if axis else features).reshape(-1, width)
    samples = features.sum(1) if features.dim() == 3 else features
    if site.rule.kind != "linear" or len(shape) == 2:
        return samples
    spread = [1] * (len(shape) - 1)
    spread[axis] = len(samples)
    return samples.view(*spread, width).expand(*shape[:-1], width).reshape(-1, width)
