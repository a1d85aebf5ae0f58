"""What a GP batch is worth in batches by backprop, what it costs on a platform, and whether that pays.

Backprop is trained at several lengths (`adagp compare --curve`). A method that comes to some accuracy after `n` BP and `m` GP
batches did as well as backprop does after some number N of batches, found on that curve; so a GP batch was **worth**
w = (N - n) / m batches by backprop. On a platform it has a **price** r, and learning makes a BP batch dearer by an **overhead**
o, both in batches by plain backprop. The method pays where w is above r + o n / m, its break-even.

Between two lengths the curve is a straight line over the logarithm of the batches, through the means over seeds; where a longer
run was worse than a shorter one, it is level. The interval of w is that of the accuracy, read off the curve. Runs of one seed
begin alike and see the same batches, so what counts is by how much the method differs from backprop's own curve, seed by seed
(Student's t over the seeds that both have). An accuracy beyond the curve has no N.
"""

from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import exp, log, sqrt
from statistics import mean, variance
from typing import Any

from adagp.core.intervals import student_t
from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.hw import Workload
from adagp.program.compare.modelled_cost import (
    BALANCED,
    BEST,
    AcceleratorCost,
    AcceleratorPlatform,
    BatchCost,
    PipelineCost,
    PipelinePlatform,
)
from adagp.program.run.config import TrainConfig
from adagp.program.run.metrics import Metric

Record = dict[str, Any]
PAYS, PAYS_NOT, UNCLEAR = "pays", "does not pay", "too close to say"


BySeed = Mapping[int, float]
"""Results of runs that differ in their seed alone."""


@dataclass(frozen=True)
class Curve:
    """Backprop's metric (the larger, the better) against its number of batches, rising in both; and its results by seed."""

    batches: tuple[int, ...]
    values: tuple[float, ...]
    seeds: tuple[BySeed, ...]

    def batches_for(self, value: float) -> float | None:
        """Return after how many batches backprop comes to `value`; None beyond the curve."""
        if not self.values[0] <= value <= self.values[-1]:
            return None
        place, share = self._between(value)
        first, last = self.batches[place - 1 : place + 1]
        return exp(log(first) + share * (log(last) - log(first)))

    def seeds_at(self, value: float) -> BySeed:
        """Return what each seed came to where the curve comes to `value`; beyond the curve, at its end."""
        if len(self.values) == 1:
            return self.seeds[0]
        place, share = self._between(min(max(value, self.values[0]), self.values[-1]))
        low, high = self.seeds[place - 1 : place + 1]
        return {seed: low[seed] + share * (high[seed] - low[seed]) for seed in low.keys() & high.keys()}

    def _between(self, value: float) -> tuple[int, float]:
        """Return the place of the length that follows a value of the curve, and how far the value is on the way there."""
        place = max(1, bisect_left(self.values, value))
        low, high = self.values[place - 1 : place + 1]
        return place, (value - low) / (high - low) if high > low else 0.0


def read_curve(points: Mapping[int, BySeed], metric: Metric) -> Curve:
    """Return the curve through backprop's results by number of batches; each has one result or more."""
    batches = sorted(points)
    seeds = tuple(_signed(points[number], metric) for number in batches)
    return Curve(tuple(batches), tuple(accumulate((mean(one.values()) for one in seeds), max)), seeds)


def _signed(values: BySeed, metric: Metric) -> BySeed:
    return {seed: metric.sign * value for seed, value in values.items()}


def _error(values: Collection[float]) -> float:
    """Return the standard error of the mean."""
    return sqrt(variance(values) / len(values)) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Worth:
    """The worth of a GP batch; an end of the interval is None where it lies beyond the curve, or with one seed."""

    worth: float | None
    low: float | None
    high: float | None
    backprop: float
    predicted: float
    beyond: str = ""


def find_worth(curve: Curve, values: BySeed, backprop: float, predicted: float, metric: Metric) -> Worth:
    """Return the worth of each of `predicted` GP batches in runs that had `backprop` others and came to `values`."""
    own = _signed(values, metric)
    found = mean(own.values())

    def worth(value: float) -> float | None:
        batches = curve.batches_for(value)
        return None if batches is None else (batches - backprop) / predicted

    plain = curve.seeds_at(found)
    ahead = [own[seed] - plain[seed] for seed in own.keys() & plain.keys()]
    ends: tuple[float | None, float | None] = None, None
    if len(ahead) > 1:
        reach = student_t(len(ahead) - 1) * _error(ahead)
        ends = worth(found - reach), worth(found + reach)
    beyond = "below" if found < curve.values[0] else "above" if found > curve.values[-1] else ""
    return Worth(worth(found), *ends, backprop, predicted, beyond)


@dataclass(frozen=True)
class Price:
    """What a method's batches cost on a platform, in batches by plain backprop: a GP batch, and learning in a BP batch.

    `bound` is the price of a GP batch where backprop has no bubble at all, None where there are no bubbles anyway.
    """

    price: float
    overhead: float
    bound: float | None = None
    details: str = ""

    def break_even(self, worth: Worth) -> float:
        """Return the worth from which on the method pays, with the BP batches that its runs had for each GP batch."""
        return self.price + self.overhead * worth.backprop / worth.predicted


def verdict(worth: Worth, price: Price) -> str:
    """Say whether a method pays on a platform: whether all of its interval is on one side of the break-even."""
    needed = price.break_even(worth)
    if worth.low is not None and worth.low > needed:
        return PAYS
    if worth.high is not None and worth.high < needed:
        return PAYS_NOT
    return UNCLEAR


def worth_record(document: Record, metric: Metric, prices: Mapping[str, Mapping[str, Price]]) -> Record:
    """Return the break-even of all methods of a comparison's report as plain values.

    A method's worth is that of the regime in which it is known best; `regimes` has all.
    """
    curve = read_curve(curve_points(document, metric), metric)
    methods: dict[str, Record] = {}
    for name, own in prices.items():
        by_regime = {
            regime: find_worth(curve, *_runs(document, regime, name, metric), metric)
            for regime in document["regimes"]
            if _runs(document, regime, name, metric)[2]
        }
        if not by_regime:
            continue
        chosen = min(by_regime, key=lambda regime: _width(by_regime[regime]))
        worth = by_regime[chosen]
        methods[name] = {
            **_fields(worth),
            "regime": chosen,
            "regimes": {regime: _fields(one) for regime, one in by_regime.items()},
            "platforms": {
                platform: {
                    "price": price.price,
                    "overhead": price.overhead,
                    "break_even": price.break_even(worth),
                    "price_without_bubbles": price.bound,
                    "verdict": verdict(worth, price),
                    "details": price.details,
                }
                for platform, price in own.items()
            },
        }
    points = zip(curve.batches, curve.values, curve.seeds, strict=True)
    rows = [{"batches": n, metric.name: metric.sign * value, "error": _error(own.values())} for n, value, own in points]
    return {"metric": metric.name, "curve": rows, "methods": methods}


def curve_points(document: Record, metric: Metric) -> dict[int, dict[int, float]]:
    """Return backprop's results by number of batches and seed: those of the curve and of all regimes."""
    points: dict[int, dict[int, float]] = {}
    for run in [*document["curve"], *document["runs"]]:
        if run["method"] == "bp" and run[metric.name] is not None:
            points.setdefault(int(run["batches"]), {})[run["seed"]] = run[metric.name]
    return points


def _runs(document: Record, regime: str, name: str, metric: Metric) -> tuple[BySeed, float, float]:
    """Return the results of a method's runs in a regime, and their mean numbers of BP and GP batches."""
    runs = [one for one in document["runs"] if (one["regime"], one["name"]) == (regime, name)]
    runs = [one for one in runs if one[metric.name] is not None]
    if not runs:
        return {}, 0.0, 0.0
    predicted = mean(one["gp_batches"] + one["guarded_batches"] for one in runs)
    values = {one["seed"]: one[metric.name] for one in runs}
    return values, mean(one["bp_batches"] for one in runs), predicted


def _width(worth: Worth) -> tuple[int, float]:
    """Return what sorts regimes by how well they tell the worth: whole intervals first, the narrowest of them."""
    missing = sum(end is None for end in (worth.worth, worth.low, worth.high))
    return missing, (worth.high or 0.0) - (worth.low or 0.0)


def _fields(worth: Worth) -> Record:
    return {
        "worth": worth.worth,
        "interval": [worth.low, worth.high],
        "bp_batches": worth.backprop,
        "gp_batches": worth.predicted,
        "beyond_curve": worth.beyond,
    }


PRICED_DEVICES = (4, 8, 16, 32, 64)
"""Of the pipelines that are always asked about, with as many micro-batches."""
QUICKEST = ("chimera", "zb-h1", "zb-v")
"""The exact pipelines that are ahead of the others where stages are equal and micro-batches as many as devices."""


def platform_models(
    workload: Workload, batches_per_epoch: int, accelerator: AcceleratorPlatform, pipeline: PipelinePlatform
) -> dict[str, AcceleratorCost | PipelineCost]:
    """Return the modelled platforms by name: the accelerator, the pipeline, and balanced pipelines of 4 to 64 devices."""
    found: dict[str, AcceleratorCost | PipelineCost] = {
        "accelerator": AcceleratorCost(accelerator, workload, batches_per_epoch),
        "pipeline": PipelineCost(pipeline, accelerator, workload, batches_per_epoch),
    }
    for devices in PRICED_DEVICES:
        platform = PipelinePlatform(BEST, devices, devices, BALANCED)
        found[f"pipeline-{devices}"] = PipelineCost(platform, accelerator, workload, batches_per_epoch, QUICKEST)
    return found


def method_prices(
    config: TrainConfig,
    reference: TrainConfig,
    models: Mapping[str, AcceleratorCost | PipelineCost],
    share: float | None = None,
) -> dict[str, Price]:
    """Return a method's prices on modelled platforms; those that it cannot be costed on are left out."""
    found = {}
    for name, model in models.items():
        try:
            plain, own = model.batch_costs(reference), model.batch_costs(config, share)
        except OptionError:
            continue  # too many stages for the model, or a schedule that a pipeline cannot run
        unit = _mean_cost(plain, predicted=False)
        price, learning = _mean_cost(own, predicted=True) / unit, _mean_cost(own, predicted=False) / unit
        details, bound = model.text, None
        if isinstance(model, PipelineCost):
            bound = price * unit / model.bound(reference)
            details += f"; bp: {model.best(reference)[0]}, {config.method}: {model.best(config, share)[0]}"
        found[name] = Price(price, learning - 1, bound, details)
    return found


def measured_price(calibration: Record | None, name: str, reference: str) -> dict[str, Price]:
    """Return a method's price on this CPU, if its batches were timed; fetching the data is a part of every batch."""
    if calibration is None:
        return {}
    own, plain = (calibration["methods"][one]["cost"] for one in (name, reference))
    if "gp" not in own:
        return {}
    unit = plain["bp"] + plain["data"]
    price = (own["gp"] + own["data"]) / unit
    learning = (own.get("bp", plain["bp"]) + own["data"]) / unit
    return {"cpu": Price(price, learning - 1, None, f"medians of {calibration['rounds']} timings, one thread")}


def _mean_cost(costs: list[BatchCost], *, predicted: bool) -> float:
    """Return the mean cost of the GP batches, or of the others."""
    chosen = [one for one in costs if (one.phase is Phase.GP) is predicted]
    batches = sum(one.batches for one in chosen)
    return sum(one.batches * one.cost for one in chosen) / batches if batches else 0.0
