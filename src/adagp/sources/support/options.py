"""How a predictor learns."""

from dataclasses import dataclass

from adagp.errors import OptionError


@dataclass(frozen=True)
class LearningOptions:
    """How a predictor learns. The defaults are ADA-GP's; the two switches go beyond the paper.

    `milestones` are epochs after which the learning rate is multiplied by `gamma` (MultiStepLR); with `plateau` it is
    halved instead when the predictor's loss has not fallen for more than three epochs with BP batches (ReduceLROnPlateau).
    `normalize` trains on targets divided by a running scale of each site, so that sites with small gradients count as much
    as those with large ones. `hold_norm` rescales each prediction to the running norm of the true gradient.
    `grid` is the side of the pooled picture of an output channel that the predictor sees.
    """

    learning_rate: float = 1e-4
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    plateau: bool = False
    normalize: bool = False
    hold_norm: bool = False
    grid: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise OptionError(f"the predictor's learning rate is {self.learning_rate}; it must be above 0.")
        if self.grid < 1:
            raise OptionError(f"the predictor's grid is {self.grid}; it must be 1 or more.")
