"""The modelled cost of runs on data-parallel accelerators, each with an equal share of every batch.

A batch takes the cycles of the share on one accelerator, and the all-reduces of what the method exchanges, which is counted
(`exchange.py`). Their time is that of rings on a switch (`adagp.pipe.chips`).
With `overlap`, gradients travel during the backward pass, and only what is left at its end costs time: the best case, which
favours backprop. What sources exchange has to wait for the passes, and the next batch for it.

With a fixed batch, more devices make the shares smaller but not the all-reduce: steps become limited by communication and by
what small shares cost, and a smaller batch saves little time.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.hw import Accelerator, Workload
from adagp.hw.runs import workload_layout
from adagp.hw.stages import SUPPLIED
from adagp.pipe.chips import ALL_REDUCE, Fabric, Parallelism, Topology
from adagp.pipe.modelled import modelled_costs
from adagp.pipe.timeline import Link
from adagp.program.compare.methods import planned_batches
from adagp.program.compare.modelled_cost import (
    AcceleratorCost,
    AcceleratorPlatform,
    BatchCost,
    EpochLength,
    batch_kind,
)
from adagp.program.run.config import TrainConfig

_FORM = "write for example devices=16,link=10,latency=5 (gigabytes per second, microseconds), and overlap=no for none"
_MOST_DEVICES = 65_536


@dataclass(frozen=True)
class ClusterPlatform:
    """Data-parallel devices in the text form of `--cluster`; `link` is in gigabytes per second, `latency` in microseconds."""

    devices: int = 16
    link: float = 10.0
    latency: float = 5.0
    overlap: bool = True

    def __str__(self) -> str:
        text = f"devices={self.devices},link={self.link:g},latency={self.latency:g}"
        return text if self.overlap else f"{text},overlap=no"

    def all_reduce_seconds(self, rounds: float, amount: float) -> float:
        """Return the seconds of `rounds` ring all-reduces of `amount` bytes in all."""
        fabric = Fabric(Topology("switch", self.devices), Link(self.link * 1e9, self.latency * 1e-6))
        return fabric.seconds(ALL_REDUCE, Parallelism(data=self.devices).data_groups, amount, rounds)


def parse_cluster(text: str) -> ClusterPlatform:
    """Parse the text form; parts left out have their defaults."""
    values: dict[str, Any] = {}
    for word in map(str.strip, text.split(",")):
        name, _, value = (part.strip() for part in word.partition("="))
        if name not in _READERS or name in values:
            raise OptionError(f"cannot read '{word}' in --cluster '{text}'; {_FORM}.")
        values[name] = _READERS[name](value)
        if values[name] is None:
            raise OptionError(f"cannot read '{word}' in --cluster '{text}'; {_FORM}.")
    return ClusterPlatform(**values)


def _read_devices(text: str) -> int | None:
    return int(text) if text.isdecimal() and 1 <= int(text) <= _MOST_DEVICES else None


def _read_number(text: str, least: float) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) and number >= least else None


_READERS: dict[str, Callable[[str], Any]] = {
    "devices": _read_devices,
    "link": lambda text: _read_number(text, 1e-9),
    "latency": lambda text: _read_number(text, 0.0),
    "overlap": {"yes": True, "no": False}.get,
}


@dataclass(frozen=True)
class Rounds:
    """All-reduces of a batch that wait for each other, and the bytes of all of them."""

    count: float
    bytes: float


@dataclass(frozen=True)
class Exchange:
    """What a process puts into all-reduces: `gradients` in a BP batch, and the other rounds of BP and of GP batches."""

    gradients: int
    backprop: Rounds
    predicted: Rounds

    def bytes_of(self, phase: Phase) -> float:
        """Return all bytes of a batch."""
        return self.predicted.bytes if phase is Phase.GP else self.gradients + self.backprop.bytes


class ClusterCost:
    """Cycles of runs on data-parallel accelerators; `exchange_of` returns what a run's batches exchange."""

    def __init__(
        self,
        platform: ClusterPlatform,
        accelerator: AcceleratorPlatform,
        workload: Workload,
        epoch_length: EpochLength,
        exchange_of: Callable[[TrainConfig], Exchange],
    ) -> None:
        self.platform, self.accelerator, self.workload = platform, accelerator, workload
        self.epoch_length, self.exchange_of = epoch_length, exchange_of
        self._share = AcceleratorCost(accelerator, workload, self._whole_epoch_length)
        self._backward: dict[tuple[Accelerator, int], float] = {}

    @property
    def text(self) -> str:
        """The platform in the text form of the option."""
        return str(self.platform)

    def run_cost(self, config: TrainConfig, share: float | None = None) -> float:
        """Return the cycles of a whole run."""
        return sum(kind.batches * kind.cost for kind in self.batch_costs(config, share))

    def batch_costs(self, config: TrainConfig, share: float | None = None) -> list[BatchCost]:
        """Return the number and the cost of each kind of batch; `share`: see `CostModel`."""
        return self._costs(config, share, overlap=self.platform.overlap)

    def details(self, config: TrainConfig, share: float | None = None) -> dict[str, Any]:
        """Return the samples of a device, the bytes exchanged by a batch of each kind, and a run's cycles in parts."""
        exchange, local = self.exchange_of(config), self._local(config)
        compute = sum(kind.batches * kind.cost for kind in self._share.batch_costs(local, share))
        apart = sum(kind.batches * kind.cost for kind in self._costs(config, share, overlap=False))
        return {
            "samples_per_device": local.batch_size,
            "exchanged_bytes": {str(phase): exchange.bytes_of(phase) for phase in (Phase.BP, Phase.GP)},
            "compute_cost": compute,
            "cost_without_overlap": apart,
        }

    def _costs(self, config: TrainConfig, share: float | None, *, overlap: bool) -> list[BatchCost]:
        self._check_plans(config, share)
        exchange, local = self.exchange_of(config), self._local(config)
        clock = self.accelerator.accelerator(config).clock_hz
        costs = []
        for kind in self._share.batch_costs(local, share):
            if kind.phase is Phase.GP:
                waiting = self._seconds(exchange.predicted) * clock
            else:
                gradients = self.platform.all_reduce_seconds(1, exchange.gradients) * clock
                backward = self._backward_cycles(local) if overlap else 0.0
                waiting = max(0.0, gradients - backward) + self._seconds(exchange.backprop) * clock
            costs.append(replace(kind, cost=kind.cost + waiting))
        return costs

    def _seconds(self, rounds: Rounds) -> float:
        return self.platform.all_reduce_seconds(rounds.count, rounds.bytes)

    def _check_plans(self, config: TrainConfig, share: float | None) -> None:
        layout = workload_layout(self.workload)
        for plan, _ in planned_batches(config, self.epoch_length(config), layout, share):
            batch_kind(plan, "cluster")  # raises for a batch with predicted and true gradients

    def _local(self, config: TrainConfig) -> TrainConfig:
        """Return the run with a device's share of each batch."""
        devices = self.platform.devices
        if config.batch_size % devices:
            raise OptionError(
                f"--cluster '{self.platform}': a batch of {config.batch_size} samples does not split into {devices} equal "
                "parts."
            )
        return replace(config, batch_size=config.batch_size // devices)

    def _whole_epoch_length(self, local: TrainConfig) -> int:
        return self.epoch_length(replace(local, batch_size=local.batch_size * self.platform.devices))

    def _backward_cycles(self, local: TrainConfig) -> float:
        """Return the cycles of the backward pass through the model."""
        accelerator = self.accelerator.accelerator(local)
        key = accelerator, local.batch_size
        if key not in self._backward:
            costs = modelled_costs(self.workload, accelerator, 1, local.batch_size, design="baseline", source=SUPPLIED)
            self._backward[key] = costs.stages[0].backward
        return self._backward[key]
