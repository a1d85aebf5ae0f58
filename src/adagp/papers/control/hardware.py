"""The cost of control on an accelerator: a share of each batch by backprop, predictions for all of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adagp.core.methods import BatchSplit, BatchVariation, batch_variation
from adagp.papers.control.options import ERROR, parse_predictor, read_share

AUTO_SHARE = 0.5
"""The share that is charged if the run chooses it itself, as that share is not known in advance."""


@dataclass(frozen=True)
class ControlledBatches:
    """The predictor's own variation, each batch with its share by backprop."""

    share: float
    predictor: str
    variation: BatchVariation
    selects: bool = False
    predicts: bool = True

    @property
    def cycle(self) -> int:
        """Batches with true gradients after which the variants repeat."""
        return self.variation.cycle

    @property
    def predicted(self) -> BatchSplit:
        """The variant of the batches that are split."""
        return self.at(0)

    def at(self, number: int) -> BatchSplit:
        """Return the variant of a batch by backprop alone, counted from 0."""
        return BatchSplit(self.share, self.predictor, self.variation.at(number), self.selects, self.predicts)


def control_split(options: Mapping[str, Any]) -> ControlledBatches:
    """Return how the batches of a run with these options of control are split."""
    method, own = parse_predictor(options["predictor"])
    share = read_share(options["true_share"])
    variation = batch_variation(method.name, method.defaults | own)
    selects = options["select"] == ERROR
    # Predictions times 0 are not needed, unless the share is chosen by how good they are.
    predicts = options["coefficient"] != 0 or share is None
    return ControlledBatches(AUTO_SHARE if share is None else share, method.source, variation, selects, predicts)
