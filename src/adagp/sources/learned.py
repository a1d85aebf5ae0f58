"""What the learning sources have in common: summaries of outputs, a predictor network, its optimizer and its scheduler."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR, ReduceLROnPlateau

from adagp.errors import OptionError
from adagp.predictor.reorganize import summarize
from adagp.sites import Site
from adagp.sources.base import Source
from adagp.sources.norms import RunningNorms


@dataclass(frozen=True)
class LearningOptions:
    """How a predictor learns. The defaults are ADA-GP's; the two switches go beyond the paper.

    `milestones` are epochs after which the learning rate is multiplied by `gamma` (MultiStepLR); with `plateau` it is
    halved instead when the predictor's loss has not fallen for more than three epochs with BP batches (ReduceLROnPlateau).
    `normalize` trains on targets divided by a running scale of each site, so that sites with small gradients count as much
    as those with large ones. `hold_norm` rescales each prediction to the running norm of the true gradient.
    `grid` is the side of the pooled picture of an output channel that the predictor sees.
    """

    learning_rate: float = 1e-4
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    plateau: bool = False
    normalize: bool = False
    hold_norm: bool = False
    grid: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise OptionError(f"the predictor's learning rate is {self.learning_rate}; it must be above 0.")
        if self.grid < 1:
            raise OptionError(f"the predictor's grid is {self.grid}; it must be 1 or more.")


class LearnedSource(Source):
    """A predictor network that maps summaries of sites' outputs to their weight gradients, and learns from the truth.

    A summary is the site's output averaged over the batch, one sample a weight row, pooled to `grid` x `grid`. Several
    forward calls in a batch (a layer used twice, micro-batches) are averaged, weighted by their number of samples.
    """

    learns = True

    def __init__(self, options: LearningOptions) -> None:
        self.options = options
        self._summaries: dict[Site, Tensor] = {}
        self._weights: dict[Site, int] = {}
        self._epoch_loss = torch.zeros(())  # on the model's device after the first batch: no transfer a batch
        self._epoch_batches = 0
        self.on_gradients: Callable[[list[Tensor]], None] = lambda tensors: None
        """Called with the predictor's gradients and, last, its loss, before its optimizer steps. A run that is spread over
        processes adds them up here, in place."""

    @abstractmethod
    def build_network(self, sites: Sequence[Site]) -> nn.Module:
        """Return a fresh predictor network for `sites`."""

    @abstractmethod
    def predict(self, sites: Sequence[Site], summaries: Sequence[Tensor]) -> list[Tensor]:
        """Return one prediction for each site, of as many numbers as its weight has, in units of its scale."""

    @abstractmethod
    def pool(self, samples: Tensor) -> Tensor:
        """Return samples `(rows, height, width)` as `(rows, 1, grid, grid)`."""

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Build the network, without touching the global random state, and its optimizer."""
        self._norms = norms
        weight = sites[0].weight
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.options.seed)
            self.network = self.build_network(sites).to(weight.device)
        fused = weight.device.type in ("cpu", "cuda")  # one pass over memory: six times as fast for the large read-out
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=self.options.learning_rate, fused=fused)
        self.scheduler: LRScheduler
        if self.options.plateau:
            self.scheduler = ReduceLROnPlateau(self.optimizer, factor=0.5, patience=3)
        else:
            milestones = list(self.options.milestones)
            self.scheduler = MultiStepLR(self.optimizer, milestones, gamma=self.options.gamma)

    @torch.no_grad()
    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Add the pooled batch mean of `output` to the site's summary."""
        pooled = self.pool(summarize(site.rule, site.module, output))
        weight = output.shape[0]
        total = self._weights.get(site, 0) + weight
        if site in self._summaries:
            self._summaries[site].lerp_(pooled, weight / total)
        else:
            self._summaries[site] = pooled
        self._weights[site] = total

    @torch.no_grad()
    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return the predicted gradients of the sites that were called."""
        seen = [site for site in sites if site in self._summaries]
        if not seen:
            return [None] * len(sites)
        self.network.eval()
        flat = self.predict(seen, [self._summaries[site] for site in seen])
        if self.options.normalize:
            torch._foreach_mul_(flat, self._scales(seen))
        if self.options.hold_norm:
            sizes = torch._foreach_norm(flat)
            ratios = [norm / size.clamp(min=1e-30) for norm, size in zip(self._norms.of(seen), sizes, strict=True)]
            torch._foreach_mul_(flat, ratios)
        found = {site: one.view(site.weight.shape).to(site.weight.dtype) for site, one in zip(seen, flat, strict=True)}
        return [found.get(site) for site in sites]

    @torch.enable_grad()
    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
        """Take one step of Adam on the sum of the sites' mean squared errors."""
        pairs = [(site, truth) for site, truth in zip(sites, gradients, strict=True) if site in self._summaries]
        if not pairs:
            return
        seen = [site for site, _ in pairs]
        targets = [truth.detach().float() for _, truth in pairs]
        if self.options.normalize:
            targets = list(torch._foreach_div(targets, [scale.clamp(min=1e-30) for scale in self._scales(seen)]))
        self.network.train()
        predictions = self.predict(seen, [self._summaries[site] for site in seen])
        losses = [F.mse_loss(one, aim.view_as(one)) for one, aim in zip(predictions, targets, strict=True)]
        loss = torch.stack(losses).sum()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        gradients = [parameter.grad for parameter in self.network.parameters() if parameter.grad is not None]
        self.on_gradients([*gradients, loss.detach()])
        self.optimizer.step()
        self._epoch_loss = self._epoch_loss.to(loss.device) + loss.detach()
        self._epoch_batches += 1

    def shared(self, sites: Sequence[Site]) -> list[Tensor]:
        """Return the summaries of `sites`, to be averaged in place over processes that saw other samples of the batch."""
        return [self._summaries[site] for site in sites if site in self._summaries]

    def drop(self, sites: Sequence[Site]) -> None:
        """Drop the summaries of `sites` alone, whose batch is over before that of other sites."""
        for site in sites:
            self._summaries.pop(site, None)
            self._weights.pop(site, None)

    def forget(self) -> None:
        """Drop the summaries of this batch."""
        self._summaries.clear()
        self._weights.clear()

    def end_epoch(self) -> None:
        """Let the learning rate follow its schedule, once the predictor has begun to learn."""
        if not self.options.plateau:
            if self.optimizer.state:
                self.scheduler.step()
        elif self._epoch_batches:  # an epoch without BP batches says nothing about the predictor
            self.scheduler.step(self._epoch_loss.item() / self._epoch_batches)  # type: ignore[arg-type]  # the metric
        self._epoch_loss = torch.zeros(())
        self._epoch_batches = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the network, its optimizer and scheduler, and the running loss of the epoch."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": plain_state(self.scheduler),
            "epoch_loss": self._epoch_loss,
            "epoch_batches": self._epoch_batches,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self._epoch_loss = state["epoch_loss"]
        self._epoch_batches = state["epoch_batches"]

    def _scales(self, sites: Sequence[Site]) -> list[Tensor]:
        """Return the root mean square of each site's true gradient, from its running norm."""
        norms = self._norms.of(sites)
        return [norm / site.weight.numel() ** 0.5 for norm, site in zip(norms, sites, strict=True)]


def plain_state(scheduler: LRScheduler) -> dict[str, Any]:
    """Return a scheduler's state as plain values only, so that it can be saved and loaded with `weights_only=True`."""
    state = scheduler.state_dict()
    if "milestones" in state:  # a Counter, which the safe loader refuses
        state["milestones"] = dict(state["milestones"])
    return state
