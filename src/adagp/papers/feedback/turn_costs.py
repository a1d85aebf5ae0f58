"""In which of a run's batches feedback learns and corrects itself, by the run's own options: batches differ in cost by that."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import lcm

from adagp.core.plan import BACKPROP, Plan
from adagp.hw.predictions import FULL_FEEDBACK, FeedbackWork
from adagp.program.run.config import TrainConfig


@dataclass(frozen=True)
class FeedbackTurns:
    """The turns of a run: the first batch with true gradients teaches and corrects, then one of so many.

    `work` is what feedback does where it is its turn in both; it may do without a correction. Other sources have theirs in
    every batch.
    """

    work: FeedbackWork = FULL_FEEDBACK
    learn_every: int = 1
    correct_every: int = 1
    corrects: bool = True

    @property
    def cycle(self) -> int:
        """Batches with true gradients after which turns repeat themselves."""
        return lcm(self.learn_every, self.correct_every)

    def at(self, number: int) -> FeedbackWork:
        """Return what is done in the batch of this number, counted from 0 over those with true gradients."""
        return _turn(self.work, number % self.learn_every == 0, self.corrects and number % self.correct_every == 0)


@lru_cache(maxsize=256)
def _turn(work: FeedbackWork, fits: bool, corrects: bool) -> FeedbackWork:
    return replace(work, fits=fits, corrects=corrects)


def feedback_turns(config: TrainConfig) -> FeedbackTurns:
    """Return the turns that a run's options say."""
    given = config.method_options
    if "learn_every" not in given:
        return FeedbackTurns()
    corrects = given["correction"] > 0
    work = FeedbackWork(given["features"], subtracts=corrects)
    return FeedbackTurns(work, given["learn_every"], given["correct_every"], corrects)


def has_true_gradients(plan: Plan) -> bool:
    """Tell whether a batch has sites that are trained by backprop, so that it may teach a source."""
    return BACKPROP in (plan.default, *plan.by_site.values())
