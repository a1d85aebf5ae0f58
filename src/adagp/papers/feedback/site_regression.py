"""A site's output gradient as a linear function of the output's error, and the weight gradient that follows from it."""

from typing import Any

from torch import Size, Tensor

from adagp.errors import ModelError
from adagp.layers.sites import Site
from adagp.papers.feedback.products import weighted_sums
from adagp.papers.feedback.reference import Reference
from adagp.papers.feedback.regression import FeatureRows, Moments, RunningRegression
from adagp.papers.feedback.small_maps import gradient_of_patches, is_small
from adagp.sources.support.local import weight_gradient


class SiteRegression:
    """Learns from pairs of error and output gradient; gives the weight gradient of a forward call from its error alone.

    A predicted output gradient is a mixture of as few patterns as the error has features, and a weight gradient is linear
    in its input. So the *inputs* of a batch are mixed with the same weights, and the weight gradient is taken of these few
    mixed samples and the patterns: the same result (up to rounding) for a fraction features / samples of the work.
    """

    def __init__(self, site: Site, regression: RunningRegression, channels_last: bool) -> None:
        self.site = site
        self.regression = regression
        self.channels_last = channels_last  # how the outputs lie in memory when they come in: then they are not copied

    @classmethod
    def fresh(cls, site: Site, moments: Moments, gradient: Tensor) -> "SiteRegression":
        """Return one that knows nothing yet, for output gradients like `gradient`."""
        last = lies_channels_last(gradient)
        return cls(site, RunningRegression(moments, as_rows(site, gradient, last).shape[1]), last)

    def learn(self, rows: FeatureRows, gradient: Tensor, scale: float) -> None:
        """Take note of a call's errors and output gradient, the latter `scale` times too large."""
        outputs = as_rows(self.site, gradient, self.channels_last)
        self._refuse_another_size(outputs.shape[1])
        self.regression.add(rows, outputs, 1 / scale)

    def weight_gradient(
        self, inputs: Tensor, rows: FeatureRows, shape: Size, reference: Reference | None = None
    ) -> Tensor:
        """Return the weight gradient of a call with `inputs`, whose output had `shape`; less that of a reference's batches."""
        if reference is None and len(rows) <= self.regression.features:
            self._refuse_another_output(shape)
            return weight_gradient(self.site, inputs, self._maps(self.regression.predict(rows), shape))
        mixed = self.mix(inputs, rows, spare=reference is not None)
        return self.gradient_of_mixed(mixed, inputs, rows, shape, reference=reference)

    def mixed_size(self, inputs: Tensor) -> int:
        """Return how many numbers the mixed inputs of a call have, at most."""
        each = inputs.shape[-1] if self.site.rule.kind == "linear" else inputs.shape[1:].numel()
        return (self.regression.features + 2) * each

    def mix(self, inputs: Tensor, rows: FeatureRows, *, spare: bool) -> Tensor:
        """Return the inputs of a call, mixed with the weights with which its output gradients are mixed of the patterns.

        There may be a `spare` row, for a reference.
        """
        weights, _ = rows.mixture(self.regression.moments)
        numbers = as_rows(self.site, inputs.detach(), lies_channels_last(inputs)).to(weights.dtype)
        mixed = numbers.new_empty(len(weights) + spare, numbers.shape[1])
        weighted_sums(weights, numbers, out=mixed[: len(weights)])
        mixed[len(weights) :].zero_()
        return mixed

    def gradient_of_mixed(
        self,
        mixed: Tensor,
        inputs: Tensor,
        rows: FeatureRows,
        shape: Size,
        *,
        reference: Reference | None = None,
        held: bool = False,
    ) -> Tensor:
        """Return the weight gradient of inputs that were mixed, in calls like that with `inputs`; see `weight_gradient`."""
        self._refuse_another_output(shape)
        fit = self.regression
        _, patterns = fit.mixture(rows, None if reference is None else reference.error)
        if reference is not None:
            reference.subtract(mixed, fit.moments.inverse, rows.share)
        last = lies_channels_last(inputs)
        laid, gradients = from_rows(self.site, mixed, inputs.shape, last), self._maps(patterns, shape)
        if last and not held and is_small(self.site, inputs, shape):
            return gradient_of_patches(self.site, laid, gradients)
        return weight_gradient(self.site, laid, gradients, held=held)

    def state_dict(self) -> dict[str, Any]:
        """Return the moments, and the order in which they lie."""
        return {"channels_last": self.channels_last, **self.regression.state_dict()}

    @classmethod
    def restored(cls, site: Site, state: dict[str, Any], moments: Moments) -> "SiteRegression":
        """Return the one whose `state_dict` this was."""
        return cls(site, RunningRegression.restored(state, moments), state["channels_last"])

    def _refuse_another_output(self, shape: Size) -> None:
        self._refuse_another_size(shape[-1] if self.site.rule.kind == "linear" else shape[1:].numel())

    def _refuse_another_size(self, outputs: int) -> None:
        if outputs != self.regression.outputs:
            raise ModelError(
                f"the output of site '{self.site.name}' had {self.regression.outputs} numbers per sample and now has "
                f"{outputs}: feedback needs inputs of one size."
            )

    def _maps(self, rows: Tensor, shape: Size) -> Tensor:
        return from_rows(self.site, rows, shape, self.channels_last)


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
