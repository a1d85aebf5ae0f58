"""Synthetic gradients after Jaderberg and others (2017): one small network per site predicts the gradient at its output."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Size, Tensor, nn

from adagp.errors import DataError, ModelError, OptionError
from adagp.layers.sites import SAY_SAMPLE_AXIS, Site
from adagp.sources.base import BatchContext, RunningNorms, on_gradient
from adagp.sources.demand import NUMBER_BYTES, Demand, TrialCall, chain_macs, kept_inputs, weight_gradient_macs
from adagp.sources.learned import Learner, LearningOptions, TrainedSource, class_count, class_shares
from adagp.sources.local import Kept, LocalSource, weight_gradient

_CONVOLUTIONS: dict[int, type[nn.Conv1d] | type[nn.Conv2d] | type[nn.Conv3d]] = {
    3: nn.Conv1d,
    4: nn.Conv2d,
    5: nn.Conv3d,
}
"""Convolution class by the number of dimensions of the weight."""


SeenCall = tuple[Tensor, Tensor, Tensor | None]
"""A layer's output in one call, the true gradient there, and the classes of the samples."""


class SyntheticNetwork(nn.Module):
    """Maps a layer's output to the gradient there, sample by sample: two layers of the site's own kind, `hidden` in between.

    Labels, if there are any, are added to the hidden layer. Inputs are divided by `input_scale`, predictions are in units of
    `scale`: the running root mean squares of the output and of the true gradient there, over BP batches. So a prediction does
    not depend on the other samples of its call. The last layer starts at zero: no gradient, not noise.
    """

    input_scale: Tensor
    scale: Tensor
    count: Tensor

    def __init__(self, site: Site, hidden: int, classes: int) -> None:
        super().__init__()
        rows = site.rows
        if site.rule.kind == "linear":
            self.first: nn.Module = nn.Linear(rows, hidden)
            last: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d = nn.Linear(hidden, rows)
        else:
            kind = _CONVOLUTIONS[site.weight.dim()]
            self.first = kind(rows, hidden, 3, padding=1)
            last = kind(hidden, rows, 3, padding=1)
        assert last.bias is not None
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.last: nn.Module = last
        self.labels = nn.Linear(classes, hidden, bias=False) if classes else None
        self.register_buffer("input_scale", torch.zeros(()))
        self.register_buffer("scale", torch.zeros(()))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, output: Tensor, shares: Tensor | None, input_scale: Tensor | None = None) -> Tensor:
        """Return the gradient at `output`, in units of `scale`.

        `shares` are the classes of each sample, `(samples, classes)`, or for linear layers with as many axes as the output.
        `input_scale` is that of a batch which is being learned from.
        """
        unit = self.input_scale if input_scale is None else input_scale
        hidden = self.first(output.float() / torch.where(unit > 0, unit, 1.0))
        if self.labels is not None and shares is not None:
            embedded = self.labels(shares)
            linear = isinstance(self.first, nn.Linear)
            hidden = hidden + (embedded if linear else embedded.view(*embedded.shape, *[1] * (hidden.dim() - 2)))
        return self.last(F.relu(hidden))  # type: ignore[no-any-return]

    @torch.no_grad()
    def rescaled(
        self, outputs: Sequence[Tensor], gradients: Sequence[Tensor], decay: float = 0.95
    ) -> tuple[Tensor, Tensor]:
        """Return `input_scale` and `scale` after a batch with these calls: plain means at first, then EMAs."""
        share = (1 / (self.count + 1)).clamp(min=1 - decay)
        # Checkpoints of earlier versions have no `input_scale`.
        input_scale = torch.lerp(
            self.input_scale, _root_mean_square(outputs), torch.where(self.input_scale > 0, share, 1.0)
        )
        return input_scale, torch.lerp(self.scale, _root_mean_square(gradients), share)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        state_dict.setdefault(f"{prefix}input_scale", torch.zeros(()))
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def _root_mean_square(tensors: Sequence[Tensor]) -> Tensor:
    """Return the root mean square over all numbers of `tensors` together."""
    total = torch.stack([tensor.float().square().sum() for tensor in tensors]).sum()
    return (total / sum(tensor.numel() for tensor in tensors)).sqrt()


class SyntheticSource(LocalSource, TrainedSource):
    """Predicts the gradient at each site's output from that output (and the labels), and takes the weight gradient with it.

    The networks learn in BP batches from the true gradients at the outputs, by one step of Adam per batch on the sum of the
    sites' mean squared errors. Each of several processes has its own networks, which learn from its own samples.
    """

    takes_sharded = True  # it uses none
    sums_samples = True

    def __init__(
        self, options: LearningOptions | None = None, hidden: int = 32, labels: bool = False, classes: int | None = None
    ) -> None:
        if hidden < 1:
            raise OptionError(f"the synthetic-gradient networks have {hidden} hidden channels; it must be 1 or more.")
        super().__init__("dni")
        self.options = options or LearningOptions()
        self.hidden = hidden
        self.needs_targets = labels
        self.classes = classes
        self._seen: dict[Site, list[SeenCall]] = {}
        self._samples: dict[Site, int] = {}
        self._watched: dict[Site, bool] = {}  # whether autograd was on

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Build the networks, without touching the global random state."""
        super().bind(sites, norms)
        self._classes = class_count(sites, self.classes) if self.needs_targets else 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.options.seed)
            networks = [SyntheticNetwork(site, self.hidden, self._classes) for site in sites]
        self.networks = nn.ModuleList(networks).to(sites[0].weight.device, torch.float32)
        self.learner = Learner(self.networks, self.options)

    def demand(self, calls: Sequence[TrialCall], outputs: Sequence[Size]) -> Demand:
        """Return what the networks and their two moments of Adam take; learning is counted as three predictions."""
        numbers = sum(weight.numel() for weight in self.networks.parameters())
        macs = sum(2 * self.hidden * _taps(call.site) * call.output.numel() for call in calls)
        # Copies of the outputs, and their true gradients.
        copies = 2 * NUMBER_BYTES * sum(call.output.numel() for call in calls)
        return Demand(
            3 * NUMBER_BYTES * numbers,
            bp_bytes=copies + NUMBER_BYTES * numbers,
            bp_macs=3 * macs,
            gp_macs=macs + weight_gradient_macs(calls),
        )

    def begin(self, context: BatchContext) -> None:
        """Keep the labels."""
        self._context = context
        self._shares: Tensor | None = None
        if self.needs_targets:
            self.see_targets(context.targets)

    def see_targets(self, targets: Any) -> None:
        """Keep the labels of the micro-batch that follows."""
        self._shares = class_shares(targets, self._classes)
        self._samples.clear()

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Predict at once if the site is served (or measured); else keep the output until its gradient is there."""
        served = site in self._context.replaced
        shares = self._shares_of(site, output.shape)
        if served or self._context.measured:
            self.add(site, weight_gradient(site, inputs[0], self._predict(site, output, shares)))
        if served:
            return None
        self._watched[site] = torch.is_grad_enabled()
        if not output.requires_grad:
            return None
        copy = output.detach().clone()  # the next layer may change it in place

        def receive(gradient: Tensor) -> None:
            self._seen.setdefault(site, []).append((copy, gradient / self._context.scale, shares))

        return on_gradient(output, receive)

    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
        """Take one step on the sum of the sites' mean squared errors."""
        self.prepare_learning(sites, gradients)()

    @torch.enable_grad()
    def prepare_learning(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> Callable[[], None]:
        """Differentiate the sum of the sites' mean squared errors; a step follows."""
        self.check_gradients_seen(sites, self._watched, self._seen)
        losses: list[Tensor] = []
        scales: dict[SyntheticNetwork, tuple[Tensor, Tensor]] = {}
        for site in sites:
            calls = self._seen.get(site)
            if calls:
                network = self._network(site)
                outputs, truths, _ = zip(*calls, strict=True)
                scales[network] = network.rescaled(outputs, truths)
                losses.append(_mean_squared_error(network, calls, *scales[network]))
        if not losses:
            return lambda: None
        loss = self.learner.differentiate(torch.stack(losses).sum())

        def learn() -> None:
            for network, (input_scale, scale) in scales.items():
                network.count += 1
                network.input_scale.copy_(input_scale)
                network.scale.copy_(scale)
            self.learner.step(loss)

        return learn

    def forget(self) -> None:
        """Drop what was kept of this batch."""
        super().forget()
        self._seen.clear()
        self._samples.clear()
        self._watched.clear()

    def _network(self, site: Site) -> SyntheticNetwork:
        network = self.networks[site.index]
        assert isinstance(network, SyntheticNetwork)
        return network

    def _shares_of(self, site: Site, shape: Size) -> Tensor | None:
        """Return the classes of the samples in a forward call; micro-batches take consecutive parts of the targets."""
        if self._shares is None:
            return None
        axis = self._sample_axis(site, shape)
        samples, shares = shape[axis], self._shares
        if samples != len(shares):
            first = self._samples.get(site, 0) % len(shares)
            self._samples[site] = first + samples
            shares = shares[first : first + samples]
        if site.rule.kind != "linear":
            return shares
        return shares.view(*[1] * axis, samples, *[1] * (len(shape) - 2 - axis), -1)

    def _sample_axis(self, site: Site, shape: Size) -> int:
        """Return the axis of a site's output that counts the samples: the first, or of linear layers the second.

        Raises DataError if no axis fits the targets, and ModelError if both do and no `batch_first` attribute decides.
        """
        assert self._shares is not None
        targets, first = len(self._shares), self._samples.get(site, 0) % max(1, len(self._shares))
        fitting = _fitting_axes(site, shape, targets, first)
        if not fitting:
            raise DataError(
                f"site '{site.name}' was called with {shape[0]} samples after {first} of {targets} targets: the "
                "labels cannot be assigned to them. Give the targets of the whole batch, and its micro-batches in "
                "the same order."
            )
        if len(fitting) == 1:
            return fitting[0]
        if site.sequence_first is None:
            raise ModelError(
                f"site '{site.name}' has an output of the sizes {tuple(shape)}, and there are {targets} targets: "
                f"adagp cannot tell which axis counts the samples. {SAY_SAMPLE_AXIS}"
            )
        return int(site.sequence_first)

    @torch.no_grad()
    def _predict(self, site: Site, output: Tensor, shares: Tensor | None) -> Tensor:
        network = self._network(site)
        with torch.autocast(output.device.type, enabled=False):
            prediction: Tensor = network(output.detach(), shares)
        return prediction * network.scale


def _fitting_axes(site: Site, shape: Size, targets: int, first: int) -> list[int]:
    """Return the axes of a site's output that have as many samples as targets; if none has, at most those from `first` on."""
    axes = range(2 if site.rule.kind == "linear" and len(shape) == 3 else 1)
    whole = [axis for axis in axes if shape[axis] == targets]
    return whole or [axis for axis in axes if first + shape[axis] <= targets]


def _taps(site: Site) -> int:
    """Return the positions that a layer of the site's network looks at."""
    return 1 if site.rule.kind == "linear" else 3 ** (site.weight.dim() - 2)


def _mean_squared_error(
    network: SyntheticNetwork, calls: Sequence[SeenCall], input_scale: Tensor, scale: Tensor
) -> Tensor:
    """Return the error over all calls of a batch: micro-batches have the one of the whole batch."""
    errors = [
        F.mse_loss(network(output, shares, input_scale), truth.float() / scale.clamp(min=1e-30), reduction="sum")
        for output, truth, shares in calls
    ]
    return torch.stack(errors).sum() / sum(truth.numel() for _, truth, _ in calls)


class LabelledSyntheticSource(SyntheticSource):
    """Synthetic gradients by networks that also see the labels."""

    def __init__(self, options: LearningOptions | None = None, hidden: int = 32, classes: int | None = None) -> None:
        super().__init__(options, hidden, labels=True, classes=classes)


class _ReplacedGradient(torch.autograd.Function):
    """A layer's output, whose gradient is replaced by what `receive` returns for it on its way down."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor, receive: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.receive = receive
        return output.clone()  # the layers above may change it in place

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.receive(gradient), None, None


class DecoupledSource(SyntheticSource):
    """Synthetic gradients in every batch, as published: no layer waits for a true gradient, so none is ever needed.

    Each layer below the last is trained with its network's prediction, which also goes on to the layer below. What arrives
    there is the target of that layer's network (bootstrapping). Only the last layer sees the gradient of the loss itself.
    """

    needs_backward = True

    def __init__(
        self, options: LearningOptions | None = None, hidden: int = 32, labels: bool = False, classes: int | None = None
    ) -> None:
        super().__init__(options, hidden, labels, classes)
        self._is_last = True
        self._learn: Callable[[], None] = lambda: None

    def demand(self, calls: Sequence[TrialCall], outputs: Sequence[Size]) -> Demand:
        """Return what the networks take, which learn in every batch, and the backward pass that goes on below them."""
        networks = super().demand(calls, outputs)
        return replace(
            networks,
            gp_bytes=kept_inputs(calls) + networks.bp_bytes,
            gp_macs=networks.gp_macs + networks.bp_macs + chain_macs(calls),
        )

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Return the output with a backward pass that goes on with the predicted gradient."""
        if site not in self._context.replaced or not torch.is_grad_enabled():
            return super().watch(site, inputs, output)
        shares, stored, scale = self._shares_of(site, output.shape), Kept(site, inputs), self._context.scale
        copy = output.detach().clone()
        self._is_last = True  # until the backward pass of this micro-batch begins

        def receive(gradient: Tensor) -> Tensor:
            self._seen.setdefault(site, []).append((copy, gradient / scale, shares))
            used = gradient if self._is_last else self._predict(site, copy, shares).to(gradient.dtype) * scale
            self._is_last = False
            self.add(site, weight_gradient(site, stored.get(), used) / scale)
            return used

        anchor = torch.zeros((), requires_grad=True)  # so that the first layer's output needs a gradient, too
        result: Tensor = _ReplacedGradient.apply(output, anchor, receive)  # type: ignore[no-untyped-call]
        return result

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return the gradients of the sites that were called; their networks learn from what arrived there."""
        gradients = super().produce(sites)
        served = [site for site in sites if site in self._seen and site in self._context.replaced]
        self._learn = self.prepare_learning(served, [])
        return gradients

    def accept(self) -> None:
        """Let the networks learn."""
        self._learn()

    def forget(self) -> None:
        """Drop what was kept of this batch."""
        super().forget()
        self._learn = lambda: None
