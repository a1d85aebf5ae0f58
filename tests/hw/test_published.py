"""What docs/hardware.md says of the published figures, checked with the defaults for every model."""

import tomllib
from importlib.resources import files
from statistics import mean
from typing import Any

import pytest

from adagp.cli.sweep import PAPER_MODELS
from adagp.data.registry import DATASETS
from adagp.hw import Accelerator, Simulation, scheduled_run, simulate
from adagp.lab.workloads import model_workload
from adagp.schedules import parse_schedule

Found = dict[str, dict[str, list[Simulation]]]
"""Simulations of the thirteen CNNs by dataflow and data set."""


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    text = (files("adagp") / "lab" / "published.toml").read_text(encoding="utf-8")
    figures: dict[str, Any] = tomllib.loads(text)["ada_gp"]
    return figures


@pytest.fixture(scope="module")
def found() -> Found:
    # CIFAR-100 differs from CIFAR-10 in the last layer only.
    results: Found = {dataflow: {} for dataflow in ("ws", "is", "rs")}
    for dataset in ("cifar10", "imagenet"):
        run = scheduled_run(parse_schedule("paper", 90), 90, DATASETS[dataset].train, 128)
        workloads = [model_workload(name, dataset) for name in PAPER_MODELS.split(",")]
        for dataflow, row in results.items():
            row[dataset] = [simulate(workload, Accelerator(dataflow=dataflow), run) for workload in workloads]
    return results


def test_average_speedups_are_within_the_tolerance(found: Found, published: dict[str, Any]) -> None:
    tolerance = published["speedup"]["average_tolerance"]
    for dataflow, row in found.items():
        for dataset, simulations in row.items():
            ours = mean(simulation.speedup("max") for simulation in simulations)
            assert ours == pytest.approx(published["speedup"]["average"][dataflow][dataset], abs=tolerance)


def test_largest_speedups_are_within_the_tolerance_but_for_one(found: Found, published: dict[str, Any]) -> None:
    outside = []
    for dataflow, row in published["speedup"]["maximum"].items():
        for dataset in found[dataflow]:
            ours = max(simulation.speedup("max") for simulation in found[dataflow][dataset])
            if abs(ours - row[dataset]) > published["speedup"]["maximum_tolerance"]:
                outside.append((dataflow, dataset))
    assert outside == [("ws", "imagenet")]


def test_designs_are_in_their_order_for_every_model(found: Found) -> None:
    for row in found.values():
        for simulations in row.values():
            for simulation in simulations:
                assert simulation.speedup("low") <= simulation.speedup("efficient") <= simulation.speedup("max")


def test_the_energy_saving_is_within_the_tolerance(found: Found, published: dict[str, Any]) -> None:
    for simulations in found["ws"].values():
        ours = mean(simulation.memory_energy_saving("max") for simulation in simulations)
        assert ours == pytest.approx(published["energy"]["saving"], abs=published["energy"]["tolerance"])
