"""The engine's own cost: batches under adagp against the least that PyTorch needs for them."""

from dataclasses import replace
from functools import partial

from adagp import EngineOptions
from adagp.core.plan import Phase, Step
from adagp.papers.adagp.source import PredictedSource
from adagp.program.reproduce.published import published
from adagp.schedules import BackpropOnly, Ladder, Rung, WarmUp, parse_schedule
from benchmarks.measure import Clock, Ratio, twice
from benchmarks.subjects import Subject, after

WARMUP = 2
"""Batches of backprop before the GP batches that are timed: an epoch of a `Subject`, so that something is predicted."""


def batches(subject: Subject, clock: Clock, gp_at_most: float | None, bp_at_most: float | None) -> list[Ratio]:
    """Return the ratios for one model: GP against a no-grad forward and a step, BP and its metrics against plain BP."""
    learning = WarmUp(Ladder(), epochs=10**9)
    race = clock.race(
        {
            "forward and step": twice(lambda: subject.plain(backward=False)),
            "gp": twice(lambda: after(subject.under(WarmUp(Ladder((Rung(1, 0),)), epochs=1)), WARMUP)),
            "plain bp": twice(lambda: subject.plain(backward=True)),
            "bp with predictor": twice(lambda: subject.under(learning)),
            "bp with metrics": [subject.under(learning, EngineOptions(metrics_every=1))],
            "bp under adagp without predictor": [subject.under(BackpropOnly())],
        }
    )

    def row(name: str, other: str = "plain bp", at_most: float | None = None) -> Ratio:
        title = f"{subject.name}: {name} / {other}"
        return Ratio(title, race.ratio(name, other), at_most, race.milliseconds(name, other))

    sampled = race.ratio("bp with metrics", "bp with predictor") - 1
    return [
        row("gp", "forward and step", gp_at_most),
        row("bp with predictor", at_most=bp_at_most),
        row("bp under adagp without predictor"),
        Ratio(f"{subject.name}: plain bp / plain bp of another such model", race.chance("plain bp")),
        Ratio(f"{subject.name}: bp with metrics every 10 / without", 1 + sampled / 10),
        row("gp"),
    ]


def parts(subject: Subject, clock: Clock, number: int) -> Ratio:
    """Return the time of a BP batch whose predictor learns from 1/`number` of the rows, against plain BP."""
    learning, source = WarmUp(Ladder(), epochs=10**9), PredictedSource(parts=number)
    race = clock.race(
        {"plain": [subject.plain(backward=True)], "parts": [subject.under(learning, sources={"predicted": source})]}
    )
    name = f"{subject.name}: bp with predictor, one of {number} parts / plain bp"
    return Ratio(name, race.ratio("parts", "plain"), None, race.milliseconds("parts", "plain"))


def approximation(clock: Clock) -> list[Ratio]:
    """Return what `zero` and `topk` on every 4th convolution of ResNet-20 cost, against plain BP.

    In three times as many rounds as other ratios, since the gain is a few per cent.
    """
    clock = replace(clock, rounds=3 * clock.rounds)
    subject = Subject("resnet20", 128)
    sample = subject.data()[0][:2]
    gains = published("approximation-table3").numbers("speedup")
    names = ("zero", "topk")
    schedules = {name: parse_schedule("approx:1", 1, None, name) for name in names}
    race = clock.race(
        {"plain": twice(lambda: subject.plain(backward=True))}
        | {name: twice(lambda own=own: subject.under(own, sample=sample)) for name, own in schedules.items()}  # type: ignore[misc]
    )
    found = {name: race.ratio(name, "plain") for name in names}
    return [
        Ratio(
            f"{subject.name}: {name} on every 4th convolution / plain bp",
            ratio,
            1.0,
            f"gain {100 * (1 - ratio):.1f}%, published {gains[name]}% (on a GPU)",
        )
        for name, ratio in found.items()
    ]


def precision(clock: Clock) -> list[Ratio]:
    """Return batches by backprop in emulated block floating point against plain ones."""
    subject = Subject("resnet20", 128)
    names = ("bfp4", "fast")
    race = clock.race(
        {"plain": twice(lambda: subject.plain(backward=True))}
        | {
            name: twice(partial(subject.under, BackpropOnly(), EngineOptions(precision=name, metrics_every=0)))
            for name in names
        }
    )
    return [
        Ratio(
            f"{subject.name}: bp in {name} / plain bp",
            race.ratio(name, "plain"),
            3.0,
            race.milliseconds(name, "plain"),
        )
        for name in names
    ]


def compiled(clock: Clock) -> list[Ratio]:
    """Return batches of a compiled model against those of the same one as it is."""
    subject = Subject("resnet20", 128)
    learning, predicting = WarmUp(Ladder(), epochs=10**9), WarmUp(Ladder((Rung(1, 0),)), epochs=1)
    race = clock.race(
        {
            "bp": [subject.under(learning)],
            "bp compiled": [subject.under(learning, EngineOptions(compile=True, metrics_every=0))],
            "gp": [after(subject.under(predicting), WARMUP)],
            "gp compiled": [after(subject.under(predicting, EngineOptions(compile=True, metrics_every=0)), WARMUP + 1)],
        }
    )
    return [
        Ratio(f"{subject.name}: {kind} compiled / not compiled", race.ratio(f"{kind} compiled", kind))
        for kind in ("bp", "gp")
    ]


def whole_run(clock: Clock, epochs: int, per_epoch: int) -> Ratio:
    """Return the seconds of a run on the paper's ladder, shrunk to `epochs`, over those of plain BP on the same batches.

    The batches of both runs alternate. At most 1 / 1.38: the ladder of 90 epochs allows 1.465 if a batch is three
    forward passes and a predictor costs nothing. Short epochs end within a GP phase, so their share of GP batches is larger and
    a larger speed-up is possible; `detail` has it.
    """
    subject, schedule = Subject("vgg13", 128), parse_schedule("ladder", epochs)
    trainer = subject.trainer(schedule, engine=EngineOptions(metrics_every=10), per_epoch=per_epoch)
    inputs, targets = subject.data()
    plain = after(subject.plain(backward=True), 1)
    steps = [Step(epoch, batch) for epoch in range(epochs) for batch in range(per_epoch)]
    share = sum(schedule.plan(step).phase is Phase.GP for step in steps) / len(steps)
    ours = theirs = 0.0
    for _ in steps:
        start = clock.now()
        trainer.step(inputs, targets, subject.loss)
        middle = clock.now()
        plain()
        ours, theirs = ours + middle - start, theirs + clock.now() - middle
    possible = 1 / (1 - share * 2 / 3)
    detail = f"speed-up {theirs / ours:.2f} of {possible:.3f}; {100 * share:.0f}% of {len(steps)} batches are GP"
    return Ratio(f"{subject.name}: whole run on the ladder / plain bp", ours / theirs, 1 / 1.38, detail)
