"""What all batches of a run share."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from adagp.engine.arithmetic import Arithmetic
from adagp.engine.densities import DensityMeter
from adagp.engine.guard import Guard, Refusals
from adagp.engine.hooks import ModelHooks
from adagp.engine.processes import Processes
from adagp.engine.quality import QualityMeter
from adagp.engine.reach import Reach
from adagp.engine.weight_update import WeightUpdateHook
from adagp.layers.sites import Survey
from adagp.sources.base import Source
from adagp.sources.support.norms import RunningNorms


@dataclass(frozen=True)
class TrainingSetup:
    """What all batches of a run share. `adapts` says that the schedule wants predictions measured in every BP batch.

    `weight_hooks` are called after each step of the optimizers; `densities` are measured where there are some.
    """

    model: nn.Module
    survey: Survey
    optimizers: tuple[torch.optim.Optimizer, ...]
    scaler: torch.amp.GradScaler
    sources: Mapping[str, Source]
    hooks: ModelHooks
    guard: Guard
    refusals: Refusals
    reach: Reach
    norms: RunningNorms
    quality: QualityMeter
    processes: Processes
    device: torch.device
    adapts: bool
    arithmetic: Arithmetic | None = None
    weight_hooks: tuple[WeightUpdateHook, ...] = ()
    densities: DensityMeter | None = None

    @property
    def learners(self) -> list[Source]:
        """The sources that learn from BP batches."""
        return [source for source in self.sources.values() if source.learns]

    @contextmanager
    def beside_training(self) -> Iterator[None]:
        """Let nobody watch the model inside the context, and leave its arithmetic alone."""
        with ExitStack() as stack:
            stack.enter_context(self.hooks.suspended())
            if self.arithmetic is not None:
                stack.enter_context(self.arithmetic.paused())
            yield

    def foreign(self) -> list[nn.Parameter]:
        """Return the parameters that the optimizers have and the model has not: of a loss, for instance."""
        own = {id(one) for one in self.model.parameters()}
        groups = (group for optimizer in self.optimizers for group in optimizer.param_groups)
        return [one for group in groups for one in group["params"] if id(one) not in own]

    def drop_gradients(self) -> None:
        """Take all gradients away."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
