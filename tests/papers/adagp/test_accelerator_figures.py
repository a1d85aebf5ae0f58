"""What docs/hardware/validation.md says of the published figures, checked with the defaults for every model."""

from statistics import mean

import pytest

from adagp.data.registry import DATASETS
from adagp.hw import Accelerator, Simulation, simulate
from adagp.papers.adagp import PAPER_MODELS
from adagp.papers.adagp.accelerator_experiments import FIGURES, paper_run
from adagp.pipe import generate, parse_phases
from adagp.pipe import simulate as simulate_pipeline
from adagp.pipe.modelled import modelled_costs
from adagp.program.reproduce.published import published
from adagp.program.workloads import model_workload

pytestmark = pytest.mark.slow

Found = dict[str, dict[str, list[Simulation]]]
"""Simulations of the thirteen CNNs by dataflow and data set."""


@pytest.fixture(scope="module")
def found() -> Found:
    # CIFAR-100 differs from CIFAR-10 in the last layer only.
    results: Found = {dataflow: {} for dataflow in ("ws", "is", "rs")}
    for dataset in ("cifar10", "imagenet"):
        run = paper_run(DATASETS[dataset].train)
        workloads = [model_workload(name, dataset) for name in PAPER_MODELS]
        for dataflow, row in results.items():
            row[dataset] = [simulate(workload, Accelerator(dataflow=dataflow), run) for workload in workloads]
    return results


def test_average_speedups_are_within_the_tolerance(found: Found) -> None:
    for name, dataflow in FIGURES.items():
        for dataset, simulations in found[dataflow].items():
            number = published(name).number("average", dataset)
            ours = mean(simulation.speedup("max") for simulation in simulations)
            assert ours == pytest.approx(number.value, abs=number.tolerance)


def test_largest_speedups_are_within_the_tolerance_but_for_one(found: Found) -> None:
    outside = []
    for name, dataflow in list(FIGURES.items())[:2]:
        for dataset, simulations in found[dataflow].items():
            number = published(name).number("maximum", dataset)
            assert number.tolerance is not None
            if abs(max(simulation.speedup("max") for simulation in simulations) - number.value) > number.tolerance:
                outside.append((dataflow, dataset))
    assert outside == [("ws", "imagenet")]


def test_designs_are_in_their_order_for_every_model(found: Found) -> None:
    for row in found.values():
        for simulations in row.values():
            for simulation in simulations:
                assert simulation.speedup("low") <= simulation.speedup("efficient") <= simulation.speedup("max")


def test_the_energy_saving_is_within_the_tolerance(found: Found) -> None:
    number = published("adagp-figure21").number("saving", "average")
    for simulations in found["ws"].values():
        ours = 100 * mean(simulation.memory_energy_saving("max") for simulation in simulations)
        assert ours == pytest.approx(number.value, abs=number.tolerance)


def test_average_speedups_over_the_pipelines() -> None:
    """13 CNNs on ImageNet, batch 128: two BP batches without a predictor over a GP and a BP batch with it."""
    speedups: dict[str, list[float]] = {name: [] for name in ("gpipe", "dapple", "chimera")}
    for model in PAPER_MODELS:
        workload = model_workload(model, "imagenet")
        plain, predicting = (
            modelled_costs(workload, Accelerator(), 4, 32, design=design) for design in ("baseline", "max")
        )
        for name, found in speedups.items():
            before = simulate_pipeline(generate(name, 4, 4, parse_phases("BP,BP")), plain).steps
            found.append(before / simulate_pipeline(generate(name, 4, 4, parse_phases("GP,BP")), predicting).steps)
    for name, found in speedups.items():
        average, largest = (published("adagp-figure20").number(figure, name) for figure in ("average", "maximum"))
        assert mean(found) == pytest.approx(average.value, abs=average.tolerance)
        assert max(found) == pytest.approx(largest.value, abs=largest.tolerance)
