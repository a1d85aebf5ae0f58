"""Schedules in a small text form, the same on the command line, in config files and in run folders.

ladder                     the paper's ladder shrunk to the length of the run
paper                      the paper's ladder as printed: 4:1x4,3:1x4,2:1x4,1:1
3:1                        three GP batches, one BP batch, to the end
4:1x4,2:1x8,1:1            rungs: 4:1 for four epochs, 2:1 for eight, then 1:1
epochs:3:1                 three whole epochs of GP, one of BP
bp                         backprop only
"""

import re

from adagp.errors import OptionError
from adagp.schedules.base import Schedule
from adagp.schedules.ladder import PAPER_RUNGS, BackpropOnly, EpochAlternation, Ladder, Rung, scaled_warmup

FORMS = "ladder, paper, K:M, K:MxEPOCHS,...,K:M, epochs:K:M, bp"
_RUNG = re.compile(r"(-?\d+):(-?\d+)(?:x(-?\d+))?")


def parse_schedule(text: str, epochs: int, warmup: int | None = None, source: str = "predicted") -> Schedule:
    """Return the schedule that `text` describes for a run of `epochs`.

    `warmup` is in epochs; None means the paper's share (a ninth) of the run, or the paper's own 10 for `paper`. A warm-up
    as long as the run is refused: nothing would ever be predicted.
    """
    if text == "bp":
        return BackpropOnly()
    schedule = _build(text, epochs, warmup, source)
    if schedule.warmup >= epochs:
        raise OptionError(
            f"warm-up of {schedule.warmup} epochs does not fit a run of {epochs}: nothing would be predicted. "
            + (
                "Give more epochs, or --warmup 0."
                if epochs == 1
                else f"Give --warmup 0 to {epochs - 1}, or more epochs."
            )
        )
    return schedule


def _build(text: str, epochs: int, warmup: int | None, source: str) -> Ladder | EpochAlternation:
    if text == "ladder":
        return Ladder.scaled(epochs, warmup, source)
    if text == "paper":
        return Ladder(rungs=PAPER_RUNGS, source=source) if warmup is None else Ladder(warmup, PAPER_RUNGS, source)
    own_warmup = scaled_warmup(epochs) if warmup is None else warmup
    if text.startswith("epochs:"):
        return EpochAlternation(own_warmup, _rung(text.removeprefix("epochs:"), text), source)
    return Ladder(own_warmup, tuple(_rung(part, text) for part in text.split(",")), source)


def _rung(part: str, whole: str) -> Rung:
    match = _RUNG.fullmatch(part.strip())
    if match is None:
        raise OptionError(f"cannot read the ratio '{whole}'. Allowed forms: {FORMS}.")
    predicted, true, epochs = match.groups()
    return Rung(int(predicted), int(true), None if epochs is None else int(epochs))
