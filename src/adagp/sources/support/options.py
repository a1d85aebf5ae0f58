"""How a predictor learns."""

from dataclasses import dataclass

from adagp.errors import OptionError
from adagp.sources.base import RunFacts

LEARNING = ("predictor_lr", "predictor_scheduler", "normalize", "hold_norm")
"""The options of methods that say how a predictor learns."""


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

    @classmethod
    def of_run(
        cls, run: RunFacts, predictor_lr: float, predictor_scheduler: str, normalize: bool, hold_norm: bool
    ) -> "LearningOptions":
        """Return them for a run, from the options of a method."""
        return cls(
            learning_rate=predictor_lr,
            milestones=milestones(run.epochs) if predictor_scheduler == "multistep" else (),
            plateau=predictor_scheduler == "plateau",
            normalize=normalize,
            hold_norm=hold_norm,
            seed=run.seed,
        )


def milestones(epochs: int) -> tuple[int, ...]:
    """Return the epochs after which a stepped learning rate falls to a tenth: a half and three quarters of the run."""
    return tuple(sorted({max(1, epochs // 2), max(1, epochs * 3 // 4)}))
