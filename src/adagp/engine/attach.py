"""The one line that adopts adagp."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from adagp.engine.compiled import compile_model
from adagp.engine.guard import Guard
from adagp.engine.trainer import Trainer
from adagp.engine.trial import registered, try_out
from adagp.engine.validate import validate
from adagp.errors import OptionError
from adagp.schedules import Schedule, parse_schedule
from adagp.sources.base import Source
from adagp.sources.build import default_source


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    epochs: int,
    batches_per_epoch: int,
    batches: int | None = None,
    schedule: Schedule | str = "ladder",
    sources: Mapping[str, Source] | None = None,
    warmup: int | None = None,
    exclude: Sequence[str] = (),
    guard: Guard | None = None,
    metrics_every: int = 10,
    scaler: torch.amp.GradScaler | None = None,
    sample: Any = None,
    compile: bool | str = False,  # noqa: A002  # torch's own name for it
) -> Trainer:
    """Return a trainer for `model` and `optimizer`, which stay in use as they are.

    `batches` is the length of the run if its last epoch is not whole. `schedule` is a `Schedule` or its text form (see
    `adagp.schedules.text`); `warmup` goes with the text form. `sources` gives ready-made sources by the names that the
    schedule uses; the others are made with their defaults. `exclude` are name patterns of layers that are not to be
    predicted. `sample` is a batch of inputs, on the model's device, for a trial
    forward pass: schedules that cut the model in two need it, and what does not fit the layers' output sizes is then
    refused here. Attach after the model has been moved to its device. `compile=True` compiles the model in place with torch's
    compiler, or with another backend of `torch.compile` that is named.
    """
    if epochs < 1 or batches_per_epoch < 1:
        raise OptionError(
            f"a run needs at least 1 epoch and 1 batch per epoch; got {epochs} epochs, {batches_per_epoch} batches."
        )
    if batches is not None and not 0 <= epochs * batches_per_epoch - batches < batches_per_epoch:
        raise OptionError(
            f"{batches} batches do not end in epoch {epochs} of a run with {batches_per_epoch} batches per epoch."
        )
    if isinstance(schedule, str):
        schedule = parse_schedule(schedule, epochs, warmup)
    elif warmup is not None:
        raise OptionError("warmup goes with a schedule in text form; put a WarmUp around a Schedule object.")
    validation = validate(model, optimizer, exclude)
    validation.raise_problems()
    given = dict(sources or {})
    idle = sorted(set(given) - schedule.sources)
    if idle:
        raise OptionError(f"source '{idle[0]}' was given, but the schedule names only: {', '.join(schedule.sources)}.")
    needed = {name: given[name] if name in given else default_source(name) for name in sorted(schedule.sources)}
    refuse_misfits(schedule, needed)
    trial = None if sample is None else try_out(model, validation.survey, sample)
    schedule = schedule.resolve(registered(validation.survey) if trial is None else trial.layout)
    trainer = Trainer(
        model,
        optimizer,
        schedule,
        needed,
        validation.survey,
        batches_per_epoch=batches_per_epoch,
        batches=batches,
        guard=guard or Guard(),
        metrics_every=metrics_every,
        scaler=scaler,
    )
    if trial is not None:
        for source in needed.values():
            source.prepare({site: shape for site, shape in trial.shapes.items() if schedule.serves(site.name)})
    if compile:
        compile_model(model, "inductor" if compile is True else compile)
    return trainer


def refuse_misfits(schedule: Schedule, sources: Mapping[str, Source]) -> None:
    """Refuse sources that cannot do what the schedule asks of them."""
    for name, source in sources.items():
        if source.skips and schedule.partial:
            raise OptionError(f"source '{name}' leaves out whole batches: it cannot serve some sites of a batch only.")
        if source.needs_backward and schedule.stops:
            raise OptionError(
                f"source '{name}' needs the gradient at the output of its sites: it cannot serve sites below the place "
                "where the backward pass stops."
            )
        if schedule.adapts and not source.learns:
            raise OptionError(
                f"an adaptive schedule measures predictions; source '{name}' learns and predicts nothing."
            )
