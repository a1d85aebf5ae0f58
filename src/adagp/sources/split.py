"""The contract of a source that splits the batches it serves: one part is trained by backprop, the other is predicted only."""

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from adagp.core.plan import Step
from adagp.layers.sites import Site
from adagp.sources.base import Source


class SplitSource(Source):
    """A source that corrects the true gradients of a part of the batch by predictions for all of it.

    For each batch that it serves the engine calls::

        split(step, samples)            which samples are trained by backprop
        begin, watch, produce, forget   for the samples that are predicted only, as in a GP batch
        begin, watch, produce           for the others, as in a BP batch whose predictions are compared with the truth
        corrections(...)                what is added to the true gradients
        (learning)                      from the second part, when the batch counts

    A source that `selects` looks at the errors of the whole batch first: all samples are predicted, then `select(step)` chooses
    some to train by backprop, and how much each counts.
    """

    selects: bool = False

    @abstractmethod
    def split(self, step: Step, samples: int) -> tuple[Tensor, Tensor] | None:
        """Return the indices of the samples to train by backprop, and of the others; None: all by backprop."""

    def select(self, step: Step) -> tuple[Tensor, Tensor]:
        """Return the indices of the samples to train by backprop, and the weight of each in the gradient; see `selects`.

        A weight of 1 is a sample's part in the mean over the chosen ones.
        """
        raise NotImplementedError

    @abstractmethod
    def corrections(
        self, sites: Sequence[Site], predicted: Sequence[Tensor], predicted_rest: Sequence[Tensor], share: float
    ) -> list[Tensor]:
        """Return what is added to each site's true gradient, which is that of a `share` of the batch.

        `predicted` are the predictions for the same samples, `predicted_rest` those for the others. If the source `selects`,
        `predicted_rest` are those for the whole batch, and `share` is 0.
        """
