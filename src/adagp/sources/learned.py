"""Base classes of sources with a predictor network: summaries of outputs, the network, its optimizer and its scheduler."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Size, Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR, ReduceLROnPlateau
from torch.utils.flop_counter import FlopCounterMode

from adagp.errors import DataError, OptionError
from adagp.layers.rules import kept_mean, summarize
from adagp.layers.sites import Site
from adagp.layers.summaries import KeptMean, stand_in
from adagp.layers.weights import all_reduce_shards, gradient_norms
from adagp.sources.base import Rounds, RunFacts, RunningNorms, Source
from adagp.sources.demand import Demand, TrialCall
from adagp.sources.pipeline import PipelineSource

LEARNING = ("predictor_lr", "predictor_scheduler", "normalize", "hold_norm")
"""The options of methods with a predictor."""


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

    @classmethod
    def of_run(
        cls, run: RunFacts, predictor_lr: float, predictor_scheduler: str, normalize: bool, hold_norm: bool
    ) -> "LearningOptions":
        """Return them for a run, from the options of a method."""
        return cls(
            learning_rate=predictor_lr,
            milestones=milestones(run.epochs) if predictor_scheduler == "multistep" else (),
            plateau=predictor_scheduler == "plateau",
            normalize=normalize,
            hold_norm=hold_norm,
            seed=run.seed,
        )


def milestones(epochs: int) -> tuple[int, ...]:
    """Return the epochs after which a stepped learning rate falls to a tenth: a half and three quarters of the run."""
    return tuple(sorted({max(1, epochs // 2), max(1, epochs * 3 // 4)}))


def class_count(sites: Sequence[Site], classes: int | None) -> int:
    """Return `classes`; if it is None, the rows of the model's last site, which in a classifier are its classes."""
    return sites[-1].rows if classes is None else classes


def class_shares(targets: Any, classes: int) -> Tensor:
    """Return `(samples, classes)`: each sample's one-hot label, or the mean over its labels if it has several (words).

    Negative labels mean "none" and are left out.
    """
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.dim() == 0:
        kind = str(targets.dtype) if isinstance(targets, Tensor) else type(targets).__name__
        raise DataError(f"a source that sees labels needs whole numbers, one or more a sample; the targets are {kind}.")
    labels = (targets.flatten(1) if targets.dim() > 1 else targets[:, None]).long()
    if labels.numel() and bool((labels >= classes).any()):
        raise DataError(
            f"label {int(labels.max())} is not among the {classes} classes that the source was made for "
            "(the outputs of the model's last layer, unless label_classes=... says otherwise)."
        )
    known = labels >= 0
    marks = F.one_hot(labels.clamp(min=0), classes) * known[..., None]
    return marks.sum(1).float() / known.sum(1, keepdim=True).clamp(min=1)


class Learner:
    """Trains `network` with Adam, one step per batch, and lowers the learning rate by epochs."""

    def __init__(self, network: nn.Module, options: LearningOptions) -> None:
        self.network = network
        self.options = options
        device = next(network.parameters()).device.type
        fused = device in ("cpu", "cuda")  # one pass over memory: six times as fast for the large read-out
        self.optimizer = torch.optim.Adam(network.parameters(), lr=options.learning_rate, fused=fused)
        self.scheduler: LRScheduler
        if options.plateau:
            self.scheduler = ReduceLROnPlateau(self.optimizer, factor=0.5, patience=3)
        else:
            self.scheduler = MultiStepLR(self.optimizer, list(options.milestones), gamma=options.gamma)
        self.epoch_loss = torch.zeros(())  # on the model's device after the first batch: no transfer per batch
        self.epoch_batches = 0
        self.on_gradients: Callable[[list[Tensor]], None] = lambda tensors: None
        """Called with the network's gradients and, last, its loss, before the optimizer steps. Runs whose weights are sharded
        over processes sum them here, in place."""

    def differentiate(self, loss: Tensor) -> Tensor:
        """Put the gradients of `loss` into the parameters' `.grad` by autograd; return the loss without its graph."""
        loss.backward()
        return loss.detach()

    def step(self, loss: Tensor) -> None:
        """Take one step of Adam with the gradients of `loss`, which are in the parameters' `.grad`."""
        gradients = [parameter.grad for parameter in self.network.parameters() if parameter.grad is not None]
        self.on_gradients([*gradients, loss])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)  # frees memory for GP batches
        self.epoch_loss = self.epoch_loss.to(loss.device) + loss
        self.epoch_batches += 1

    def end_epoch(self) -> None:
        """Step the learning-rate scheduler, if the predictor has begun to learn."""
        if not self.options.plateau:
            if self.optimizer.state:
                self.scheduler.step()
        elif self.epoch_batches:  # an epoch without BP batches has no loss of the predictor
            self.scheduler.step(self.epoch_loss.item() / self.epoch_batches)  # type: ignore[arg-type]  # the metric
        self.epoch_loss = torch.zeros(())
        self.epoch_batches = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the network, its optimizer and scheduler, and the running loss of the epoch."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": plain_state(self.scheduler),
            "epoch_loss": self.epoch_loss,
            "epoch_batches": self.epoch_batches,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.epoch_loss = state["epoch_loss"]
        self.epoch_batches = state["epoch_batches"]


class TrainedSource(Source):
    """A source with a `learner`, which `bind` makes."""

    learns = True
    learner: Learner

    @classmethod
    def build(cls, run: RunFacts, **options: Any) -> Self:
        """Return the source for a run: every such class takes `LearningOptions` first, then its own options as keywords."""
        learning = {name: options.pop(name) for name in LEARNING}
        make: Any = cls
        source: Self = make(LearningOptions.of_run(run, **learning), **options)
        return source

    def discard(self) -> None:
        """Drop the gradients of the predictor."""
        self.learner.optimizer.zero_grad(set_to_none=True)

    def end_epoch(self) -> None:
        """Step the learning-rate scheduler, if the predictor has begun to learn."""
        self.learner.end_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return the network, its optimizer and scheduler, and the running loss of the epoch."""
        return self.learner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.learner.load_state_dict(state)


def plain_state(scheduler: LRScheduler) -> dict[str, Any]:
    """Return a scheduler's state as plain values only, so that it can be saved and loaded with `weights_only=True`."""
    state = scheduler.state_dict()
    if "milestones" in state:  # a Counter, which the safe loader rejects
        state["milestones"] = dict(state["milestones"])
    return state


class LearnedSource(TrainedSource, PipelineSource):
    """A predictor network that maps summaries of sites' outputs to their weight gradients, and learns from the truth.

    A summary is the site's output averaged over the batch, one sample per weight row, pooled to `grid` x `grid`. Several
    forward calls in a batch (a layer used twice, micro-batches) are averaged, weighted by their number of samples. So are the
    calls in several processes, each with a share of the batch: then all processes predict, and learn, the same. If weights are
    sharded, each process predicts and learns from its own rows only, and the gradients of the network are summed.
    """

    joins = True
    takes_sharded = True
    traceable = True

    def __init__(self, options: LearningOptions) -> None:
        self.options = options
        self._means: dict[Site, KeptMean] = {}
        self._waiting: dict[Site, tuple[Tensor, int]] = {}
        self._summaries: dict[Site, Tensor] = {}
        self._weights: dict[Site, int] = {}
        self._buffers: list[tuple[Tensor, Tensor]] = []

    @abstractmethod
    def build_network(self, sites: Sequence[Site]) -> nn.Module:
        """Return a new predictor network for `sites`."""

    @abstractmethod
    def predict(self, sites: Sequence[Site], summaries: Sequence[Tensor]) -> list[Tensor]:
        """Return one prediction for each site, of as many numbers as its weight has, in units of its scale."""

    @abstractmethod
    def pool(self, samples: Tensor) -> Tensor:
        """Return samples `(rows, height, width)` as `(rows, 1, grid, grid)`."""

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Build the network, without touching the global random state, and its `Learner`."""
        self._norms = norms
        weight = sites[0].weight
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.options.seed)
            self.network = self.build_network(sites).to(weight.device, torch.float32)
        self.learner = Learner(self.network, self.options)
        self._means = {site: kept_mean(site.rule, site.module) for site in sites}
        if sites[0].is_sharded:
            self.learner.on_gradients = partial(all_reduce_shards, weight=weight)

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Add the pooled batch mean of `output` to the site's summary.

        A mean that `KeptMean` takes is pooled later, together with those of the other sites: between two layers, whose data
        fill the CPU's caches, small operations take several times as long.
        """
        if site in self._waiting:
            self._pool_waiting()
        weight, output = output.shape[0], stand_in(site.module, inputs, output)
        samples = self._means[site].take(output)
        if samples is None:
            self._add(site, summarize(site.rule, site.module, output), weight)
        else:
            self._waiting[site] = samples, weight

    @torch.no_grad()
    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return the predicted gradients of the sites that were called."""
        seen = self._called(sites)
        if not seen:
            return [None] * len(sites)
        flat, self._sizes = self.forecast(seen)
        if self.options.normalize:
            self._stretch(flat, self._scales(seen))
        if self.options.hold_norm:
            self._stretch(flat, self._norms.of(seen) / self._sizes.clamp(min=1e-30))
        gradients = {
            site: site.from_local_rows(rows).to(site.weight.dtype) for site, rows in zip(seen, flat, strict=True)
        }
        return [gradients.get(site) for site in sites]

    def sizes(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the norms that `produce` has computed, or new ones if the gradients were rounded to a lower precision.

        A derived class whose `produce` changes the gradients must override this, too.
        """
        exact = all(gradient.dtype == torch.float32 for gradient in gradients)
        return self._sizes if exact else super().sizes(gradients)

    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
        """Take one step of Adam on the sum of the sites' mean squared errors."""
        self.prepare_learning(sites, gradients)()

    @torch.no_grad()
    def prepare_learning(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> Callable[[], None]:
        """Differentiate the sum of the sites' mean squared errors; return a function that takes the step of Adam."""
        truths = {site: site.share_of(truth.detach()).float() for site, truth in zip(sites, gradients, strict=True)}
        seen = self._called(sites)
        if not seen:
            return lambda: None
        scales = self._scales(seen).clamp(min=1e-30) if self.options.normalize else None
        # Its normalization layers, if it has any, update their buffers: `discard` restores these.
        self._buffers = [(buffer, buffer.clone()) for buffer in self.network.buffers()]
        return partial(self.learner.step, self.learn(seen, [truths[site] for site in seen], scales))

    def forecast(self, sites: Sequence[Site]) -> tuple[list[Tensor], Tensor]:
        """Return the predictions for sites that were called, in the shape and memory order of the weights; and their norms.

        Here and in `learn` weights have their outputs first (see `Site.outputs_first`). The predictions are of this process's
        rows; the norms are those of all rows.
        """
        self.network.eval()
        flat = self.predict(sites, self.shared(sites))
        weights = [torch.empty_like(site.like, dtype=rows.dtype) for site, rows in zip(sites, flat, strict=True)]
        for site, weight, rows in zip(sites, weights, flat, strict=True):
            weight.copy_(rows.view(site.rows, -1)[site.local_rows].view(weight.shape))
        return weights, gradient_norms(flat if sites[0].is_sharded else weights)

    def learn(self, sites: Sequence[Site], truths: Sequence[Tensor], scales: Tensor | None) -> Tensor:
        """Put the gradient of the loss for sites that were called into the network's `.grad`; return the loss.

        It is the sum of the sites' mean squared errors, with each truth divided by its scale, if there are scales. For a
        sharded weight, the truth has the rows `Site.share`, and the loss is this process's part of the mean over all rows.
        """
        self.network.train()
        with torch.enable_grad():
            predictions = self.predict(sites, self.shared(sites))
            if sites[0].is_sharded:
                predictions = [
                    rows.view(site.rows, -1)[site.share] for site, rows in zip(sites, predictions, strict=True)
                ]
            aims = truths if scales is None else torch._foreach_div(list(truths), list(scales))
            losses = [
                F.mse_loss(rows, aim.reshape(rows.shape), reduction="sum") / site.weight.numel()
                if site.is_sharded
                else F.mse_loss(rows, aim.reshape(rows.shape))
                for site, rows, aim in zip(sites, predictions, aims, strict=True)
            ]
            return self.learner.differentiate(torch.stack(losses).sum())

    @torch.no_grad()
    def demand(self, calls: Sequence[TrialCall], outputs: Sequence[Size]) -> Demand:
        """Return the demand of the network, Adam's two moments and the summaries; learning counts as three predictions."""
        sites = list(dict.fromkeys(call.site for call in calls))
        grid, device = self.options.grid, sites[0].weight.device
        summaries = [torch.zeros(site.rows, 1, grid, grid, device=device) for site in sites]
        self.network.eval()
        with FlopCounterMode(display=False) as counter:
            self.predict(sites, summaries)
        macs, numbers = counter.get_total_flops() // 2, sum(weight.numel() for weight in self.network.parameters())
        kept = 4 * sum(summary.numel() for summary in summaries)
        return Demand(3 * 4 * numbers, bp_bytes=kept + 4 * numbers, gp_bytes=kept, bp_macs=3 * macs, gp_macs=macs)

    def shared(self, sites: Sequence[Site]) -> list[Tensor]:
        """Return the summaries of those of `sites` that were called in this batch."""
        return [self._summaries[site] for site in self._called(sites)]

    def join(self, sites: Sequence[Site]) -> Rounds:
        """Average the summaries over the processes, weighted by their samples; a process that did not call a site counts 0."""
        self._summarize_all()
        device, grid = sites[0].weight.device, self.options.grid
        counts = torch.tensor([float(self._weights.get(site, 0)) for site in sites], device=device)
        sums = [
            self._summaries[site] * self._weights[site]
            if site in self._summaries
            else torch.zeros(site.rows, 1, grid, grid, device=device)
            for site in sites
        ]
        yield [counts, *sums]
        for site, total, count in zip(sites, sums, counts.tolist(), strict=True):
            if count:
                self._summaries[site], self._weights[site] = total.div_(count), int(count)

    def averaged(self, sites: Sequence[Site]) -> list[Tensor]:
        """Return the summaries of `sites`, to be averaged in place over the copies of their stages."""
        return self.shared(sites)

    def reduce_with(self, all_reduce: Callable[[list[Tensor]], None]) -> None:
        """Sum the network's gradients over the processes with this function before each step."""
        self.learner.on_gradients = all_reduce

    def replicated(self) -> Iterable[Tensor]:
        """Return the weights of the predictor network."""
        return self.network.state_dict().values()

    def drop(self, sites: Sequence[Site]) -> None:
        """Drop the summaries of `sites`: their batch is over, while that of other sites may continue."""
        for site in sites:
            self._waiting.pop(site, None)
            self._summaries.pop(site, None)
            self._weights.pop(site, None)

    def discard(self) -> None:
        """Drop the gradients of the predictor, and restore its buffers."""
        super().discard()
        for buffer, value in self._buffers:
            buffer.copy_(value)

    def forget(self) -> None:
        """Drop the summaries of this batch."""
        self._buffers = []
        self.drop([*self._waiting, *self._summaries])

    def _pool_waiting(self) -> None:
        for site, (samples, weight) in self._waiting.items():
            self._add(site, samples, weight)
        self._waiting.clear()

    def _summarize_all(self) -> None:
        """Make the summaries of all sites that were called: the forward passes of the batch are over."""
        self._pool_waiting()

    def _add(self, site: Site, samples: Tensor, weight: int) -> None:
        pooled = self.pool(samples)
        total = self._weights.get(site, 0) + weight
        if site in self._summaries:
            self._summaries[site].lerp_(pooled, weight / total)
        else:
            self._summaries[site] = pooled
        self._weights[site] = total

    def _called(self, sites: Sequence[Site]) -> list[Site]:
        """Return those of `sites` that were called in this batch, whose summaries are then ready."""
        self._summarize_all()
        return [site for site in sites if site in self._summaries]

    def _stretch(self, gradients: list[Tensor], factors: Tensor) -> None:
        """Multiply predictions and their norms by `factors`."""
        torch._foreach_mul_(gradients, list(factors))
        self._sizes = self._sizes * factors

    def _scales(self, sites: Sequence[Site]) -> Tensor:
        """Return the root mean square of each site's true gradient, from its running norm."""
        norms = self._norms.of(sites)
        return norms / torch.tensor([site.weight.numel() ** 0.5 for site in sites]).to(norms)
