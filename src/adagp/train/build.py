"""From a configuration to the sources of its method."""

from collections.abc import Callable

from adagp.run.config import TrainConfig
from adagp.sources import (
    AverageSource,
    FeedbackSource,
    LabelledSource,
    LearningOptions,
    NoiseSource,
    PredictedSource,
    RandomSource,
    RemappedSource,
    ReplaySource,
    ShuffledSource,
    SkipSource,
    Source,
    SyntheticSource,
    TopKSource,
    ZeroSource,
    feedback_and_replay,
)

BUILDERS: dict[str, Callable[[TrainConfig], Source]] = {
    "predicted": lambda config: PredictedSource(learning_options(config), parts=config.predictor_parts),
    "remapped": lambda config: RemappedSource(learning_options(config), config.remap_outputs),
    "shuffled": lambda config: ShuffledSource(learning_options(config), parts=config.predictor_parts),
    "predicted_labels": lambda config: LabelledSource(learning_options(config), parts=config.predictor_parts),
    "zero": lambda config: ZeroSource(),
    "momentum": lambda config: ZeroSource(),
    "skip": lambda config: SkipSource(),
    "random": lambda config: RandomSource(config.seed),
    "noise": lambda config: NoiseSource(config.seed),
    "replay": lambda config: ReplaySource(),
    "average": lambda config: AverageSource(config.average),
    "topk": lambda config: TopKSource(config.topk, "published" if config.published_scale else "unbiased"),
    "dni": lambda config: SyntheticSource(learning_options(config)),
    "dni_labels": lambda config: SyntheticSource(learning_options(config), labels=True),
    "feedback": lambda config: feedback(config),
    "feedback_replay": lambda config: feedback_and_replay(feedback(config)),
}
"""How each source is made with the options of a run."""


def build_sources(config: TrainConfig) -> dict[str, Source]:
    """Return the sources that the run's schedule names, with the run's options."""
    return {name: BUILDERS[name](config) for name in config.schedule().sources}


def feedback(config: TrainConfig) -> FeedbackSource:
    """Return the feedback source with the run's options."""
    return FeedbackSource(config.features, seed=config.seed)


def learning_options(config: TrainConfig) -> LearningOptions:
    """Return how the method's predictor learns."""
    scheduler = config.predictor_scheduler or config.way.predictor_scheduler
    return LearningOptions(
        learning_rate=config.predictor_lr,
        milestones=milestones(config.epochs) if scheduler == "multistep" else (),
        plateau=scheduler == "plateau",
        normalize=config.normalize,
        hold_norm=config.hold_norm,
        seed=config.seed,
    )


def milestones(epochs: int) -> tuple[int, ...]:
    """Return the epochs after which a stepped learning rate falls to a tenth: a half and three quarters of the run."""
    return tuple(sorted({max(1, epochs // 2), max(1, epochs * 3 // 4)}))
