"""Controls that every predictor must beat: zero gradients, the last true gradients, noise, and skipping the batch."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Size, Tensor

from adagp.errors import OptionError
from adagp.layers.sites import Site
from adagp.layers.weights import sharded_like
from adagp.sources.base import BatchContext, RunFacts, RunningNorms, Source, step_generator
from adagp.sources.demand import Demand, TrialCall, weight_bytes
from adagp.sources.pipeline import PipelineSource


class _Effortless(Source):
    """A source that stores nothing and computes next to nothing."""

    def demand(self, calls: Sequence[TrialCall], outputs: Sequence[Size]) -> Demand:
        """Return no memory and no work."""
        return Demand()


class ZeroSource(_Effortless, PipelineSource):
    """Produces gradients of 0: weights move only by the optimizer's momentum and weight decay.

    `zero` is the approximation of Wang and Nelaturu, for some sites of a batch. `momentum` is the same source as a control, for
    all sites of a batch: it shows what a GP phase is worth if only the momentum of the last BP batch continues.
    """

    joins = True
    traceable = True  # it watches nothing

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return zeros."""
        return [torch.zeros_like(site.weight) for site in sites]


class SkipSource(_Effortless):
    """The batch is not trained on: no forward pass, no step of the optimizer. It serves all sites of a batch or none."""

    skips = True
    joins = True
    traceable = True  # it watches nothing

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return no gradient for any site."""
        return [None] * len(sites)


class AverageSource(Source):
    """Produces the mean of each site's last `last` true gradients (fewer at the beginning); 0 before the first.

    With `decay` (0 to 1) it is an exponential average instead, which stores one tensor per site instead of `last`: a plain mean
    until `1 / (1 - decay)` gradients were seen, exponential forgetting after that.
    """

    learns = True
    joins = True
    traceable = True  # it watches nothing
    takes_sharded = True

    def __init__(self, last: int = 4, decay: float | None = None) -> None:
        if last < 1:
            raise OptionError(f"the average is taken over {last} gradients; it must be 1 or more.")
        if decay is not None and not 0 <= decay < 1:
            raise OptionError(f"the average's decay is {decay}; it must be 0 or more and below 1.")
        self.last = last
        self.decay = decay
        self._history: dict[int, list[Tensor]] = {}
        self._seen: dict[int, int] = {}

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Remember the weights, for the memory layout of stored gradients."""
        self._weights = {site.index: site.weight for site in sites}

    def demand(self, calls: Sequence[TrialCall], outputs: Sequence[Size]) -> Demand:
        """Return the memory of the stored gradients."""
        weights = weight_bytes(calls)
        return Demand(state=weights * (self.last if self.decay is None else 1), bp_bytes=weights)

    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
        """Store the true gradients of one batch."""
        self.prepare_learning(sites, gradients)()

    def prepare_learning(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> Callable[[], None]:
        """Copy the true gradients of one batch; return a function that stores the copies."""
        return partial(self._store, sites, [gradient.detach().clone() for gradient in gradients])

    @torch.no_grad()
    def _store(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
        for site, gradient in zip(sites, gradients, strict=True):
            history = self._history.setdefault(site.index, [])
            seen = self._seen[site.index] = self._seen.get(site.index, 0) + 1
            if self.decay is not None and history:
                history[0].lerp_(gradient, max(1 / seen, 1 - self.decay))
            elif len(history) < self.last:
                history.append(gradient)
            else:
                history[(seen - 1) % self.last] = gradient

    @torch.no_grad()
    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return the averages, as copies."""
        return [self._mean(self._history.get(site.index, []), site) for site in sites]

    def state_dict(self) -> dict[str, Any]:
        """Return the stored gradients, and how many were seen."""
        stored = {index: list(history) for index, history in self._history.items()}
        return {"kept": stored, "seen": dict(self._seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._history = {
            index: [self._copy(gradient, self._weights[index]) for gradient in history]
            for index, history in state["kept"].items()
        }
        self._seen = dict(state["seen"])

    @staticmethod
    def _copy(gradient: Tensor, weight: Tensor) -> Tensor:
        return sharded_like(gradient, weight).to(weight.device, copy=True)

    def _mean(self, gradients: Sequence[Tensor], site: Site) -> Tensor:
        if not gradients:
            return torch.zeros_like(site.weight)
        total = gradients[0].clone()
        for gradient in gradients[1:]:
            total += gradient
        return total.div_(len(gradients))


class ReplaySource(AverageSource):
    """Produces the last true gradient again."""

    def __init__(self) -> None:
        super().__init__(last=1)


class NormalSource(_Effortless):
    """Standard normal numbers, new in every batch: a pure function of seed, step and the sites that are served.

    The numbers of all rows come from one stream, so each process draws all of them, also those of rows that it does not have.
    """

    joins = True
    traceable = True  # it watches nothing

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    @classmethod
    def build(cls, run: RunFacts, **options: Any) -> Self:
        """Return the source with the run's seed."""
        return cls(run.seed)

    def begin(self, context: BatchContext) -> None:
        """Store the step, which determines the numbers."""
        self._step = context.step

    def normal(self, sites: Sequence[Site]) -> list[Tensor]:
        """Return a standard normal tensor for each site's weight."""
        if not sites:
            return []
        device = sites[0].weight.device
        generator = step_generator(self.seed, self._step, device)
        return [
            torch.randn(site.weight.shape, generator=generator, device=device).to(site.weight.dtype) for site in sites
        ]


class NoiseSource(NormalSource):
    """A control: a random direction with the running norm of the site's true gradient; 0 before the first true one."""

    learns = True  # from the running norms only, which the engine updates if a source learns
    takes_sharded = True

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Store the running norms."""
        self._norms = norms

    def prepare_learning(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> Callable[[], None]:
        """Do nothing: the engine updates the norms."""
        return lambda: None

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return noise for every site."""
        drawn = self.normal(sites)
        sizes = torch._foreach_norm(drawn)
        ratios = [usual / size for usual, size in zip(self._norms.of(sites), sizes, strict=True)]
        torch._foreach_mul_(drawn, ratios)
        return list(drawn)
