"""A weighted sum of sources: what one lacks, another may have."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Size, Tensor

from adagp.errors import OptionError
from adagp.layers.shards import laid_like, whole
from adagp.layers.sites import Site
from adagp.papers.feedback.source import FeedbackSource
from adagp.sources.base import BatchContext, ModelCall, Rounds, RunFacts, Source, in_step
from adagp.sources.remembered import ReplaySource
from adagp.sources.support.norms import RunningNorms


class MixedSource(Source):
    """Adds up the gradients of several sources, each with its weight. A site needs an answer of all of them."""

    takes_spread = True

    def __init__(self, parts: Sequence[tuple[Source, float]]) -> None:
        if not parts:
            raise OptionError("a mixture needs at least one source.")
        self.parts = tuple(parts)
        self.learns = any(source.learns for source, _ in self.parts)
        self.needs_targets = any(source.needs_targets for source, _ in self.parts)
        self.needs_error = any(source.needs_error for source, _ in self.parts)
        self.needs_backward = any(source.needs_backward for source, _ in self.parts)
        self.needs_shapes = any(source.needs_shapes for source, _ in self.parts)
        self.joins = all(source.joins for source, _ in self.parts)

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Let each part know the sites."""
        for source, _ in self.parts:
            source.bind(sites, norms)

    def prepare(self, shapes: Mapping[Site, Size]) -> None:
        """Show the shapes to each part."""
        for source, _ in self.parts:
            source.prepare(shapes)

    def begin(self, context: BatchContext) -> None:
        """Begin the batch for each part."""
        for source, _ in self.parts:
            source.begin(context)

    def see_targets(self, targets: Any) -> None:
        """Show the targets to the parts that look at them."""
        for source, _ in self.parts:
            if source.needs_targets:
                source.see_targets(targets)

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Show the call to each part."""
        changed = None
        for source, _ in self.parts:
            replacement = source.watch(site, inputs, output if changed is None else changed)
            changed = changed if replacement is None else replacement
        return changed

    def enter(self, call: ModelCall) -> None:
        """Tell the parts that need errors of the call."""
        for source, _ in self.parts:
            if source.needs_error:
                source.enter(call)

    def leave(self, call: ModelCall, outputs: Sequence[Tensor]) -> None:
        """Show the outputs to the parts that need errors."""
        for source, _ in self.parts:
            if source.needs_error:
                source.leave(call, outputs)

    def observe_error(self, call: ModelCall) -> None:
        """Show the errors to the parts that need them."""
        for source, _ in self.parts:
            if source.needs_error:
                source.observe_error(call)

    def join(self, sites: Sequence[Site]) -> Rounds:
        """Let the parts join theirs, in step."""
        return in_step(source.join(sites) for source, _ in self.parts)

    @torch.no_grad()
    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return the weighted sums."""
        given = [source.produce(sites) for source, _ in self.parts]
        return [self._sum(site, answers) for site, *answers in zip(sites, *given, strict=True)]

    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
        """Let the parts that learn do so."""
        for source, _ in self.parts:
            if source.learns:
                source.observe(sites, gradients if source.takes_spread else [whole(one) for one in gradients])

    def forget(self) -> None:
        """End the batch for each part."""
        for source, _ in self.parts:
            source.forget()

    def end_epoch(self) -> None:
        """End the epoch for each part."""
        for source, _ in self.parts:
            source.end_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the parts."""
        return {"parts": [source.state_dict() for source, _ in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        for (source, _), one in zip(self.parts, state["parts"], strict=True):
            source.load_state_dict(one)

    def _sum(self, site: Site, answers: Sequence[Tensor | None]) -> Tensor | None:
        # Where parts do not join theirs, the engine averages, and needs whole gradients for it.
        known = [laid_like(one, site.weight) if self.joins else whole(one) for one in answers if one is not None]
        if len(known) < len(answers):
            return None
        total = known[0] * self.parts[0][1]
        for one, (_, weight) in zip(known[1:], self.parts[1:], strict=True):
            total.add_(one, alpha=weight)
        return total


class FeedbackReplaySource(MixedSource):
    """`share` of feedback and the rest of replay: two estimates of one gradient with errors of different kinds."""

    def __init__(self, feedback: FeedbackSource | None = None, share: float = 0.5) -> None:
        if not 0 <= share <= 1:
            raise OptionError(f"feedback's share in the mixture is {share}; it must be 0 to 1.")
        super().__init__([(feedback or FeedbackSource(), share), (ReplaySource(), 1 - share)])

    @classmethod
    def build(cls, run: RunFacts, **options: Any) -> Self:
        """Return the mean of both, with feedback's options."""
        return cls(FeedbackSource.build(run, **options))
