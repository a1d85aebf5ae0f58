"""What `attach` is told of a run: its length, its method, and the schedule that follows from both."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adagp.core.methods import Method
from adagp.errors import OptionError, unknown_name
from adagp.schedules import Schedule, WarmUp, parse_schedule
from adagp.schedules.ladder import PAPER_EPOCHS
from adagp.schedules.warmup import scaled_warmup

LEAST_BATCHES = 60
"""Where a run without epochs is divided into some, their batches are a multiple of this: schedules begin anew in each epoch,
and alternations of up to six batches then go on as if there were none."""


@dataclass(frozen=True)
class RunLength:
    """Epochs and their batches; `batches` is the length of the run if its last epoch is not whole.

    A run that has no epochs of its own is divided into some, for schedules that change by epochs.
    """

    epochs: int
    batches_per_epoch: int
    batches: int | None = None
    divided: bool = False


def run_length(epochs: int | None, batches_per_epoch: int | None, batches: int | None, steps: int | None) -> RunLength:
    """Return the length of a run, given in one of the two ways."""
    if steps is not None:
        if (epochs, batches_per_epoch, batches) != (None, None, None):
            raise OptionError("steps is the length of a run without epochs; leave out epochs and batches.")
        if steps < 1:
            raise OptionError(f"a run needs at least 1 step; got {steps}.")
        parts = max(1, min(PAPER_EPOCHS, steps // LEAST_BATCHES))
        each = min(steps, -(-steps // (parts * LEAST_BATCHES)) * LEAST_BATCHES)
        return RunLength(-(-steps // each), each, steps, divided=True)
    if epochs is None or batches_per_epoch is None:
        raise OptionError("the length of the run is missing: give epochs and batches_per_epoch, or steps.")
    if epochs < 1 or batches_per_epoch < 1:
        raise OptionError(
            f"a run needs at least 1 epoch and 1 batch per epoch; got {epochs} epochs, {batches_per_epoch} batches."
        )
    if batches is not None and not 0 <= epochs * batches_per_epoch - batches < batches_per_epoch:
        raise OptionError(
            f"{batches} batches do not end in epoch {epochs} of a run with {batches_per_epoch} batches per epoch."
        )
    return RunLength(epochs, batches_per_epoch, batches)


def read_schedule(
    method: Method | None,
    schedule: Schedule | str | None,
    length: RunLength,
    warmup: int | None,
    warmup_batches: int | None,
) -> Schedule:
    """Return the schedule of a run, with its warm-up; by default the method's own, or the ladder."""
    if isinstance(schedule, Schedule):
        if warmup is not None or warmup_batches is not None:
            raise OptionError("warmup goes with a schedule in text form; put a WarmUp around a Schedule object.")
        return schedule
    if warmup is not None and warmup_batches is not None:
        raise OptionError("the warm-up is given in epochs and in batches; give one of them.")
    if length.divided and warmup is not None:
        raise OptionError("a run without epochs has a warm-up in batches: warmup_batches.")
    text = schedule or ("ladder" if method is None else method.schedule)
    source = "predicted" if method is None else method.source or "predicted"
    if not length.divided and warmup_batches is None:
        return parse_schedule(text, length.epochs, warmup, source)
    inner = parse_schedule(text, length.epochs, 0, source)
    usual = parse_schedule(text, 10 * length.epochs, None, source)
    total = length.batches or length.epochs * length.batches_per_epoch
    warm = warmup_batches
    if warm is None:
        warm = scaled_warmup(total) if isinstance(usual, WarmUp) else 0
    if warm >= total:
        raise OptionError(f"a warm-up of {warm} batches does not fit a run of {total}: nothing would be predicted.")
    if not inner.sources or not warm:
        return inner
    return WarmUp(inner, batches=warm, batches_per_epoch=length.batches_per_epoch)


def refuse_foreign_options(method: Method | None, options: Mapping[str, Any]) -> None:
    """Refuse options that the method does not have, or with values that it does not take."""
    if not options:
        return
    first = next(iter(options))
    if method is None:
        raise OptionError(f"attach has no option '{first}'; options of a method go with method=....")
    known = {option.name: option for option in method.options}
    for name, value in options.items():
        if name not in known:
            raise (
                unknown_name(f"option of method '{method.name}'", name, known)
                if known
                else OptionError(f"method '{method.name}' has no options; got '{name}'.")
            )
        known[name].check_type(value, "attach")
        known[name].check(value)
