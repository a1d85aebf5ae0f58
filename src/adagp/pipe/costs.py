"""What the actions of a pipeline take: constants in steps here, a model on accelerators in `adagp.pipe.modelled`."""

from dataclasses import dataclass
from math import inf, isfinite

from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.pipe.actions import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action


@dataclass(frozen=True)
class StageCosts:
    """One stage's times for a micro-batch (`forward`, `backward`) and for a batch (the updates), in one unit of time.

    `output_bytes` leave the stage in a micro-batch's forward; as many come back in its backward. `kept_bytes` is what the
    stage keeps of a micro-batch for the backward pass. `gradient_bytes` and `summary_bytes` are what the holders of a
    stage exchange before an update by a BP or a GP batch, where there are several. A backward in two parts takes
    `input_gradient` and `weight_gradient`, half of `backward` each unless given. `error_bytes` come from the last stage before
    an update by a GP batch, where the error is broadcast.
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

    Transfers go on beside the devices' work and do not hinder each other.
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

    Its training takes twice as long, as with the paper's layers: a GP update takes `alpha`, a BP update `3 * alpha`. Where
    there are fewer `devices` than stages, the times are those of a device, which its stages share.
    """
    part = 1.0 if devices is None else devices / stages
    forward, backward = part * forward, part * backward
    if not (alpha >= 0 and isfinite(alpha)):
        raise OptionError(f"alpha is {alpha}; it must be a finite number of 0 or more.")
    share = alpha * forward if predictor else 0.0
    return Costs((StageCosts(forward, backward, 3 * share, share),) * stages)
