"""Schedules in a small text form, the same on the command line, in config files and in run folders.

ladder                     the paper's ladder shrunk to the length of the run
paper                      the paper's ladder as printed: 4:1x4,3:1x4,2:1x4,1:1
3:1                        three GP batches, one BP batch, to the end
4:1x4,2:1x8,1:1            rungs: 4:1 for four epochs, 2:1 for eight, then 1:1
epochs:3:1                 three whole epochs of GP, one of BP
bp                         backprop only
approx:1                   the published approximation schedules (also approx:2, approx:3, approx:2-layer)
adaptive                   GP phases of 1 to 8 batches, longer or shorter as predictions are good or not
adaptive:2-16              the same with phases of 2 to 16 batches
sites=...; batches=...     some sites from a source on some batches, all else by backprop; see below

Clauses of the last form, separated by semicolons; all but `sites` may be left out:

sites=every 4th conv from 2nd     counted among the convolutions; also linear, or layer for any site
sites=every 2nd conv              the 2nd, 4th, 6th, ...
sites=2nd conv, fc                one by its number, one by its name; layer3.* is a pattern of names
sites=all                         every site
sites=cut 40%                     the first sites, just enough that a backward pass which stops above them saves 40% of a
                                  batch's work; all other parameters below the cut are held
sites=cut at layer3.0.conv1       all sites that run before that one
batches=all                       every batch (the default)
batches=every 4th from 2nd        the 2nd, 6th, 10th, ... of each epoch; every 4th alone begins with the 4th
batches=2:1                       two batches from the source, one by backprop
source=topk                       where those sites' gradients come from
rest=hold                         on those batches hold what belongs to no site (default: train it by backprop)
first=allowed                     lets a pattern take the model's first site, which is refused otherwise (a cut may)
"""

import re

from adagp.errors import OptionError
from adagp.schedules.adaptive import Adaptive
from adagp.schedules.base import Schedule
from adagp.schedules.ladder import PAPER_RUNGS, BackpropOnly, EpochAlternation, Ladder, Rung, scaled_warmup
from adagp.schedules.pattern import APPROXIMATIONS, Pattern, read_pattern

FORMS = "ladder, paper, K:M, K:MxEPOCHS,...,K:M, epochs:K:M, bp, approx:1|2|3|2-layer, "
FORMS += "adaptive[:LOW-HIGH], sites=...; batches=..."
_ADAPTIVE = re.compile(r"adaptive:(\d+)-(\d+)")
_RUNG = re.compile(r"(-?\d+):(-?\d+)(?:x(-?\d+))?")


def parse_schedule(text: str, epochs: int, warmup: int | None = None, source: str = "predicted") -> Schedule:
    """Return the schedule that `text` describes for a run of `epochs`.

    `warmup` is in epochs; None means the paper's share (a ninth) of the run, the paper's own 10 for `paper`, and none for
    schedules by patterns. A warm-up as long as the run is refused: nothing would ever be predicted.
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


def _build(text: str, epochs: int, warmup: int | None, source: str) -> Ladder | EpochAlternation | Pattern | Adaptive:
    if text in APPROXIMATIONS or "=" in text:
        return read_pattern(text, warmup or 0, source)
    if text == "ladder":
        return Ladder.scaled(epochs, warmup, source)
    if text == "paper":
        return Ladder(rungs=PAPER_RUNGS, source=source) if warmup is None else Ladder(warmup, PAPER_RUNGS, source)
    own_warmup = scaled_warmup(epochs) if warmup is None else warmup
    if text == "adaptive":
        return Adaptive(own_warmup, source=source)
    if match := _ADAPTIVE.fullmatch(text):
        return Adaptive(own_warmup, int(match[1]), int(match[2]), source)
    if text.startswith("epochs:"):
        return EpochAlternation(own_warmup, _rung(text.removeprefix("epochs:"), text), source)
    return Ladder(own_warmup, tuple(_rung(part, text) for part in text.split(",")), source)


def schedule_forms() -> str:
    """Return how schedules can be written."""
    return FORMS


def _rung(part: str, whole: str) -> Rung:
    match = _RUNG.fullmatch(part.strip())
    if match is None:
        raise OptionError(f"cannot read the ratio '{whole}'. Allowed forms: {FORMS}.")
    predicted, true, epochs = match.groups()
    return Rung(int(predicted), int(true), None if epochs is None else int(epochs))
