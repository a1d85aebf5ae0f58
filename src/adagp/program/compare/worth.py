"""What a GP batch is worth in backprop batches, what it costs on a platform, and whether that pays.

Backprop is trained at several lengths (`adagp compare --curve`). A method that reaches some accuracy after `n` BP and `m` GP
batches does as well as backprop after N batches, read off that curve; so a GP batch is **worth** w = (N - n) / m batches of
backprop. On a platform it has a **price** r, and learning adds an **overhead** o to a BP batch, both in batches of plain
backprop. The method pays if w is above its break-even, r + o n / m. If a method has another batch size than backprop, its
batches are counted by their samples: one of twice as many samples is two batches, in n and m as in the prices.

Between two lengths the curve through the means over seeds is linear in the logarithm of the batches; if a longer run was worse
than a shorter one, the curve is constant there. The interval of w is that of the accuracy, read off the curve. Runs of one seed
have the same initial weights and the same batches, so the interval is that of the paired differences from backprop's curve
(Student's t over the common seeds). An accuracy beyond the curve has no N.
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
    CostModel,
    EpochLength,
    PipelineCost,
    PipelinePlatform,
)
from adagp.program.run.config import TrainConfig
from adagp.program.run.documents import (
    ANYTHING,
    COUNT,
    MODERATE,
    TEXT,
    WHOLE,
    Both,
    Fields,
    ListOf,
    Plain,
    TableOf,
    one_of,
    record_of,
)
from adagp.program.run.metrics import Metric

Record = dict[str, Any]
PAYS, PAYS_NOT, UNCLEAR = "pays", "does not pay", "too close to say"


_AMOUNT = Plain("a number from -1e+18 to 1e+18 or null", lambda value: value is None or MODERATE.accepted(value))
_METHOD = record_of(
    {
        "worth": _AMOUNT,
        "interval": Both(ListOf(_AMOUNT), Plain("a list of two", lambda value: len(value) == 2)),
        "regime": TEXT,
        "bp_batches": MODERATE,
        "gp_batches": MODERATE,
        "beyond_curve": TEXT,
        "platforms": TableOf(
            record_of(
                {
                    **dict.fromkeys(("price", "overhead", "break_even"), MODERATE),
                    "price_without_bubbles": _AMOUNT,
                    "verdict": one_of(PAYS, PAYS_NOT, UNCLEAR),
                    "details": TEXT,
                }
            )
        ),
    }
)
WORTH = Fields(
    {
        "metric": TEXT,
        "batch_sizes": TableOf(WHOLE),
        "backprop_batch_sizes": ListOf(WHOLE),
        "curve": ListOf(record_of({"batches": COUNT})),
        "methods": Both(TableOf(_METHOD), Plain("a table of at most 50 methods", lambda value: len(value) <= 50)),
    },
    ANYTHING,
    ("metric", "curve", "methods"),  # earlier versions stored no batch sizes
)
"""What `worth_record` returns, as report.json holds it."""

BySeed = Mapping[int, float]
"""Results of runs that differ only in their seed."""


@dataclass(frozen=True)
class Curve:
    """Backprop's metric (larger is better) by number of batches, made non-decreasing; and its results by seed."""

    batches: tuple[int, ...]
    values: tuple[float, ...]
    seeds: tuple[BySeed, ...]

    def batches_for(self, value: float) -> float | None:
        """Return after how many batches backprop reaches `value`; None beyond the curve."""
        if not self.values[0] <= value <= self.values[-1]:
            return None
        index, share = self._segment(value)
        first, last = self.batches[index - 1 : index + 1]
        return exp(log(first) + share * (log(last) - log(first)))

    def seeds_at(self, value: float) -> BySeed:
        """Return the results by seed where the curve reaches `value`; beyond the curve, at its end."""
        if len(self.values) == 1:
            return self.seeds[0]
        index, share = self._segment(min(max(value, self.values[0]), self.values[-1]))
        low, high = self.seeds[index - 1 : index + 1]
        return {seed: low[seed] + share * (high[seed] - low[seed]) for seed in low.keys() & high.keys()}

    def _segment(self, value: float) -> tuple[int, float]:
        """Return the index of the point after `value`, and the position (0 to 1) between the point before and that one."""
        index = max(1, bisect_left(self.values, value))
        low, high = self.values[index - 1 : index + 1]
        return index, (value - low) / (high - low) if high > low else 0.0


def read_curve(points: Mapping[int, BySeed], metric: Metric) -> Curve:
    """Return the curve through backprop's results, by number of batches and seed."""
    batches = sorted(points)
    seeds = tuple(_signed(points[number], metric) for number in batches)
    return Curve(tuple(batches), tuple(accumulate((mean(results.values()) for results in seeds), max)), seeds)


def _signed(values: BySeed, metric: Metric) -> BySeed:
    return {seed: metric.sign * value for seed, value in values.items()}


def _error(values: Collection[float]) -> float:
    return sqrt(variance(values) / len(values)) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Worth:
    """The worth of a GP batch, with its interval. An end beyond the curve is None; with a single seed both ends are None."""

    worth: float | None
    low: float | None
    high: float | None
    backprop: float
    predicted: float
    beyond: str = ""


def find_worth(
    curve: Curve, values: BySeed, backprop: float, predicted: float, metric: Metric, scale: float = 1.0
) -> Worth:
    """Return the worth of a GP batch of runs with `predicted` GP and `backprop` BP batches and the results `values`.

    `scale` is the method's batch size relative to that of backprop's curve.
    """
    signed = _signed(values, metric)
    result = mean(signed.values())

    def worth(value: float) -> float | None:
        batches = curve.batches_for(value)
        return None if batches is None else (batches / scale - backprop) / predicted

    plain = curve.seeds_at(result)
    ahead = [signed[seed] - plain[seed] for seed in signed.keys() & plain.keys()]
    ends: tuple[float | None, float | None] = None, None
    if len(ahead) > 1:
        half_width = student_t(len(ahead) - 1) * _error(ahead)
        ends = worth(result - half_width), worth(result + half_width)
    beyond = "below" if result < curve.values[0] else "above" if result > curve.values[-1] else ""
    return Worth(worth(result), *ends, backprop, predicted, beyond)


@dataclass(frozen=True)
class Price:
    """The cost of a GP batch, and the overhead of learning in a BP batch, in batches of plain backprop.

    Batches of another size than backprop's are counted by their samples. `bound` is the price relative to a pipeline without
    bubbles; None for platforms that have none.
    """

    price: float
    overhead: float
    bound: float | None = None
    details: str = ""

    def break_even(self, worth: Worth) -> float:
        """Return the least worth at which the method pays, for its runs' ratio of BP to GP batches."""
        return self.price + self.overhead * worth.backprop / worth.predicted


def verdict(worth: Worth, price: Price) -> str:
    """Return whether a method pays: whether its whole interval is on one side of the break-even."""
    needed = price.break_even(worth)
    if worth.low is not None and worth.low > needed:
        return PAYS
    if worth.high is not None and worth.high < needed:
        return PAYS_NOT
    return UNCLEAR


def worth_record(document: Record, metric: Metric, prices: Mapping[str, Mapping[str, Price]]) -> Record:
    """Return the field `worth` of a comparison's report.

    A method's worth is that of the regime with the narrowest interval; `regimes` has all.
    """
    curve = read_curve(curve_points(document, metric), metric)
    sizes, reference = document.get("batch_sizes", {}), document.get("reference", "bp")
    methods: dict[str, Record] = {}
    for name, own in prices.items():
        scale = sizes[name] / sizes[reference] if sizes else 1.0
        by_regime = {
            regime: find_worth(curve, *_runs(document, regime, name, metric), metric, scale)
            for regime in document["regimes"]
            if _runs(document, regime, name, metric)[2]
        }
        if by_regime:
            methods[name] = _method_record(by_regime, own)
    points = zip(curve.batches, curve.values, curve.seeds, strict=True)
    rows = [{"batches": n, metric.name: metric.sign * value, "error": _error(own.values())} for n, value, own in points]
    return {
        "metric": metric.name,
        "batch_sizes": {name: sizes[name] for name in (reference, *methods) if name in sizes},
        "backprop_batch_sizes": document.get("backprop_batch_sizes", []),
        "curve": rows,
        "methods": methods,
    }


def _method_record(by_regime: Mapping[str, Worth], prices: Mapping[str, Price]) -> Record:
    """Return a method's worth by regime, and on each platform its price and whether it pays."""
    chosen = min(by_regime, key=lambda regime: _width(by_regime[regime]))
    worth = by_regime[chosen]
    return {
        **_fields(worth),
        "regime": chosen,
        "regimes": {regime: _fields(own) for regime, own in by_regime.items()},
        "platforms": {
            platform: {
                "price": price.price,
                "overhead": price.overhead,
                "break_even": price.break_even(worth),
                "price_without_bubbles": price.bound,
                "verdict": verdict(worth, price),
                "details": price.details,
            }
            for platform, price in prices.items()
        },
    }


def curve_points(document: Record, metric: Metric) -> dict[int, dict[int, float]]:
    """Return the results of the reference (the first `bp`) by number of batches and seed, from the curve and all regimes."""
    points: dict[int, dict[int, float]] = {}
    runs = [run for run in [*document["curve"], *document["runs"]] if run["method"] == "bp"]
    for run in runs:
        if run["name"] == runs[0]["name"] and run[metric.name] is not None:
            points.setdefault(int(run["batches"]), {})[run["seed"]] = run[metric.name]
    return points


def _runs(document: Record, regime: str, name: str, metric: Metric) -> tuple[BySeed, float, float]:
    """Return the results of a method's runs in a regime, and their mean numbers of BP and of GP batches."""
    runs = [run for run in document["runs"] if (run["regime"], run["name"]) == (regime, name)]
    runs = [run for run in runs if run[metric.name] is not None]
    if not runs:
        return {}, 0.0, 0.0
    predicted = mean(run["gp_batches"] + run["guarded_batches"] for run in runs)
    values = {run["seed"]: run[metric.name] for run in runs}
    return values, mean(run["bp_batches"] for run in runs), predicted


def _width(worth: Worth) -> tuple[int, float]:
    """Return a sort key: complete intervals first, then the narrowest."""
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
"""Devices of the balanced pipelines that are always priced, with as many micro-batches."""
QUICKEST = ("chimera", "zb-h1", "zb-v")
"""The exact pipelines that can be fastest if stages are equal and there are as many micro-batches as devices."""


def platform_models(
    workload: Workload, epoch_length: EpochLength, accelerator: AcceleratorPlatform, pipeline: PipelinePlatform
) -> dict[str, CostModel]:
    """Return the modelled platforms by name: the accelerator, the pipeline, and balanced pipelines of 4 to 64 devices."""
    models: dict[str, CostModel] = {
        "accelerator": AcceleratorCost(accelerator, workload, epoch_length),
        "pipeline": PipelineCost(pipeline, accelerator, workload, epoch_length),
    }
    for devices in PRICED_DEVICES:
        platform = PipelinePlatform(BEST, devices, devices, BALANCED)
        models[f"pipeline-{devices}"] = PipelineCost(platform, accelerator, workload, epoch_length, QUICKEST)
    return models


def method_prices(
    config: TrainConfig,
    reference: TrainConfig,
    models: Mapping[str, CostModel],
    share: float | None = None,
) -> dict[str, Price]:
    """Return a method's prices on the modelled platforms; platforms without a cost model for it are left out."""
    prices = {}
    for name, model in models.items():
        try:
            plain, own = model.batch_costs(reference), model.batch_costs(config, share)
        except OptionError:
            continue  # too many stages for the model, or a schedule that a pipeline cannot run
        unit = _mean_cost(plain, predicted=False) * config.batch_size / reference.batch_size
        price, learning = _mean_cost(own, predicted=True) / unit, _mean_cost(own, predicted=False) / unit
        details, bound = model.text, None
        if isinstance(model, PipelineCost):
            bound = price * _mean_cost(plain, predicted=False) / model.bound(reference)
            details += f"; bp: {model.best(reference)[0]}, {config.method}: {model.best(config, share)[0]}"
        prices[name] = Price(price, learning - 1, bound, details)
    return prices


def measured_price(calibration: Record | None, name: str, reference: str) -> dict[str, Price]:
    """Return a method's price on this CPU, if its batches were timed; loading the data is part of every batch."""
    if calibration is None:
        return {}
    own, plain = (calibration["methods"][method]["cost"] for method in (name, reference))
    if "gp" not in own:
        return {}
    # Earlier versions, with one batch size for all methods, did not store it.
    size, plain_size = (calibration["methods"][method].get("batch_size", 1) for method in (name, reference))
    unit = (plain["bp"] + plain["data"]) * size / plain_size
    price = (own["gp"] + own["data"]) / unit
    learning = (own["bp"] + own["data"]) / unit if "bp" in own else 1.0
    return {"cpu": Price(price, learning - 1, None, f"medians of {calibration['rounds']} timings, one thread")}


def _mean_cost(costs: list[BatchCost], *, predicted: bool) -> float:
    chosen = [kind for kind in costs if (kind.phase is Phase.GP) is predicted]
    batches = sum(kind.batches for kind in chosen)
    return sum(kind.batches * kind.cost for kind in chosen) / batches if batches else 0.0
