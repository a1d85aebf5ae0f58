"""Gradients from the output's error: each site's output gradient is regressed on it, without a chain through the layers."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Size, Tensor

from adagp.errors import OptionError
from adagp.sites import Site
from adagp.sources.base import BatchContext, RunFacts
from adagp.sources.feedback.error_features import ErrorFeatures
from adagp.sources.feedback.site_regression import SiteRegression
from adagp.sources.support.local import Kept, LocalSource
from adagp.sources.support.norms import RunningNorms
from adagp.sources.support.taps import on_gradient


class FeedbackSource(LocalSource):
    """Predicts each site's output gradient from the loss's gradient at the model's output, by running least squares.

    In BP batches it sees both; `decay` forgets old batches and `ridge` (times the mean second moment) steadies the fit. In
    GP batches the loss is differentiated at the output only, and each site's weight gradient is taken locally from its
    input and the predicted output gradient. All sites are independent of each other.

    At most `features` numbers of the error are used, a random projection of it where it has more. The work beyond the
    forward pass is in proportion to them: (features + 1) / samples of what the true weight gradient takes.

    A linear fit errs in the same direction batch after batch, which adds up as noise does not. So predictions are made in BP
    batches too, and a running mean of what they lacked there, moving by `correction` a batch, is added in GP batches.
    """

    learns = True
    needs_error = True

    def __init__(
        self,
        features: int = 64,
        decay: float = 0.95,
        ridge: float = 1e-3,
        correction: float = 0.1,
        seed: int = 0,
    ) -> None:
        if features < 1:
            raise OptionError(f"feedback uses {features} features of the error; it must use 1 or more.")
        if not 0 <= decay < 1:
            raise OptionError(f"feedback's decay is {decay}; it must be 0 or more and below 1.")
        if not ridge > 0:
            raise OptionError(f"feedback's ridge is {ridge}; it must be above 0.")
        if not 0 <= correction <= 1:
            raise OptionError(f"feedback's correction moves by {correction}; it must be 0 (none) to 1.")
        super().__init__("feedback")
        self.decay = decay
        self.ridge = ridge
        self.correction = correction
        self._errors = ErrorFeatures(features, seed)
        self._fits: dict[int, SiteRegression] = {}
        self._lacks: dict[int, Tensor] = {}
        self._pending: list[tuple[Site, Kept, Size]] = []

    @classmethod
    def build(cls, run: RunFacts, **options: Any) -> Self:
        """Return the source with the run's seed and the options of its method."""
        return cls(**options, seed=run.seed)

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Refuse layers whose gradient cannot be taken locally."""
        super().bind(sites, norms)
        self._sites = {site.index: site for site in sites}

    def begin(self, context: BatchContext) -> None:
        """Keep what is known of the batch."""
        self._context = context

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Keep the input; wait for the true gradient at the output of a site that is trained by backprop."""
        served = site in self._context.replaced
        if served or self.correction or self._context.measured:
            self._pending.append((site, Kept(site, inputs), output.shape))
        if served or not output.requires_grad:
            return None

        def receive(gradient: Tensor) -> None:
            features = self._features
            if site.index not in self._fits:
                self._fits[site.index] = SiteRegression.fresh(
                    site, features.shape[-1], gradient, self.decay, self.ridge
                )
            self._fits[site.index].learn(features, gradient, self._context.scale)

        return on_gradient(output, receive)

    def observe_error(self, error: Tensor) -> None:
        """Take the weight gradients of the sites whose inputs are kept."""
        self._features = self._errors.of(error)
        for site, kept, shape in self._pending:
            if site.index in self._fits:
                self.add(site, self._fits[site.index].weight_gradient(kept.get(), self._features, shape))
            else:
                self.add(site, torch.zeros_like(site.weight))  # no true gradient was seen yet
        self._pending.clear()

    @torch.no_grad()
    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return the weight gradients of the sites that were called, with what they usually lack."""
        found = super().produce(sites)
        return [
            one if one is None or site.index not in self._lacks else one + self._lacks[site.index]
            for site, one in zip(sites, found, strict=True)
        ]

    @torch.no_grad()
    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
        """Learn from the output gradients that came by in the backward pass, and from what the predictions lacked."""
        for site, truth, guess in zip(sites, gradients, super().produce(sites), strict=True):
            fit = self._fits.get(site.index)
            if fit is None:
                continue
            if self.correction and guess is not None:
                lack = self._lacks.setdefault(site.index, torch.zeros_like(guess))
                lack.lerp_(truth.to(guess.dtype) - guess, self.correction)
            fit.regression.commit()

    def forget(self) -> None:
        """Drop what was kept of this batch."""
        super().forget()
        self._pending.clear()
        for fit in self._fits.values():
            fit.regression.drop()

    def state_dict(self) -> dict[str, Any]:
        """Return the running moments of each site, and what its predictions lacked."""
        return {
            "fits": {index: fit.state_dict() for index, fit in self._fits.items()},
            "lacks": {index: lack.clone() for index, lack in self._lacks.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._fits = {
            index: SiteRegression.restored(self._sites[index], fit, self.decay, self.ridge)
            for index, fit in state["fits"].items()
        }
        self._lacks = {
            index: lack.to(self._sites[index].weight.device, copy=True) for index, lack in state["lacks"].items()
        }
