"""The one line that adopts adagp."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from adagp.errors import OptionError
from adagp.schedules import Schedule, parse_schedule
from adagp.sources.base import SOURCES, Source
from adagp.train.engine import Trainer
from adagp.train.guard import Guard
from adagp.train.validate import validate


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    epochs: int,
    batches_per_epoch: int,
    schedule: Schedule | str = "ladder",
    sources: Mapping[str, Source] | None = None,
    warmup: int | None = None,
    exclude: Sequence[str] = (),
    guard: Guard | None = None,
    metrics_every: int = 10,
    scaler: torch.amp.GradScaler | None = None,
) -> Trainer:
    """Return a trainer for `model` and `optimizer`, which stay in use as they are.

    `schedule` is a `Schedule` or its text form (see `adagp.schedules.text`); `warmup` goes with the text form. `sources`
    gives ready-made sources by the names that the schedule uses; the others are made with their defaults. `exclude` are
    name patterns of layers that shall not be predicted. Attach after the model has been moved to its device.
    """
    if epochs < 1 or batches_per_epoch < 1:
        raise OptionError(
            f"a run needs at least 1 epoch and 1 batch an epoch; got {epochs} epochs, {batches_per_epoch} batches."
        )
    if isinstance(schedule, str):
        schedule = parse_schedule(schedule, epochs, warmup)
    elif warmup is not None:
        raise OptionError("warmup goes with a schedule in text form; a Schedule object has its own.")
    validation = validate(model, optimizer, exclude)
    validation.raise_problems()
    given = dict(sources or {})
    idle = sorted(set(given) - schedule.sources)
    if idle:
        raise OptionError(f"source '{idle[0]}' was given, but the schedule names only: {', '.join(schedule.sources)}.")
    needed = {name: given[name] if name in given else SOURCES[name]() for name in sorted(schedule.sources)}
    return Trainer(
        model,
        optimizer,
        schedule,
        needed,
        validation.survey,
        batches_per_epoch=batches_per_epoch,
        guard=guard or Guard(),
        metrics_every=metrics_every,
        scaler=scaler,
    )
