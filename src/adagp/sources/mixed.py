"""A weighted sum of several sources."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Size, Tensor

from adagp.errors import OptionError
from adagp.layers.sites import Site
from adagp.layers.weights import sharded_like, whole
from adagp.sources.base import BatchContext, ModelCall, Rounds, RunningNorms, Source, in_step
from adagp.sources.demand import Demand, TrialCall, total


class MixedSource(Source):
    """Sums the gradients of several sources, each times its weight. A site gets one only if every part produces one."""

    takes_sharded = True

    def __init__(self, parts: Sequence[tuple[Source, float]]) -> None:
        if not parts:
            raise OptionError("a mixture needs at least one source.")
        self.parts = tuple(parts)
        for name in (
            "learns",
            "needs_targets",
            "needs_error",
            "needs_outputs",
            "needs_backward",
            "needs_shapes",
            "local",
        ):
            setattr(self, name, any(getattr(source, name) for source, _ in self.parts))
        self.traceable = all(source.traceable for source, _ in self.parts)
        self.joins = all(source.joins for source, _ in self.parts)

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Bind each part to the sites."""
        for source, _ in self.parts:
            source.bind(sites, norms)

    def prepare(self, shapes: Mapping[Site, Size]) -> None:
        """Pass the shapes to each part."""
        for source, _ in self.parts:
            source.prepare(shapes)

    def check_call(self, call: TrialCall, outputs: Sequence[Size]) -> None:
        """Raise if one of the parts cannot serve a call."""
        for source, _ in self.parts:
            source.check_call(call, outputs)

    def demand(self, calls: Sequence[TrialCall], outputs: Sequence[Size]) -> Demand | None:
        """Return the sum of the parts' demands; None if one is unknown."""
        return total([source.demand(calls, outputs) for source, _ in self.parts])

    def begin(self, context: BatchContext) -> None:
        """Begin the batch for each part."""
        for source, _ in self.parts:
            source.begin(context)

    def see_targets(self, targets: Any) -> None:
        """Pass the targets to the parts that need them."""
        for source, _ in self.parts:
            if source.needs_targets:
                source.see_targets(targets)

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Pass the call to each part; each continues with the output that the previous one returned."""
        changed = None
        for source, _ in self.parts:
            replacement = source.watch(site, inputs, output if changed is None else changed)
            changed = changed if replacement is None else replacement
        return changed

    def enter(self, call: ModelCall) -> None:
        """Pass the call to the parts that need errors."""
        for source, _ in self.parts:
            if source.needs_error:
                source.enter(call)

    def leave(self, call: ModelCall, outputs: Sequence[Tensor]) -> None:
        """Pass the outputs to the parts that need errors."""
        for source, _ in self.parts:
            if source.needs_error:
                source.leave(call, outputs)

    def observe_error(self, call: ModelCall) -> None:
        """Pass the errors to the parts that need them."""
        for source, _ in self.parts:
            if source.needs_error:
                source.observe_error(call)

    def join(self, sites: Sequence[Site]) -> Rounds:
        """Exchange for all parts, round by round."""
        return in_step(source.join(sites) for source, _ in self.parts)

    @torch.no_grad()
    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return the weighted sums."""
        produced = [source.produce(sites) for source, _ in self.parts]
        return [self._sum(site, gradients) for site, *gradients in zip(sites, *produced, strict=True)]

    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
        """Pass the true gradients to the parts that learn."""
        self.prepare_learning(sites, gradients)()

    def prepare_learning(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> Callable[[], None]:
        """Pass the true gradients to the parts that learn; return a function that calls what they return."""
        learners = [source for source, _ in self.parts if source.learns]
        updates = [
            source.prepare_learning(
                sites, gradients if source.takes_sharded else [whole(gradient) for gradient in gradients]
            )
            for source in learners
        ]

        def learn() -> None:
            for update in updates:
                update()

        return learn

    def accept(self) -> None:
        """Accept the batch for each part."""
        for source, _ in self.parts:
            source.accept()

    def discard(self) -> None:
        """Discard the batch for each part."""
        for source, _ in self.parts:
            source.discard()

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
        """Restore what `state_dict` returned."""
        for (source, _), part in zip(self.parts, state["parts"], strict=True):
            source.load_state_dict(part)

    def _sum(self, site: Site, gradients: Sequence[Tensor | None]) -> Tensor | None:
        # If some parts do not join, the engine averages the sums over the processes, and for that needs whole gradients.
        parts = [
            sharded_like(part, site.weight) if self.joins else whole(part) for part in gradients if part is not None
        ]
        if len(parts) < len(gradients):
            return None
        total = parts[0] * self.parts[0][1]
        for part, (_, weight) in zip(parts[1:], self.parts[1:], strict=True):
            total.add_(part, alpha=weight)
        return total
