"""The cost of feedback on an accelerator: its gradient in a GP batch, its regression in those BP batches that update it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import lcm
from typing import Any, cast

from adagp.hw.accelerator import Accelerator
from adagp.hw.exchange import DOUBLE, ExchangeWork, ModelLayout, SourceExchange
from adagp.hw.product import NOTHING, Cost, Operation, Product
from adagp.hw.stages import Predictions, SiteWork, on_predictor_array
from adagp.hw.workload import ArrayLayer, Convolution, Linear


@dataclass(frozen=True)
class FeedbackWork:
    """What feedback does in a batch.

    features         maximum number of features of the output's error; their mean has as many
    class_features   the softmax of the outputs is used as well, which doubles both
    fits             a BP batch updates the regression
    corrects         a BP batch updates the bias correction from its inputs
    subtracts        in a GP batch the prediction for recent BP batches is subtracted: the run has a bias correction
    """

    features: int = 64
    fits: bool = True
    corrects: bool = True
    subtracts: bool = True
    class_features: bool = False


FULL_FEEDBACK = FeedbackWork()
"""All that feedback does, with its options at their defaults."""


@dataclass(frozen=True)
class FeedbackTurns:
    """Which batches with true gradients update the regression and the bias correction: the first one, then every N.

    `predicted` is the work of a batch without true gradients, and of one that updates both.
    """

    predicted: FeedbackWork = FULL_FEEDBACK
    learn_every: int = 1
    correct_every: int = 1
    corrects: bool = True

    @property
    def cycle(self) -> int:
        """Batches with true gradients after which the turns repeat."""
        return lcm(self.learn_every, self.correct_every)

    def at(self, number: int) -> FeedbackWork:
        """Return the work of a batch; `number` counts the batches with true gradients from 0."""
        corrects = self.corrects and number % self.correct_every == 0
        return _turn(self.predicted, number % self.learn_every == 0, corrects)


@lru_cache(maxsize=256)
def _turn(work: FeedbackWork, fits: bool, corrects: bool) -> FeedbackWork:
    return replace(work, fits=fits, corrects=corrects)


def feedback_turns(options: Mapping[str, Any]) -> FeedbackTurns:
    """Return the turns of a run with these options of feedback."""
    corrects = options["correction"] > 0
    work = FeedbackWork(options["features"], subtracts=corrects, class_features=options["class_features"])
    return FeedbackTurns(work, options["learn_every"], options["correct_every"], corrects)


def _batch_work(site: SiteWork) -> FeedbackWork:
    return FULL_FEEDBACK if site.variant is None else cast(FeedbackWork, site.variant)


@dataclass(frozen=True)
class FeedbackSizes:
    """The sizes of feedback's products for a layer: rows of a batch, inputs and outputs of a row, features of the error."""

    rows: int
    inputs: int
    outputs: int
    features: int


def feedback_sizes(layer: ArrayLayer, batch: int, error_words: int, work: FeedbackWork) -> FeedbackSizes:
    """Return a sample's whole map as a row, or each position of a linear layer."""
    positions = layer.rows if isinstance(layer, Linear) else 1
    features = max(1, min(error_words, work.features)) * (1 + work.class_features)
    return FeedbackSizes(batch * positions, layer.input_words // positions, layer.output_words // positions, features)


def feedback_gradient(site: SiteWork) -> Cost:
    """Cost the weight gradient from the output's error, without stalls.

    The inputs of a batch are mixed to one sample per feature and one for the mean; the weight gradient is taken of those. If a
    batch has fewer rows than features, the output gradient of each row is predicted instead, and the weight gradient is the
    full product. To subtract the prediction for recent batches, their mixed inputs are read from memory, and one sample is
    added.
    """
    layer, accelerator, work = site.layer, site.accelerator, _batch_work(site)
    sizes = feedback_sizes(layer, site.batch, site.error_words, work)
    common = accelerator.trained_with(Product(1, sizes.features, sizes.outputs), Operation.FORWARD)  # the mean's part
    if sizes.rows <= sizes.features and not work.subtracts:
        project = Product(sizes.rows, sizes.features + 1, sizes.outputs)
        return accelerator.tiled_cost(
            common,
            accelerator.trained_with(project, Operation.FORWARD),
            accelerator.trained_with(layer.product(site.batch), Operation.WEIGHT_GRADIENT),
        )
    samples = sizes.features + 1 + work.subtracts
    held = site.held  # mixed inputs give the gradient of the weights held here, whichever these are
    outputs = feedback_sizes(held, site.batch, site.error_words, work).outputs
    few = held.product(samples) if isinstance(held, Convolution) else Product(samples, sizes.inputs, outputs)
    cost = accelerator.tiled_cost(
        common, _mixing(accelerator, sizes), accelerator.trained_with(few, Operation.WEIGHT_GRADIENT)
    )
    if not work.subtracts:
        return cost
    usual = accelerator.trained_with(Product(sizes.features, sizes.features, sizes.inputs), Operation.FORWARD)
    truth = held.weights * accelerator.width("gradients")
    return cost + accelerator.tiled_cost(common, usual).moving(_mean_bits(accelerator, sizes) + truth, 0)


def _mixing(accelerator: Accelerator, sizes: FeedbackSizes) -> Product:
    """Return the product that mixes the inputs of a batch to one sample per feature and one for the mean."""
    mix = Product(sizes.features + 1, sizes.rows, sizes.inputs)
    return accelerator.trained_with(mix, Operation.FORWARD)


def _mean_bits(accelerator: Accelerator, sizes: FeedbackSizes) -> int:
    return (sizes.features + 1) * sizes.inputs * accelerator.width("sums")


def feedback_regression(site: SiteWork) -> Predictions | None:
    """Cost the update of feedback in a BP batch: both moments, and the running means of mixed inputs and gradient."""
    layer, accelerator, work = site.layer, site.accelerator, _batch_work(site)
    if not site.learns or not (work.fits or work.corrects):
        return None
    sizes = feedback_sizes(layer, site.batch, site.error_words, work)
    truth = layer.weights * accelerator.width("gradients")
    costs = []
    for array in (accelerator, on_predictor_array(accelerator)):
        cost = NOTHING
        if work.fits:
            cost += _feedback_moments(array, sizes)
        if work.corrects:
            # The running means are read before they are updated; the mixed inputs are written as the product's result.
            noted = _mean_bits(accelerator, sizes)
            cost += array.tiled_cost(_mixing(array, sizes)).moving(noted + truth, truth)
        costs.append(accelerator.with_stalls(cost))
    return Predictions(NOTHING, costs[0], NOTHING, costs[1], own_memory=False)


def _feedback_moments(accelerator: Accelerator, sizes: FeedbackSizes) -> Cost:
    """Cost the moments of a batch, without stalls."""
    features = sizes.features
    # Differences from the mean and the mean's own part: one row of products each. Second moments are those of the differences;
    # layers with the same rows could share them, but each is charged for its own.
    products = [
        accelerator.trained_with(Product(sums, sizes.rows, outputs), Operation.FORWARD)
        for sums, outputs in ((features + 1, sizes.outputs), (features, features))
    ]
    # The running moments are read before the batch's are added to them.
    stored = 2 * features * (sizes.outputs + features) * accelerator.width("sums")
    return accelerator.tiled_cost(*products).moving(stored, 0)


def feedback_exchange(work: ExchangeWork) -> SourceExchange:
    """Return what copies of the model exchange (`papers/feedback/data_parallel.py`).

    The first two rounds, the call counts and the means of the features, are in double precision. The third has in a GP batch
    the mixed inputs of each site or its weight gradient, whichever has fewer numbers, and in a BP batch the patterns of outputs
    and the mixed inputs. Copies of a pipeline's stage sum their weight gradients, and what they learn from.
    """
    turn = FULL_FEEDBACK if work.variant is None else cast(FeedbackWork, work.variant)
    sizes = [feedback_sizes(site, 1, work.error_words, turn) for site in work.sites]
    features = sizes[0].features if sizes else 0
    learned = _learned_words(turn, sizes)
    if work.layout is ModelLayout.STAGES:
        words = learned if work.learns else sum(site.weights for site in work.sites)
        return SourceExchange((words,), error_features=features)
    counts = DOUBLE * (4 * len(sizes) + 1)
    calls = len(sizes) * (turn.fits + turn.corrects if work.learns else 1)
    if not calls:
        return SourceExchange((counts,), error_features=features)
    sums = learned + _second_moment_words(sizes) if work.learns else _produced_words(work, sizes)
    return SourceExchange((counts, DOUBLE * calls * (features + 1), sums), error_features=features)


def _learned_words(turn: FeedbackWork, sizes: Sequence[FeedbackSizes]) -> int:
    """Return the words of the patterns of outputs and of the mixed inputs that a BP batch learns from."""
    return sum((size.features + 1) * (turn.fits * size.outputs + turn.corrects * size.inputs) for size in sizes)


def _second_moment_words(sizes: Sequence[FeedbackSizes]) -> int:
    """Return the words of the features' second moments, which sites with the same rows share."""
    return sum(features**2 for _, features in {(size.rows, size.features) for size in sizes})


def _produced_words(work: ExchangeWork, sizes: Sequence[FeedbackSizes]) -> int:
    """Return the words of each site's mixed inputs, or of its weight gradient, whichever are fewer."""
    return sum(
        min((size.features + 1) * size.inputs, site.weights) for site, size in zip(work.sites, sizes, strict=True)
    )
