"""Training systems: a run is costed epoch by epoch by whatever system is registered."""

from collections.abc import Mapping

import pytest

from adagp.hw.systems import (
    PASSES,
    SYSTEMS,
    EpochRecord,
    LayerRecord,
    PassCost,
    System,
    SystemCost,
    SystemOptions,
    run_on_system,
)
from adagp.hw.workload import Linear, Workload

NET = Workload("net", (Linear("fc", 1, 64, 10),))


def half_of_the_weights(
    workload: Workload, batch: int, records: Mapping[str, LayerRecord], options: SystemOptions
) -> SystemCost:
    density = records["fc"].weight_density if records else 1.0
    return SystemCost({name: PassCost(batch * density * workload.macs, 1.0) for name in PASSES})


def test_a_run_is_the_sum_of_its_epochs_and_ends_at_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SYSTEMS._things, "own", System("own", "a plug-in", 1e6, half_of_the_weights))
    sparse = {"fc": LayerRecord(weight_density=0.5)}
    epochs = [EpochRecord(10), EpochRecord(6, 4, sparse, reached=True), EpochRecord(10, 0, sparse, reached=True)]
    outcome = run_on_system("own", NET, 2, epochs, SystemOptions())
    whole = 2 * 640
    assert outcome.to_target == PassCost(30 * whole + 18 * whole / 2 + 4 * whole / 2, 30 + 18 + 4)
    assert outcome.total == outcome.to_target + PassCost(30 * whole / 2, 30)
    assert outcome.seconds == outcome.total.cycles / 1e6
    assert run_on_system("own", NET, 2, epochs[:1], SystemOptions()).to_target is None


def test_costs_add_up() -> None:
    assert PassCost(1, 2) + PassCost(3, 4) * 2 == PassCost(7, 10)
