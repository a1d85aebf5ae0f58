"""A program's dry run: when each action begins and ends by the costs of its stages, without running anything.

Every device does its actions in their order, each as soon as the device is free and what the action needs has arrived. So
the times are longest paths, found in one walk over the actions. Costs are constants in steps (`constant_costs`), or those of a
model on accelerators (`adagp.pipe.modelled`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import inf, isfinite

from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.pipe.actions import BACKWARD, FORWARD, INPUT_GRADIENT, UPDATE, WEIGHT_GRADIENT, Action, Program
from adagp.pipe.order import Order, Position


@dataclass(frozen=True)
class Link:
    """The link between two devices: bytes per second in each direction, and seconds before the first byte arrives."""

    bandwidth: float = inf
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise OptionError(
                f"a link of {self.bandwidth / 1e9:g} gigabytes per second carries nothing; give more than 0."
            )
        if not (self.latency >= 0 and isfinite(self.latency)):
            raise OptionError(f"a link's latency is {self.latency * 1e6:g} microseconds; it must be 0 or more.")


@dataclass(frozen=True)
class StageCosts:
    """One stage's times for a micro-batch (`forward`, `backward`) and for a batch (the updates), in one unit of time.

    `output_bytes` leave the stage in a micro-batch's forward; as many come back in its backward. `kept_bytes` is what the
    stage keeps of a micro-batch for the backward pass. `gradient_bytes` and `summary_bytes` are what the holders of a
    stage exchange before an update by a BP or a GP batch, if there are several. A backward in two parts takes `input_gradient`
    and `weight_gradient`, half of `backward` each unless given. With an error broadcast, `error_bytes` come from the last stage
    before an update by a GP batch.
    """

    forward: float = 1.0
    backward: float = 2.0
    update_bp: float = 0.0
    update_gp: float = 0.0
    output_bytes: float = 0.0
    kept_bytes: float = 0.0
    gradient_bytes: float = 0.0
    summary_bytes: float = 0.0
    input_gradient: float | None = None
    weight_gradient: float | None = None
    error_bytes: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not (value >= 0 and isfinite(value)):
                raise OptionError(f"{name} of a stage is {value}; it must be a finite number of 0 or more.")

    def time(self, action: Action, phase: Phase) -> float:
        """Return how long an action of this stage takes in a batch of `phase`."""
        if action.kind == FORWARD:
            return self.forward
        if action.kind == BACKWARD:
            return self.backward
        if action.kind == INPUT_GRADIENT:
            return self.backward / 2 if self.input_gradient is None else self.input_gradient
        if action.kind == WEIGHT_GRADIENT:
            return self.backward / 2 if self.weight_gradient is None else self.weight_gradient
        return self.update_gp if phase is Phase.GP else self.update_bp


@dataclass(frozen=True)
class Costs:
    """The stages' costs, and the links: each transfer takes `latency` and its bytes over `bandwidth`, in units of time.

    Transfers overlap with the devices' work and do not delay each other.
    """

    stages: tuple[StageCosts, ...]
    bandwidth: float = inf
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise OptionError(
                f"bandwidth is {self.bandwidth}; it must be more than 0 (infinity: transfers take no time)."
            )
        if not (self.latency >= 0 and isfinite(self.latency)):
            raise OptionError(f"latency is {self.latency}; it must be a finite number of 0 or more.")

    def transfer(self, amount: float) -> float:
        """Return the time of sending `amount` bytes to another device."""
        return self.latency + amount / self.bandwidth


def constant_costs(
    stages: int,
    forward: float = 1.0,
    backward: float = 2.0,
    alpha: float = 0.0,
    *,
    predictor: bool = True,
    devices: int | None = None,
) -> Costs:
    """Return equal stages. `alpha` is the predictor's forward for a batch in units of a micro-batch's forward.

    Its training takes twice as long, as with ADA-GP's layers: a GP update takes `alpha`, a BP update `3 * alpha`. If there are
    fewer `devices` than stages, the times are those of a device, and its stages share them equally.
    """
    part = 1.0 if devices is None else devices / stages
    forward, backward = part * forward, part * backward
    if not (alpha >= 0 and isfinite(alpha)):
        raise OptionError(f"alpha is {alpha}; it must be a finite number of 0 or more.")
    share = alpha * forward if predictor else 0.0
    return Costs((StageCosts(forward, backward, 3 * share, share),) * stages)


@dataclass(frozen=True)
class Timeline:
    """The dry run of a program. `spans[device][i]` has the begin and the end of the device's action number i."""

    program: Program
    costs: Costs
    spans: tuple[tuple[tuple[float, float], ...], ...]

    @cached_property
    def steps(self) -> float:
        """From the first begin to the last end, in the costs' unit of time."""
        return max(end for row in self.spans for _, end in row)

    @property
    def bubble_share(self) -> float:
        """The share of all devices' time in which they do nothing."""
        busy = sum(end - begin for row in self.spans for begin, end in row)
        whole = self.steps * len(self.spans)
        return 1 - busy / whole if whole else 0.0

    @property
    def peak_activations(self) -> tuple[int, ...]:
        """The most micro-batches whose activations each device keeps at a time, counted for each stage it holds.

        A BP micro-batch is kept from its forward to the end of its backward, or of its weight gradient; a GP one while its
        forward runs, or with an error broadcast until the update.
        """
        return tuple(int(max(accumulate(row))) for row in self._changes([1.0] * self.program.stages))

    @property
    def peak_bytes(self) -> tuple[float, ...]:
        """The most bytes of activations that each device keeps at a time."""
        return tuple(max(accumulate(row)) for row in self._changes([stage.kept_bytes for stage in self.costs.stages]))

    def _changes(self, weights: list[float]) -> Iterator[list[float]]:
        """Yield for each device what is added to, and taken from, the kept activations, in the order of time.

        A device does one thing at a time, so its own order will do.
        """
        for row in self.program.devices:
            changes: list[float] = [0.0]
            waiting = [0] * self.program.stages  # micro-batches that are kept until the update, by stage
            for action in row:
                stage, kind, _ = action
                if kind == FORWARD:
                    changes.append(weights[stage])
                    if self._phase(action) is Phase.GP and self.program.broadcast:
                        waiting[stage] += 1
                    elif self._phase(action) is Phase.GP:
                        changes.append(-weights[stage])
                elif kind == UPDATE:
                    changes.append(-weights[stage] * waiting[stage])
                    waiting[stage] = 0
                elif kind != INPUT_GRADIENT:
                    changes.append(-weights[stage])
            yield changes

    def _phase(self, action: Action) -> Phase:
        return self.program.phases[self.program.batch_of(action)]


def simulate(program: Program, costs: Costs) -> Timeline:
    """Return the dry run of `program`, which is validated first."""
    if len(costs.stages) != program.stages:
        raise OptionError(f"costs of {len(costs.stages)} stages do not fit a program of {program.stages}.")
    order = Order(program)
    devices, phases = program.devices, program.phases
    ends: list[list[float]] = [[0.0] * len(row) for row in devices]
    begins: list[list[float]] = [[0.0] * len(row) for row in devices]
    for (device, index), needs in order.walk:
        action = devices[device][index]
        phase = phases[program.batch_of(action)]
        free = ends[device][index - 1] if index else 0.0
        arrivals = (
            _arrival(costs, action, phase, device, ends, needed, devices[needed[0]][needed[1]].stage)
            for needed in needs
        )
        begin = max([free, *arrivals])
        begins[device][index] = begin
        ends[device][index] = begin + costs.stages[action.stage].time(action, phase)
    spans = tuple(tuple(zip(*pair, strict=True)) for pair in zip(begins, ends, strict=True))
    return Timeline(program, costs, spans)


def _arrival(
    costs: Costs, action: Action, phase: Phase, device: int, ends: list[list[float]], needed: Position, maker: int
) -> float:
    """Return when what `action` needs from another one, of stage `maker`, is there; at once, if the same device made it."""
    end = ends[needed[0]][needed[1]]
    if needed[0] == device:
        return end
    stage, kind, _ = action
    if kind == UPDATE and maker != stage:
        amount = costs.stages[stage].error_bytes
    elif kind == UPDATE:
        amount = costs.stages[stage].summary_bytes if phase is Phase.GP else costs.stages[stage].gradient_bytes
    else:  # a stage's output goes up, the gradient of the same size comes back
        amount = costs.stages[stage - 1 if kind == FORWARD else stage].output_bytes
    return end + costs.transfer(amount)
