"""Gradients from the output's error: each site's output gradient is regressed on it, without a chain through the layers."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Size, Tensor

from adagp.errors import ModelError, OptionError
from adagp.sites import Site
from adagp.sources.base import SOURCES, Moment
from adagp.sources.error_features import ErrorFeatures, rows_for, rows_of
from adagp.sources.local import Kept, LocalSource, weight_gradient
from adagp.sources.norms import RunningNorms
from adagp.sources.randomness import step_generator
from adagp.sources.regression import RunningRegression
from adagp.sources.taps import on_gradient

Choice = Literal["uniform", "error"]


class FeedbackSource(LocalSource):
    """Predicts each site's output gradient from the loss's gradient at the model's output, by running least squares.

    In BP batches it sees both; `decay` forgets old batches and `ridge` (times the mean second moment) steadies the fit. In
    GP batches the loss is differentiated at the output only, and each site's weight gradient is taken locally from its
    input and the predicted output gradient. All sites are independent of each other.

    At most `features` numbers of the error are used, a random projection of it where it has more. `fraction` takes the
    weight gradient from that share of the samples, scaled so that its expectation is that of all: drawn alike (`uniform`,
    only their inputs are kept) or in proportion to the size of their error (`error`, with replacement).
    """

    learns = True
    needs_error = True

    def __init__(
        self,
        features: int = 64,
        decay: float = 0.98,
        ridge: float = 1e-3,
        fraction: float = 1.0,
        choice: Choice = "uniform",
        seed: int = 0,
    ) -> None:
        if features < 1:
            raise OptionError(f"feedback uses {features} features of the error; it must use 1 or more.")
        if not 0 <= decay < 1:
            raise OptionError(f"feedback's decay is {decay}; it must be 0 or more and below 1.")
        if not ridge > 0:
            raise OptionError(f"feedback's ridge is {ridge}; it must be above 0.")
        if not 0 < fraction <= 1:
            raise OptionError(
                f"feedback takes a fraction of {fraction} of the samples; it must be above 0 and at most 1."
            )
        if choice not in ("uniform", "error"):
            raise OptionError(f"feedback's choice is '{choice}'; it must be uniform or error.")
        super().__init__("feedback")
        self.decay = decay
        self.ridge = ridge
        self.fraction = fraction
        self.choice = choice
        self.seed = seed
        self._errors = ErrorFeatures(features, seed)
        self._fits: dict[int, RunningRegression] = {}
        self._pending: list[tuple[Site, Kept, Tensor | None, Size]] = []

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Refuse layers whose gradient cannot be taken locally; take note of the device."""
        super().bind(sites, norms)
        self._device = sites[0].weight.device

    def begin(self, moment: Moment) -> None:
        """Keep what is known of the batch."""
        self._moment = moment

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Keep the input of a site that is served (or measured); wait for the true gradient at the output of the others."""
        served = site in self._moment.replaced
        if served or self._moment.measured:
            taken = self._uniform(len(output)) if self.fraction < 1 and self.choice == "uniform" else None
            part = inputs if taken is None else (inputs[0].detach()[taken],)
            self._pending.append((site, Kept(site, part), taken, output.shape))
        if served or not output.requires_grad:
            return None

        def receive(gradient: Tensor) -> None:
            rows = rows_of(site, gradient)
            features = rows_for(site, gradient.shape, self._features)
            self._fit(site, features.shape[1], rows.shape[1]).add(features, rows / self._moment.scale)

        return on_gradient(output, receive)

    def feel(self, error: Tensor) -> None:
        """Take the weight gradients of the sites whose inputs are kept."""
        self._features = self._errors.of(error)
        chosen = self._by_error(error) if self.fraction < 1 and self.choice == "error" else None
        for site, kept, taken, shape in self._pending:
            inputs, features = kept.get(), self._features
            if chosen is not None:
                taken, weights = chosen
                inputs, features = inputs[taken], features[taken] * weights.view(-1, *[1] * (features.dim() - 1))
            elif taken is not None:
                features = features[taken] * (shape[0] / len(taken))
            self.add(site, self._local(site, inputs, features, Size((len(features), *shape[1:]))))
        self._pending.clear()

    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
        """Learn from the output gradients that came by in the backward pass."""
        for site in sites:
            if site.index in self._fits:
                self._fits[site.index].commit()

    def forget(self) -> None:
        """Drop what was kept of this batch."""
        super().forget()
        self._pending.clear()
        for fit in self._fits.values():
            fit.drop()

    def state_dict(self) -> dict[str, Any]:
        """Return the running moments of each site."""
        return {"fits": {index: fit.state_dict() for index, fit in self._fits.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._fits = {
            index: RunningRegression.restored(fit, self.decay, self.ridge, self._device)
            for index, fit in state["fits"].items()
        }

    def _fit(self, site: Site, features: int, outputs: int) -> RunningRegression:
        if site.index not in self._fits:
            self._fits[site.index] = RunningRegression(features, outputs, self.decay, self.ridge, self._device)
        fit = self._fits[site.index]
        if fit.outputs != outputs:
            raise ModelError(
                f"the output of site '{site.name}' had {fit.outputs} numbers a sample and now has {outputs}: "
                "feedback needs inputs of one size."
            )
        return fit

    def _local(self, site: Site, inputs: Tensor, features: Tensor, shape: Size) -> Tensor:
        if site.index not in self._fits:
            return torch.zeros_like(site.weight)  # no true gradient was seen yet
        rows = rows_for(site, shape, features)
        outputs = rows_of(site, torch.empty(shape, device="meta")).shape[1]
        return weight_gradient(site, inputs, self._fit(site, rows.shape[1], outputs).predict(rows).view(shape))

    def _uniform(self, samples: int) -> Tensor:
        """Return the places of the chosen samples: the same for every site of a batch."""
        count = max(1, round(self.fraction * samples))
        generator = step_generator(self.seed, self._moment.step)
        return torch.randperm(samples, generator=generator)[:count].sort().values.to(self._device)

    def _by_error(self, error: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places of samples drawn in proportion to their error, and the weights that make up for it."""
        sizes = error.reshape(len(error), -1).float().norm(dim=1)
        shares = (sizes + 1e-3 * sizes.mean() + torch.finfo(sizes.dtype).tiny).cpu()
        shares = shares / shares.sum()
        count = max(1, round(self.fraction * len(error)))
        generator = step_generator(self.seed, self._moment.step)
        taken = torch.multinomial(shares, count, replacement=True, generator=generator)
        return taken.to(self._device), (1 / (count * shares[taken])).to(self._device)


SOURCES.add("feedback", FeedbackSource)
