"""The source `feedback` in a pipeline: the last stage broadcasts the error's features, each stage looks at what it has kept.

One process sees a batch as one forward call. In a pipeline it is several micro-batches, and the error of all of them is
known when the last stage has done the last one. Until then a stage keeps the inputs of its sites (of BP batches the
gradients at their outputs as well, where they are to be learned from); then they are shown to the source as one call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Size, Tensor

from adagp.core.plan import BACKPROP, BACKPROP_ALL, Plan
from adagp.layers.sites import Site
from adagp.papers.feedback.source import FeedbackSource, Seen
from adagp.pipe.actions import FORWARD, Program
from adagp.program.distributed.placement import StagePlacement
from adagp.program.distributed.processes import World
from adagp.sources.support.local import Kept
from adagp.sources.support.taps import on_gradient


@dataclass
class _Sight:
    """One forward call of a site in a micro-batch."""

    site: Site
    shape: Size
    inputs: Kept | None = None
    gradient: Tensor | None = None
    predicts: bool = False
    corrects: bool = False


class ErrorBroadcast:
    """What this process has seen of the batches under way, by stage and micro-batch, and the features of their errors.

    Micro-batches are numbered through the batches of a window. `outputs` tell what the model returns for one; `shares` says
    which of a batch's micro-batches each device does on the last stage; `measured`, whether predictions for the sites that
    are trained by backprop are wanted, too.
    """

    def __init__(
        self,
        source: FeedbackSource,
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
        empty = [torch.zeros(one.shape, dtype=one.dtype, device=device) for one in outputs if one.is_floating_point()]
        self._like = source.features_of(empty)
        self._sights: dict[tuple[int, int], list[_Sight]] = {}
        self._features: dict[int, Tensor] = {}
        self._whole: dict[int, Tensor] = {}
        self._at: tuple[int, int] = (0, 0)
        self._plan = BACKPROP_ALL

    # During the passes.

    def begin(self, stage: int, number: int, plan: Plan) -> None:
        """Take note that what is watched from now on belongs to a stage's micro-batch."""
        self._at, self._plan = (stage, number), plan
        self._sights[self._at] = []

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Keep the input, and wait for the gradient at the output, as far as the source wants them."""
        served = self._plan.source_of(site.name) != BACKPROP
        sight = _Sight(site, output.shape, predicts=served or self._measured())
        sight.corrects = self.source.wants_inputs and not served
        if sight.predicts or sight.corrects:
            sight.inputs = Kept(site, inputs)
        self._sights[self._at].append(sight)
        if served or not self.source.wants_gradients:
            return None

        def receive(gradient: Tensor) -> None:
            sight.gradient = gradient  # once more, and the same, where a backward is done in two parts

        return on_gradient(output, receive)

    def note_error(self, number: int, errors: Sequence[Tensor]) -> None:
        """Take note of the loss's gradients at the model's outputs for a micro-batch."""
        self._features[number] = self.source.features_of(errors)

    # When a stage is updated.

    def wanted(self, plan: Plan) -> bool:
        """Tell whether the source looks at a batch of this plan at all."""
        sources = {plan.default, *plan.by_site.values()}
        return sources != {BACKPROP} or self.source.wants_inputs or self.source.wants_gradients or self._measured()

    def show(self, stages: Sequence[int], batch: int) -> None:
        """Show the source what was kept of some stages in a batch; all processes must ask for the batch, in one order."""
        if batch not in self._whole:
            self._share(batch)
        numbers = range(batch * self._micro_batches, (batch + 1) * self._micro_batches)
        for stage in stages:
            own = [number for number in numbers if (stage, number) in self._sights]
            features = torch.cat([self._features[number] for number in own])
            alone = len(own) == len(numbers) and self._placement.replicas == 1
            seen = [_joined(calls, len(self._like)) for calls in self._calls(stage, own)]
            self.source.catch_up(features, seen, None if alone else self._whole[batch])

    def end(self) -> None:
        """Forget the batches of a window."""
        self._features.clear()
        self._whole.clear()
        self._sights.clear()

    def _calls(self, stage: int, numbers: Sequence[int]) -> list[tuple[_Sight, ...]]:
        """Return the calls of a stage's sites in all micro-batches, those that belong together side by side."""
        return list(zip(*(self._sights.pop((stage, number)) for number in numbers), strict=True))

    def _share(self, batch: int) -> None:
        """Exchange the features of a batch: along the pipeline, then between its copies."""
        first = batch * self._micro_batches
        for device, share in enumerate(self._shares):
            if not share:
                continue
            mine = device == self._placement.device
            numbers = [first + one for one in share]
            if mine:
                features = torch.cat([self._features[number] for number in numbers])
                self._world.count("error features", features.numel() * features.element_size())
            else:
                features = self._like.new_empty((len(share) * len(self._like), *self._like.shape[1:]))
            with self._world.waiting():
                dist.broadcast(features, self._placement.peers[device], group=self._placement.pipeline)
            self._features |= dict(zip(numbers, features.split(len(self._like)), strict=True))
        whole = torch.cat([self._features[first + one] for one in range(self._micro_batches)])
        if self._placement.replicas > 1:
            parts = [torch.empty_like(whole) for _ in range(self._placement.replicas)]
            self._world.count("error features", whole.numel() * whole.element_size())
            dist.all_gather(parts, whole, group=self._placement.data)
            whole = torch.cat(parts)
        self._whole[batch] = whole


def last_stage_shares(program: Program) -> list[list[int]]:
    """Return which micro-batches of a batch each device does on the last stage."""
    last = program.stages - 1
    return [
        sorted(
            number for stage, kind, number in row if (stage, kind) == (last, FORWARD) and number < program.micro_batches
        )
        for row in program.devices
    ]


def _joined(calls: Sequence[_Sight], samples: int) -> Seen:
    """Return the calls of one site in several micro-batches of `samples` each as one."""
    first = calls[0]
    axis = _sample_axis(first.site, first.shape, samples)
    shape = Size((*first.shape[:axis], len(calls) * first.shape[axis], *first.shape[axis + 1 :]))
    inputs = [one.inputs.get() for one in calls if one.inputs is not None]
    gradients = [one.gradient for one in calls if one.gradient is not None]
    return Seen(
        first.site,
        shape,
        Kept(first.site, (torch.cat(inputs, axis),)) if inputs else None,
        torch.cat(gradients, axis) if len(gradients) == len(calls) else None,
        first.predicts,
        first.corrects,
    )


def _sample_axis(site: Site, shape: Size, samples: int) -> int:
    """Return the axis of a site's input and output that counts the samples."""
    if len(shape) < 3 or site.rule.kind != "linear" or shape[1] != samples:
        return 0
    return 1 if shape[0] != samples or site.sequence_first else 0
