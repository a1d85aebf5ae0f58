"""What one batch has to compute: its plan, resolved for the sites, sources and parameters of a run.

`BatchPlan` derives this from the plan. `FrozenParameters` switches `requires_grad` off for the parameters whose gradient
autograd need not compute.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adagp.core.plan import BACKPROP, Plan
from adagp.engine.distributed import Processes
from adagp.engine.extensions import Arithmetic, WeightUpdateHook
from adagp.engine.guard import ActingSources, BackpropCoverage, Guard, RejectionCounts
from adagp.engine.hooks import ModelHooks
from adagp.engine.metrics import DensityMeter, QualityMeter
from adagp.engine.model_checks import LossGraphCheck
from adagp.layers.sites import Site, Survey
from adagp.sources.base import Rounds, RunningNorms, Source


@dataclass(frozen=True)
class TrainingSetup:
    """What all batches of a run share. If the schedule `adapts`, predictions are measured in every BP batch.

    `weight_hooks` are called after each step of the optimizers; `densities` are measured only in runs with such hooks.
    """

    model: nn.Module
    survey: Survey
    optimizers: tuple[torch.optim.Optimizer, ...]
    scaler: torch.amp.GradScaler
    sources: Mapping[str, Source]
    hooks: ModelHooks
    guard: Guard
    rejections: RejectionCounts
    coverage: BackpropCoverage
    acting: ActingSources
    graph: LossGraphCheck
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
    def outside_training(self) -> Iterator[None]:
        """Hide the model's calls from all sources inside the context, and use torch's own arithmetic."""
        with ExitStack() as stack:
            stack.enter_context(self.hooks.suspended())
            if self.arithmetic is not None:
                stack.enter_context(self.arithmetic.paused())
            yield

    def outside_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the optimizers that do not belong to the model, for example those of a loss."""
        model_parameters = {id(parameter) for parameter in self.model.parameters()}
        groups = (group for optimizer in self.optimizers for group in optimizer.param_groups)
        return [parameter for group in groups for parameter in group["params"] if id(parameter) not in model_parameters]

    def drop_gradients(self) -> None:
        """Set all gradients to None."""
        # Not by optimizer.zero_grad(), which wrappers of optimizers may skip while they accumulate gradients.
        for parameter in self.optimized_parameters():
            parameter.grad = None

    def optimized_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of all optimizers."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]


class BatchPlan:
    """A plan, applied to the sites of a model.

    `by_backprop` are the sites that backprop trains, `served` the sites of each source by its name. `serving` are the sources
    of the plan, `learners` those that learn from the batch, and `in_use` both, by name. `sites` are by default all sites of the
    model; in a pipeline, a process passes those of its own stages. Sites that the user has frozen are left out.
    """

    def __init__(self, setup: TrainingSetup, plan: Plan, sites: Sequence[Site] | None = None) -> None:
        self._setup = setup
        self._plan = plan
        named = {site.name: site for site in (setup.survey.sites if sites is None else sites)}
        groups = {
            name: [named[site] for site in members if named[site].weight.requires_grad]
            for name, members in plan.sources(named).items()
        }
        self.by_backprop = groups.pop(BACKPROP, [])
        self.served = groups
        self.serving = [setup.sources[name] for name in groups]
        self.learners = setup.learners if self.by_backprop else []
        self.skips = any(source.skips for source in self.serving)
        self.served_sites = {site: setup.sources[name] for name, members in groups.items() for site in members}
        used = {*self.serving, *self.learners}
        self.in_use = {name: source for name, source in setup.sources.items() if source in used}

    @property
    def needs_backward(self) -> bool:
        """Whether the batch has a backward pass."""
        if self.by_backprop or not self.served or any(source.needs_backward for source in self.serving):
            return True
        return any(not self._plan.freezes(other.name) for other in self._setup.survey.rest)

    def frozen_parameters(self) -> list[nn.Parameter]:
        """Return the parameters to freeze during the batch. Without a backward pass these are all parameters of the model."""
        if self.skips:
            return []
        if not self.needs_backward:
            return list(self._setup.model.parameters())
        replaced = [site.weight for site in self.served_sites]
        if self.served and self._plan.hold_rest:
            replaced += self._setup.outside_parameters()
        return replaced + [other.parameter for other in self._setup.survey.rest if self._plan.freezes(other.name)]

    def exchanges(self) -> list[Rounds]:
        """Return the exchange between processes of each source, for the sites that it serves or learns from."""
        watched = {
            source: self.by_backprop if source in self.learners else [] for source in self._setup.sources.values()
        }
        for name, sites in self.served.items():
            watched[self._setup.sources[name]] = [*watched[self._setup.sources[name]], *sites]
        return [source.join(sites) for source, sites in watched.items() if sites]


class FrozenParameters:
    """Parameters whose `requires_grad` is off while a batch runs, so that autograd computes nothing for them.

    Autograd builds no graph below the lowest parameter that needs a gradient; if all are frozen, it builds none. Autograd
    itself stays enabled: gradients of inputs, or of another model, are computed as always. Parameters that the user has frozen
    stay frozen.

    If the user calls `requires_grad_()` of a parameter or a module inside the batch, the call is applied, and its value stays
    after the batch. Copies and saved files of the model have the `requires_grad` that the user set. Only an assignment
    `parameter.requires_grad = False` goes unnoticed, as it changes nothing.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._switches = [_Switch(parameter) for parameter in parameters if parameter.requires_grad]
        self._is_frozen = False

    def __len__(self) -> int:
        return len(self._switches)

    def freeze(self) -> None:
        """Switch `requires_grad` off."""
        self._switches = [switch for switch in self._switches if switch.parameter.requires_grad]
        for switch in self._switches:
            switch.freeze()
        self._is_frozen = True

    def unfreeze(self) -> None:
        """Switch `requires_grad` on again, if it is off."""
        if self._is_frozen:
            for switch in self._switches:
                switch.unfreeze()
        self._is_frozen = False

    @contextmanager
    def unfrozen(self) -> Iterator[None]:
        """Unfreeze them inside the context."""
        was_frozen = self._is_frozen
        self.unfreeze()
        try:
            yield
        finally:
            if was_frozen:
                self.freeze()


class _Switch:
    """Freezes one parameter.

    The methods in `_shadows` are attributes of the parameter object, where callers find them before those of its class. So the
    parameter keeps its class.
    """

    __slots__ = ("_shadows", "parameter", "wanted")

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        self.wanted = True
        self._shadows = {
            "requires_grad_": self._set_by_user,
            "__deepcopy__": self._deepcopy,
            "__reduce_ex__": self._reduce,
        }

    def freeze(self) -> None:
        self.parameter.requires_grad_(False)
        vars(self.parameter).update(self._shadows)

    def unfreeze(self) -> None:
        attributes = vars(self.parameter)
        for name in self._shadows:
            attributes.pop(name, None)
        self.parameter.requires_grad_(self.wanted)

    def _set_by_user(self, requires_grad: bool = True) -> Tensor:
        self.wanted = requires_grad
        return type(self.parameter).requires_grad_(self.parameter, requires_grad)

    def _deepcopy(self, memo: dict[int, Any]) -> Any:
        with self._as_user_left_it():
            return copy.deepcopy(self.parameter, memo)

    def _reduce(self, protocol: Any) -> Any:
        with self._as_user_left_it():
            return self.parameter.__reduce_ex__(protocol)

    @contextmanager
    def _as_user_left_it(self) -> Iterator[None]:
        requires_grad = self.parameter.requires_grad
        self.unfreeze()
        try:
            yield
        finally:
            self.freeze()
            type(self.parameter).requires_grad_(self.parameter, requires_grad)
