r"""Schedules in a small text form, the same on the command line, in config files and in run folders.

ladder                     ADA-GP's ladder scaled to the length of the run
paper                      ADA-GP's ladder as printed: 4:1x4,3:1x4,2:1x4,1:1
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
                                  batch's work; all other parameters below the cut are frozen
sites=cut at layer3.0.conv1       all sites that run before that one
batches=all                       every batch (the default)
batches=every 4th from 2nd        the 2nd, 6th, 10th, ... of each epoch; every 4th alone begins with the 4th
batches=2:1                       two batches from the source, one by backprop
source=topk                       where those sites' gradients come from
rest=hold                         on those batches freeze parameters of no site (default: train them by backprop)
sites=2nd conv; source=zero + sites=3rd conv; source=topk
                                  several patterns at once, each with its own source
first=allowed                     lets a pattern take the model's first site, otherwise an error (a cut may)

To add your own form, under the text by which help and errors show it:

SCHEDULE_FORMS.add("every:N", TextForm(r"every:\d+", lambda text, epochs, source: Every(int(text[6:]), source)))
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from adagp.core.registry import Registry
from adagp.errors import OptionError
from adagp.schedules.adaptive import Adaptive
from adagp.schedules.base import Schedule
from adagp.schedules.ladder import PAPER_WARMUP, BackpropOnly, EpochAlternation, Ladder, Rung, WarmUp, scaled_warmup
from adagp.schedules.pattern import APPROXIMATIONS, Pattern, read_clauses

LONGEST_TEXT = 10_000
_PART = r"(-?\d+):(-?\d+)(?:x(-?\d+))?"
_RUNG = rf"\s*{_PART}\s*"


@dataclass(frozen=True)
class TextForm:
    """A text form of schedules: `read(text, epochs, source)` returns the schedule, without warm-up, for a text that matches
    `pattern` as a whole.

    `warmup` returns the usual number of warm-up epochs for the number of epochs of a run.
    """

    pattern: str
    read: Callable[[str, int, str], Schedule]
    warmup: Callable[[int], int] = scaled_warmup


def schedule_forms() -> str:
    """Return all forms as they are written, separated by commas."""
    return ", ".join(SCHEDULE_FORMS)


def parse_schedule(text: str, epochs: int, warmup: int | None = None, source: str = "predicted") -> Schedule:
    """Return the schedule that `text` describes for a run of `epochs`, after its warm-up.

    `warmup` is in epochs; None means the form's own: ADA-GP's share (a ninth) of the run, its 10 for `paper`, and
    none for schedules by patterns. A warm-up as long as the run is an error: nothing would be predicted. A schedule
    without sources has no warm-up.
    """
    form = _form_of(text)
    schedule = form.read(text, epochs, source)
    if not schedule.sources:
        return schedule
    length = form.warmup(epochs) if warmup is None else warmup
    if length >= epochs:
        raise OptionError(
            f"warm-up of {length} epoch{'s' * (length != 1)} does not fit a run of {epochs}: nothing would be predicted. "
            + (
                "Give more epochs, a warm-up of 0, or one in batches."
                if epochs == 1
                else f"Give a warm-up of 0 to {epochs - 1}, or more epochs."
            )
        )
    return WarmUp(schedule, epochs=length) if length else schedule


def usual_warmup(text: str, epochs: int) -> int | None:
    """Return the epochs of a schedule's usual warm-up in a run of `epochs`; None if that is not a share of the run."""
    form = _form_of(text)
    is_share = form.warmup is scaled_warmup and bool(form.read(text, epochs, "predicted").sources)
    return scaled_warmup(epochs) if is_share else None


def _form_of(text: str) -> TextForm:
    if len(text) > LONGEST_TEXT or re.search(r"\d{10}", text):
        raise OptionError(
            f"cannot read the schedule '{text[:40]}...'; it may have at most {LONGEST_TEXT:,} characters, and numbers of at "
            "most 9 digits."
        )
    for written in reversed(list(SCHEDULE_FORMS)):
        if re.fullmatch(SCHEDULE_FORMS[written].pattern, text, re.DOTALL):
            return SCHEDULE_FORMS[written]
    raise OptionError(f"cannot read the schedule '{text}'. Allowed forms: {schedule_forms()}.")


def _rungs(text: str) -> tuple[Rung, ...]:
    parts = re.findall(_PART, text)
    return tuple(Rung(int(predicted), int(true), int(epochs) if epochs else None) for predicted, true, epochs in parts)


def _approximation(text: str, epochs: int, source: str) -> Pattern:
    sites, batches = APPROXIMATIONS[text]
    return Pattern(sites, batches, source)


def _adaptive(text: str, epochs: int, source: str) -> Adaptive:
    lengths = [int(number) for number in re.findall(r"\d+", text)]
    return Adaptive(lengths[0], lengths[1], source) if lengths else Adaptive(source=source)


SCHEDULE_FORMS: Registry[TextForm] = Registry("schedule form")
"""Forms by the text that help and errors show. If several forms match a text, the one that was added last reads it."""

SCHEDULE_FORMS.add("ladder", TextForm("ladder", lambda text, epochs, source: Ladder.scaled(epochs, source)))
SCHEDULE_FORMS.add(
    "paper", TextForm("paper", lambda text, epochs, source: Ladder(source=source), lambda epochs: PAPER_WARMUP)
)
SCHEDULE_FORMS.add(
    "K:M, K:MxEPOCHS,...,K:M",
    TextForm(f"{_RUNG}(,{_RUNG})*", lambda text, epochs, source: Ladder(_rungs(text), source)),
)
SCHEDULE_FORMS.add(
    "epochs:K:M", TextForm(f"epochs:{_RUNG}", lambda text, epochs, source: EpochAlternation(_rungs(text)[0], source))
)
SCHEDULE_FORMS.add("bp", TextForm("bp", lambda text, epochs, source: BackpropOnly()))
SCHEDULE_FORMS.add("approx:1|2|3|2-layer", TextForm("|".join(APPROXIMATIONS), _approximation, lambda epochs: 0))
SCHEDULE_FORMS.add("adaptive[:LOW-HIGH]", TextForm(r"adaptive(:\d+-\d+)?", _adaptive))
SCHEDULE_FORMS.add("sites=...; batches=...", TextForm(".*=.*", read_clauses, lambda epochs: 0))
