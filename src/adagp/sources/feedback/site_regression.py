"""A site's output gradient as a linear function of the output's error, and the weight gradient that follows from it."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Size, Tensor

from adagp.errors import ModelError
from adagp.sites import Site
from adagp.sources.feedback.regression import RunningRegression
from adagp.sources.support.local import weight_gradient


class SiteRegression:
    """Learns from pairs of error and output gradient; gives the weight gradient of a forward call from its error alone.

    The mean of the errors over the call, and each row's difference from it, are features of their own: behind a batch norm,
    the mean has no effect, and a fit that cannot tell them apart is far worse.

    A predicted output gradient is a mixture of as few patterns as the error has features, and a weight gradient is linear
    in its input. So the *inputs* of a batch are mixed with the same weights, and the weight gradient is taken of these few
    mixed samples and the patterns: the same result (up to rounding) for a fraction features / samples of the work.
    """

    def __init__(self, site: Site, regression: RunningRegression, channels_last: bool) -> None:
        self.site = site
        self.regression = regression
        self.channels_last = channels_last  # how the outputs lie in memory when they come in: then they are not copied

    @classmethod
    def fresh(cls, site: Site, features: int, gradient: Tensor, decay: float, ridge: float) -> "SiteRegression":
        """Return one that knows nothing yet, for output gradients like `gradient`."""
        last = lies_channels_last(gradient)
        outputs = as_rows(site, gradient, last).shape[1]
        return cls(site, RunningRegression(2 * features, outputs, decay, ridge, gradient.device), last)

    def learn(self, errors: Tensor, gradient: Tensor, scale: float) -> None:
        """Take note of a call's errors, row by row, and of its output gradient, the latter `scale` times too large."""
        rows = as_rows(self.site, gradient, self.channels_last)
        self._refuse_another_size(rows.shape[1])
        self.regression.add(centred(errors), rows, 1 / scale)

    def weight_gradient(self, inputs: Tensor, errors: Tensor, shape: Size) -> Tensor:
        """Return the weight gradient of a call with `inputs`, whose output had `shape`, from its errors row by row."""
        self._refuse_another_size(as_rows(self.site, torch.empty(shape, device="meta"), False).shape[1])
        mixture = self.regression.mixture(centred(errors))
        patterns = self.regression.cross
        if len(mixture) <= len(patterns) // 2:
            return weight_gradient(self.site, inputs, self._maps(mixture @ patterns, shape))
        # Differences add up to nothing, so the two kinds of features do not mix: the mean's part is the same for all rows.
        differences, mean = mixture.chunk(2, dim=1)
        mixture = F.pad(differences, (0, 1), value=1.0)
        patterns = torch.cat([patterns[: differences.shape[1]], mean[:1] @ patterns[differences.shape[1] :]])
        last = lies_channels_last(inputs)
        mixed = mixture.T @ as_rows(self.site, inputs.detach(), last).to(mixture.dtype)
        return weight_gradient(self.site, from_rows(self.site, mixed, inputs.shape, last), self._maps(patterns, shape))

    def state_dict(self) -> dict[str, Any]:
        """Return the moments, and the order in which they lie."""
        return {"channels_last": self.channels_last, **self.regression.state_dict()}

    @classmethod
    def restored(cls, site: Site, state: dict[str, Any], decay: float, ridge: float) -> "SiteRegression":
        """Return the one whose `state_dict` this was."""
        regression = RunningRegression.restored(state, decay, ridge, site.weight.device)
        return cls(site, regression, state["channels_last"])

    def _refuse_another_size(self, outputs: int) -> None:
        if outputs != self.regression.outputs:
            raise ModelError(
                f"the output of site '{self.site.name}' had {self.regression.outputs} numbers per sample and now has "
                f"{outputs}: feedback needs inputs of one size."
            )

    def _maps(self, rows: Tensor, shape: Size) -> Tensor:
        return from_rows(self.site, rows, shape, self.channels_last)


def centred(rows: Tensor) -> Tensor:
    """Return each row's difference from the mean row, followed by the mean row."""
    mean = rows.mean(0, keepdim=True)
    return torch.cat([rows - mean, mean.expand_as(rows)], dim=1)


def lies_channels_last(tensor: Tensor) -> bool:
    """Tell whether `(N, C, ...)` lies in memory as `(N, ..., C)`."""
    return tensor.dim() > 2 and not tensor.is_contiguous() and tensor.movedim(1, -1).is_contiguous()


def as_rows(site: Site, tensor: Tensor, channels_last: bool) -> Tensor:
    """Return a layer's input or output (or a gradient) as rows: a sample's whole map, or a position of a linear layer."""
    if site.rule.kind == "linear":
        return tensor.reshape(-1, tensor.shape[-1])
    return (tensor.movedim(1, -1) if channels_last else tensor).reshape(len(tensor), -1)


def from_rows(site: Site, rows: Tensor, shape: Size, channels_last: bool) -> Tensor:
    """Return rows as a tensor like one of `shape`, but for the number of samples (or positions)."""
    if site.rule.kind == "linear":
        return rows
    if channels_last:
        return rows.view(len(rows), *shape[2:], shape[1]).movedim(-1, 1)
    return rows.view(len(rows), *shape[1:])
