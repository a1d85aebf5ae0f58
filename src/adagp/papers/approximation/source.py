"""The weight gradients of Wang and Nelaturu: from the few positions with the largest output gradient, or random."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Size, Tensor

from adagp.errors import OptionError
from adagp.layers.sites import Site
from adagp.sources.base import BatchContext, Rounds, RunFacts, on_gradient
from adagp.sources.controls import NormalSource
from adagp.sources.demand import Demand, TrialCall, chain_macs, kept_inputs
from adagp.sources.local import Geometry, Kept, LocalSource, batched, padded

Scale = Literal["unbiased", "published"]


@dataclass
class _BatchCall:
    """One call of a layer in a batch, over all micro-batches.

    A linear layer without a sequence chooses among the samples of the batch: its inputs and gradients wait until all are
    there. Other layers choose within a sample: their gradients are added up.
    """

    samples: int = 0
    gradient: Tensor | None = None
    rows: list[tuple[Kept, Tensor]] = field(default_factory=list)


class TopKSource(LocalSource):
    """Uses, for each sample and output channel, only the inputs under the `k` largest output gradients.

    Each of the k patches of the input is weighted by the gradient at its own position plus an equal share of the sum over all
    other positions. So the weights have the sum of the exact gradient's (`scale="unbiased"`); with k = 1 the position gets the
    whole sum, as published, and with k = all positions the result is exact. `scale="published"` divides by the batch size once
    more, as printed in the paper; a mean loss has done so already.

    Positions of a Linear are those of the sequence; without a sequence, the samples of the batch.
    """

    needs_backward = True
    needs_shapes = True

    def __init__(self, k: int = 1, scale: Scale = "unbiased") -> None:
        if k < 1:
            raise OptionError(f"topk keeps {k} positions; it must keep 1 or more.")
        if scale not in ("unbiased", "published"):
            raise OptionError(f"topk's scale is '{scale}'; it must be unbiased or published.")
        super().__init__("topk")
        self.k = k
        self.scale = scale
        self._calls: dict[tuple[Site, int], _BatchCall] = {}
        self._counts: dict[Site, int] = {}  # calls of each site in this micro-batch
        self._backward_began = False

    @classmethod
    def build(cls, run: RunFacts, *, k: int, published: bool) -> Self:  # type: ignore[override]  # its own options
        """Return the source with the options of method topk."""
        return cls(k, "published" if published else "unbiased")

    def prepare(self, shapes: Mapping[Site, Size]) -> None:
        """Check that every site has k positions or more."""
        for site, shape in shapes.items():
            self._check_positions(site, shape)

    def check_call(self, call: TrialCall, outputs: Sequence[Size]) -> None:
        """Check that the site has k positions or more."""
        super().check_call(call, outputs)
        self._check_positions(call.site, call.output)

    def demand(self, calls: Sequence[TrialCall], outputs: Sequence[Size]) -> Demand:
        """Return the backward pass through the layers, and k rows of the input for each sample and output channel."""
        chosen = sum(self.k * _choices(call) * call.site.weight.numel() for call in calls)
        return Demand(gp_bytes=kept_inputs(calls), gp_macs=chain_macs(calls) + chosen)

    def begin(self, context: BatchContext) -> None:
        """Keep the loss's scale."""
        self._context = context

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Keep the input, and take the gradient as soon as the backward pass has reached the output."""
        if self._backward_began:  # of the last micro-batch: this is the next one
            self._counts.clear()
            self._backward_began = False
        number = self._counts[site] = self._counts.get(site, 0) + 1
        chooses_samples = site.rule.kind == "linear" and output.dim() == 2
        if not chooses_samples:
            self._check_positions(site, output.shape)
        saved, samples = Kept(site, inputs), len(output)

        def receive(gradient: Tensor) -> None:
            self._backward_began = True
            call = self._calls.setdefault((site, number), _BatchCall())
            call.samples += samples
            if chooses_samples:
                call.rows.append((saved, gradient))
            else:
                found = topk_gradient(site, saved.get(), gradient, self.k)
                call.gradient = found if call.gradient is None else call.gradient + found

        return on_gradient(output, receive)

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return the gradients of the sites that were called."""
        for (site, _), call in self._calls.items():
            gradient = self._from_rows(site, call.rows) if call.gradient is None else call.gradient
            divisor = self._context.scale * (call.samples if self.scale == "published" else 1)
            self.add(site, gradient / divisor)
        self._calls.clear()
        return super().produce(sites)

    def forget(self) -> None:
        """Drop what was kept of this batch."""
        super().forget()
        self._calls.clear()
        self._counts.clear()
        self._backward_began = False

    def _from_rows(self, site: Site, rows: Sequence[tuple[Kept, Tensor]]) -> Tensor:
        inputs, gradients = (torch.cat(parts) for parts in zip(*((kept.get(), row) for kept, row in rows), strict=True))
        self._check_positions(site, gradients.shape)
        return topk_gradient(site, inputs, gradients, self.k)

    def _check_positions(self, site: Site, shape: Size) -> None:
        positions = prod(position_shape(site, shape))
        if self.k > positions:
            raise OptionError(
                f"topk keeps {self.k} positions, but the output {tuple(shape)} of site '{site.name}' "
                f"({type(site.module).__name__}) has only {positions}. Give a smaller k, or exclude the site."
            )


def _choices(call: TrialCall) -> int:
    """Return how often positions are chosen for an output channel: once a sample, or among the samples of the batch."""
    return 1 if call.site.rule.kind == "linear" and len(call.output) < 3 else call.output[0]


def position_shape(site: Site, shape: Size) -> tuple[int, ...]:
    """Return the axes of an output of `shape` among which positions are chosen."""
    if site.rule.kind == "conv":
        return tuple(shape[2 - site.weight.dim() :])
    return tuple(shape[1:-1] if len(shape) > 2 else shape[:-1])


@torch.no_grad()
def topk_gradient(site: Site, inputs: Tensor, gradient: Tensor, k: int) -> Tensor:
    """Return the weight gradient of `site` from the `k` positions with the largest |gradient| of each sample and channel."""
    inputs, gradient = inputs.to(site.weight.dtype), gradient.to(site.weight.dtype)
    if site.rule.kind == "linear":
        return site.from_outputs_first(_linear(inputs, gradient, k))
    return site.from_outputs_first(_convolution(site, batched(site, inputs), batched(site, gradient), k))


def choose(gradient: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the indices of the `k` largest magnitudes along the last axis, and their weights: value + share of the rest."""
    if k == 1:
        return _largest(gradient), gradient.sum(-1, keepdim=True)  # the rest goes to the one position
    positions = gradient.abs().topk(k, dim=-1, sorted=False).indices
    values = gradient.gather(-1, positions)
    rest = gradient.sum(-1, keepdim=True) - values.sum(-1, keepdim=True)
    return positions, values + rest / k


def _largest(gradient: Tensor) -> Tensor:
    """Return the index of the largest magnitude along the last axis of `(samples, channels, positions)`.

    If channels are last in memory, max pooling over all positions works on many channels at a time, and takes a quarter to a
    half of the time of a maximum along the axis.
    """
    magnitudes = gradient.abs()
    if magnitudes.stride(-1) == 1:
        return magnitudes.max(-1, keepdim=True).indices
    return F.max_pool2d(magnitudes[:, :, None], (1, magnitudes.shape[-1]), return_indices=True)[1][:, :, 0]


def _linear(inputs: Tensor, gradient: Tensor, k: int) -> Tensor:
    """Return the sum over the chosen rows of the input: an embedding bag for each output neuron."""
    samples = len(gradient) if gradient.dim() > 2 else 1
    flat = gradient.reshape(samples, -1, gradient.shape[-1])  # samples, positions, neurons
    positions, weights = choose(flat.transpose(1, 2), k)
    rows = positions + flat.shape[1] * torch.arange(samples, device=positions.device)[:, None, None]
    bags, factors = (chosen.transpose(0, 1).reshape(flat.shape[2], -1) for chosen in (rows, weights))
    return _bag_sums(inputs.reshape(-1, inputs.shape[-1]), bags, factors)


def _convolution(site: Site, inputs: Tensor, gradient: Tensor, k: int) -> Tensor:
    """Return the sum over the input patches under the chosen positions: an embedding bag for each tap and output channel.

    The input becomes a table of rows of channels, one row for each pixel (of a group), so that a patch's tap is one row.
    """
    inputs, geometry = padded(site.module, inputs)
    samples, channels, kernel = len(inputs), site.rows, site.weight.shape[2:]
    positions, weights = (chosen.transpose(0, 1).reshape(-1) for chosen in choose(gradient.flatten(2), k))
    pixels, inside = _pixels_under_taps(geometry, inputs.shape[2:], gradient.shape[2:], kernel, positions.device)
    first = _first_rows(samples, channels, geometry.groups, k, inputs.shape[2:].numel(), positions.device)
    rows = pixels.gather(1, positions.expand(len(pixels), -1)).add_(first)  # half of the time of index_select
    factors = inside.to(weights.dtype).index_select(1, positions).mul_(weights)
    per_group = inputs.shape[1] // geometry.groups
    table = inputs.unflatten(1, (geometry.groups, per_group)).movedim(2, -1).reshape(-1, per_group)
    sums = _bag_sums(table, rows.view(-1, samples * k), factors.view(-1, samples * k))
    return sums.view(*kernel, channels, per_group).movedim((-2, -1), (0, 1)).contiguous()


@lru_cache(maxsize=256)
def _pixels_under_taps(
    geometry: Geometry, inputs: Size, outputs: Size, kernel: Size, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return `(taps, positions)`: the input's pixel under each tap at each output position, and 1 where it is inside."""
    taps = torch.unravel_index(torch.arange(kernel.numel(), device=device)[:, None], kernel)
    positions = torch.unravel_index(torch.arange(outputs.numel(), device=device), outputs)
    pixels = torch.zeros(kernel.numel(), outputs.numel(), dtype=torch.long, device=device)
    inside = torch.ones_like(pixels, dtype=torch.bool)
    steps = zip(geometry.stride, geometry.padding, geometry.dilation, strict=True)
    for tap, position, size, (stride, padding, dilation) in zip(taps, positions, inputs, steps, strict=True):
        if geometry.transposed:  # pixels are `stride` output positions apart
            pixel = position + padding - tap * dilation
            inside &= pixel % stride == 0
            pixel = pixel // stride
        else:
            pixel = position * stride + tap * dilation - padding
        inside &= (pixel >= 0) & (pixel < size)
        pixels = pixels * size + pixel.clamp(0, size - 1)
    return pixels, inside.float()


@lru_cache(maxsize=256)
def _first_rows(samples: int, channels: int, groups: int, k: int, pixels: int, device: torch.device) -> Tensor:
    """Return the row of the first pixel of its group for each channel, sample and chosen position."""
    group = torch.arange(channels, device=device)[:, None] // (channels // groups)
    sample = torch.arange(samples, device=device).repeat_interleave(k)
    return ((sample * groups + group) * pixels).flatten()


def _bag_sums(rows: Tensor, bags: Tensor, weights: Tensor) -> Tensor:
    return F.embedding_bag(bags.contiguous(), rows, mode="sum", per_sample_weights=weights.contiguous())


class RandomSource(NormalSource):
    """Normal, mean 0, standard deviation 1 / batch size."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._samples: dict[Site, int] = {}

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Count the samples. Micro-batches add up; a layer that is called twice with the batch counts it twice."""
        is_single = output.dim() < (2 if site.rule.kind == "linear" else site.weight.dim())
        self._samples[site] = self._samples.get(site, 0) + (1 if is_single else output.shape[0])

    def join(self, sites: Sequence[Site]) -> Rounds:
        """Count the samples of all processes."""
        counts = torch.tensor([float(self._samples.get(site, 0)) for site in sites], device=sites[0].weight.device)
        yield [counts]
        self._samples |= {site: int(count) for site, count in zip(sites, counts.tolist(), strict=True) if count}

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return random gradients for the sites that were called."""
        drawn = self.normal(sites)
        return [
            gradient.div_(self._samples[site]) if site in self._samples else None
            for site, gradient in zip(sites, drawn, strict=True)
        ]

    def forget(self) -> None:
        """Drop the counts of this batch."""
        self._samples.clear()
