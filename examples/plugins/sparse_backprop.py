"""A schedule with a text form: one batch in N by backprop, all others predicted.

adagp train --plugin examples.plugins.sparse_backprop --ratio every:4
"""

from dataclasses import dataclass

import adagp
from adagp.core.plan import BACKPROP, Step, predicted_plan
from adagp.errors import OptionError
from adagp.schedules.text import SCHEDULE_FORMS, TextForm


@dataclass(frozen=True)
class SparseBackprop(adagp.Schedule):
    """The first of every `period` batches of an epoch is trained by backprop."""

    period: int
    source: str

    def __post_init__(self) -> None:
        if self.period < 2:
            raise OptionError(f"every:{self.period} would predict nothing; it must be every:2 or more.")

    def plan(self, step: Step) -> adagp.Plan:
        """Return the plan of the batch at `step`."""
        return predicted_plan(self.source if step.batch % self.period else BACKPROP)

    def label(self, epoch: int) -> str:
        """Return how the epoch is called in tables."""
        return f"1 in {self.period}"

    @property
    def text(self) -> str:
        """The schedule as it is written."""
        return f"every:{self.period}"

    @property
    def sources(self) -> frozenset[str]:
        """The one source of predictions."""
        return frozenset({self.source})


SCHEDULE_FORMS.add(
    "every:N", TextForm(r"every:\d+", lambda text, epochs, source: SparseBackprop(int(text[len("every:") :]), source))
)
