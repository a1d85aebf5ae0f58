"""All results of comparisons as points in the plane of quality and price: which side of the break-even is each on?

A point is a method with its batch size on a network and a platform. Its quality is the worth of a GP batch, for the
step-limited regime, and the squared correlation of single samples' gradients (rho^2), for the noise-limited one
(`core/break_even.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from adagp.core.break_even import least_noise_limited_cost
from adagp.core.escape import escaped
from adagp.core.plan import Phase
from adagp.errors import RunError
from adagp.program.compare.verdict import method_batch_sizes, read_report
from adagp.program.compare.worth import PAYS, PAYS_NOT, UNCLEAR, WORTH, measured_price
from adagp.program.run.documents import find_fault

Record = Mapping[str, Any]
Interval = tuple[float | None, float | None]


@dataclass(frozen=True)
class MapPoint:
    """A method on a network and a platform; figures that were not measured are None, as are ends of intervals.

    `price` is that of a GP batch and `break_even` the least worth that pays: the price and the overhead of learning.
    """

    network: str
    method: str
    batch_size: int | None
    platform: str
    price: float
    break_even: float | None
    worth: float | None
    worth_interval: Interval
    rho_squared: float | None
    rho_squared_interval: Interval
    noise_scale: float | None

    @property
    def series(self) -> str:
        """The label that all points of a network, a batch size and a method share."""
        size = "" if self.batch_size is None else f", batch size {self.batch_size}"
        return f"{self.network}{size}: {self.method}"

    @property
    def step_limited(self) -> str | None:
        """Whether prediction pays in the step-limited regime; None if the worth is not known."""
        if self.worth is None or self.break_even is None:
            return None
        return _side(self.break_even, self.worth_interval)

    @property
    def noise_limited_cost(self) -> float | None:
        """The cost of a gradient as noisy as backprop's, which costs 1, with the best share of true gradients."""
        if self.rho_squared is None:
            return None
        return least_noise_limited_cost(min(self.rho_squared, 1.0), self.price)

    @property
    def noise_limited(self) -> str | None:
        """Whether prediction pays in the noise-limited regime; None if rho^2 is not known."""
        return None if self.rho_squared is None else _side(self.price, self.rho_squared_interval)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, with the verdicts."""
        return {
            **vars(self),
            "worth_interval": list(self.worth_interval),
            "rho_squared_interval": list(self.rho_squared_interval),
            "step_limited": self.step_limited,
            "noise_limited": self.noise_limited,
            "noise_limited_cost": self.noise_limited_cost,
        }


def _side(needed: float, interval: Interval) -> str:
    low, high = interval
    if low is not None and low > needed:
        return PAYS
    if high is not None and high < needed:
        return PAYS_NOT
    return UNCLEAR


def read_map(folders: Sequence[Path]) -> tuple[list[MapPoint], list[str]]:
    """Return the points of all comparisons, and why folders were left out; raise if there is no point at all."""
    points: list[MapPoint] = []
    left_out: list[str] = []
    for folder in folders:
        try:
            own = list(map_points(_read_checked(folder)))
        except RunError as error:
            left_out.append(str(error))
            continue
        except (AttributeError, KeyError, TypeError, ValueError):
            left_out.append(f"'{escaped(folder)}' holds a report.json that is not the report of a comparison.")
            continue
        points += own
        if not own:
            left_out.append(
                f"'{escaped(folder)}' measured no quality: neither worth (--curve) nor rho^2 (--large-batch)."
            )
    if not points:
        raise RunError("; ".join(left_out) or "no folders were given.")
    return points, left_out


def _read_checked(folder: Path) -> Record:
    document = read_report(folder)
    if document.get("worth") and (fault := find_fault(document["worth"], WORTH, "worth")):
        raise RunError(f"cannot read '{escaped(folder / 'report.json')}': {fault}")
    return document


def map_points(document: Record) -> Iterator[MapPoint]:
    """Yield the points of one comparison: the methods with a measured quality, on each platform with a known price."""
    worth: Record = document.get("worth") or {"methods": {}}
    qualities = next(iter(document["regimes"].values()))["methods"]
    for name in document["methods"]:
        own, quality = worth["methods"].get(name) or {}, qualities.get(name) or {}
        rho = quality.get("rho_squared")
        if own.get("worth") is None and rho is None:
            continue
        for platform, price in _prices(document, own, name).items():
            yield MapPoint(
                network=f"{document['model']} on {document['dataset']}",
                method=name,
                batch_size=_batch_size(document, name),
                platform=platform,
                price=float(price["price"]),
                break_even=price.get("break_even"),
                worth=own.get("worth"),
                worth_interval=tuple(own.get("interval") or (None, None)),
                rho_squared=rho,
                rho_squared_interval=(quality.get("rho_squared_low"), quality.get("rho_squared_high")),
                noise_scale=quality.get("noise_scale"),
            )


def _batch_size(document: Record, name: str) -> int | None:
    """Return a method's batch size; reports of earlier versions have it, the same for all, in their command only."""
    words = str(document.get("command", "")).split()
    given = [value for flag, value in pairwise(words) if flag == "--batch-size" and value.isdecimal()]
    return method_batch_sizes(document).get(name, int(given[0]) if given else None)


def _prices(document: Record, worth: Record, name: str) -> dict[str, Record]:
    """Return the prices of a GP batch by platform: those of the break-even, or else of the comparison's regimes."""
    if worth.get("platforms"):
        return dict(worth["platforms"])
    reference = document.get("reference", "bp")
    prices: dict[str, Record] = {
        platform: {"price": price.price}
        for platform, price in measured_price(document.get("calibration"), name, reference).items()
    }
    for regime, platform in (document.get("platforms") or {}).items():
        own, plain = platform["methods"][name], platform["methods"][reference]
        costs = [kind["cost"] for kind in own["kinds"] if kind["phase"] == Phase.GP]
        if costs:
            unit = plain["kinds"][0]["cost"] * own.get("batch_size", 1) / plain.get("batch_size", 1)
            prices[regime] = {"price": costs[0] / unit}
    return prices
