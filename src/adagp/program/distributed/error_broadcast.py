"""The error at the model's output in a pipeline: the last stage broadcasts its features, each stage passes them to its source.

In one process a batch is one forward call. In a pipeline it is several micro-batches, and their errors are all known when the
last stage has processed the last one. Until then a stage keeps the inputs of its sites (and the gradients at their outputs, if
the source learns from them). It then passes them to the source as one call (`ErrorSource.catch_up`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Size, Tensor

from adagp.core.plan import BACKPROP, BACKPROP_ALL, Plan
from adagp.layers.sites import Site
from adagp.pipe.actions import FORWARD, Program
from adagp.program.distributed.placement import StagePlacement
from adagp.program.distributed.processes import World
from adagp.sources.base import on_gradient
from adagp.sources.local import Kept
from adagp.sources.pipeline import ErrorSource, SiteCall


@dataclass
class _MicroBatchCall:
    """One forward call of a site in a micro-batch; see `SiteCall`."""

    site: Site
    shape: Size
    inputs: Kept | None = None
    gradient: Tensor | None = None
    produce: bool = False
    observe: bool = False


class ErrorBroadcast:
    """The calls of this process's sites in the running batches, by stage and micro-batch, and the features of their errors.

    Micro-batches are numbered through the batches of a window. `outputs` are the model's outputs for one micro-batch, for their
    shapes; `shares` the micro-batches of a batch that each device computes on the last stage; `measured` returns whether
    predictions for the sites that are trained by backprop are needed, too.
    """

    def __init__(
        self,
        source: ErrorSource,
        placement: StagePlacement,
        world: World,
        outputs: Sequence[Tensor],
        shares: Sequence[Sequence[int]],
        device: torch.device,
        measured: Callable[[], bool],
    ) -> None:
        self.source = source
        self._measured = measured
        self._placement, self._world = placement, world
        self._micro_batches = sum(map(len, shares))
        self._shares = shares
        floating = [output for output in outputs if output.is_floating_point()]
        empty = [torch.zeros(output.shape, dtype=output.dtype, device=device) for output in floating]
        self._like = source.features_of(empty, empty)
        self._calls: dict[tuple[int, int], list[_MicroBatchCall]] = {}
        self._features: dict[int, Tensor] = {}
        self._whole: dict[int, Tensor] = {}
        self._current: tuple[int, int] = (0, 0)
        self._plan = BACKPROP_ALL

    # During the passes.

    def begin(self, stage: int, number: int, plan: Plan) -> None:
        """Assign the calls that follow to a stage's micro-batch."""
        self._current, self._plan = (stage, number), plan
        self._calls[self._current] = []

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Keep the input, and later the gradient at the output, if the source needs them."""
        served = self._plan.source_of(site.name) != BACKPROP
        call = _MicroBatchCall(site, output.shape, produce=served or self._measured())
        call.observe = self.source.wants_inputs and not served
        if call.produce or call.observe:
            call.inputs = Kept(site, inputs)
        self._calls[self._current].append(call)
        if served or not self.source.wants_gradients:
            return None

        def receive(gradient: Tensor) -> None:
            call.gradient = gradient  # set twice, to the same value, if the backward pass is done in two parts

        return on_gradient(output, receive)

    def note_error(self, number: int, errors: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Keep the features of a micro-batch: of the model's floating-point outputs, and of the loss's gradients there."""
        self._features[number] = self.source.features_of(errors, outputs)

    # When a stage is updated.

    def is_needed(self, plan: Plan) -> bool:
        """Return whether the source needs the error of a batch with this plan."""
        sources = {plan.default, *plan.by_site.values()}
        return sources != {BACKPROP} or self.source.wants_inputs or self.source.wants_gradients or self._measured()

    def show(self, stages: Sequence[int], batch: int) -> None:
        """Pass the calls of some stages in a batch to the source; all processes must do this in the same order of batches."""
        if batch not in self._whole:
            self._exchange(batch)
        numbers = range(batch * self._micro_batches, (batch + 1) * self._micro_batches)
        for stage in stages:
            local_numbers = [number for number in numbers if (stage, number) in self._calls]
            features = torch.cat([self._features[number] for number in local_numbers])
            complete = len(local_numbers) == len(numbers) and self._placement.replicas == 1
            by_site = zip(*(self._calls.pop((stage, number)) for number in local_numbers), strict=True)
            calls = [_joined(calls, len(self._like)) for calls in by_site]
            self.source.catch_up(features, calls, None if complete else self._whole[batch])

    def end(self) -> None:
        """Forget the batches of a window."""
        self._features.clear()
        self._whole.clear()
        self._calls.clear()

    def _exchange(self, batch: int) -> None:
        first = batch * self._micro_batches
        for device, share in enumerate(self._shares):
            if not share:
                continue
            numbers = [first + number for number in share]
            if device == self._placement.device:
                features = torch.cat([self._features[number] for number in numbers])
                self._world.count("error features", features.numel() * features.element_size())
            else:
                features = self._like.new_empty((len(share) * len(self._like), *self._like.shape[1:]))
            with self._world.waiting():
                dist.broadcast(features, self._placement.peers[device], group=self._placement.pipeline)
            self._features |= dict(zip(numbers, features.split(len(self._like)), strict=True))
        whole = torch.cat([self._features[first + number] for number in range(self._micro_batches)])
        if self._placement.replicas > 1:
            parts = [torch.empty_like(whole) for _ in range(self._placement.replicas)]
            self._world.count("error features", whole.numel() * whole.element_size())
            dist.all_gather(parts, whole, group=self._placement.data)
            whole = torch.cat(parts)
        self._whole[batch] = whole


def last_stage_shares(program: Program) -> list[list[int]]:
    """Return the micro-batches of a batch that each device computes on the last stage."""
    last = program.stages - 1
    return [
        sorted(
            number for stage, kind, number in row if (stage, kind) == (last, FORWARD) and number < program.micro_batches
        )
        for row in program.devices
    ]


def _joined(calls: Sequence[_MicroBatchCall], samples: int) -> SiteCall:
    first = calls[0]
    axis = _sample_axis(first.site, first.shape, samples)
    shape = Size((*first.shape[:axis], len(calls) * first.shape[axis], *first.shape[axis + 1 :]))
    inputs = [call.inputs.get() for call in calls if call.inputs is not None]
    gradients = [call.gradient for call in calls if call.gradient is not None]
    return SiteCall(
        first.site,
        shape,
        Kept(first.site, (torch.cat(inputs, axis),)) if inputs else None,
        torch.cat(gradients, axis) if len(gradients) == len(calls) else None,
        first.produce,
        first.observe,
    )


def _sample_axis(site: Site, shape: Size, samples: int) -> int:
    if len(shape) < 3 or site.rule.kind != "linear" or shape[1] != samples:
        return 0
    return 1 if shape[0] != samples or site.sequence_first else 0
