"""Pipelines of accelerators: the published speed-ups, and what the costs are made of."""

from statistics import mean

import pytest

from adagp.hw import Accelerator, Convolution, Elementwise, Linear, Workload, scheduled_run
from adagp.hw import simulate as simulate_run
from adagp.papers.adagp import PAPER_MODELS
from adagp.pipe import generate, parse_phases, simulate
from adagp.pipe.modelled import Link, modelled_costs, output_words
from adagp.program.reproduce.published import published
from adagp.program.workloads import model_workload
from adagp.schedules import parse_schedule

pytestmark = pytest.mark.medium

NET = Workload(
    "net",
    (
        Convolution("a", 3, 8, (3, 3), (8, 8), (8, 8), input_gradient=False),
        Elementwise("pool", "pool", 512, 128),
        Convolution("b", 8, 8, (3, 3), (4, 4), (4, 4)),
        Linear("c", 1, 128, 10),
    ),
)


def test_average_speedups_over_the_pipelines() -> None:
    """13 CNNs on ImageNet, batch 128: two BP batches without a predictor over a GP and a BP batch with it."""
    speedups: dict[str, list[float]] = {name: [] for name in ("gpipe", "dapple", "chimera")}
    for model in PAPER_MODELS:
        workload = model_workload(model, "imagenet")
        plain, predicting = (
            modelled_costs(workload, Accelerator(), 4, 32, design=design) for design in ("baseline", "max")
        )
        for name, found in speedups.items():
            before = simulate(generate(name, 4, 4, parse_phases("BP,BP")), plain).steps
            found.append(before / simulate(generate(name, 4, 4, parse_phases("GP,BP")), predicting).steps)
    for name, found in speedups.items():
        average, largest = (published("adagp-figure20").number(figure, name) for figure in ("average", "maximum"))
        assert mean(found) == pytest.approx(average.value, abs=average.tolerance)
        assert max(found) == pytest.approx(largest.value, abs=largest.tolerance)


@pytest.mark.parametrize("design", ["baseline", "low", "efficient", "max"])
def test_one_device_and_one_micro_batch_are_the_accelerator_itself(design: str) -> None:
    run = scheduled_run(parse_schedule("1:1", 2, warmup=0), epochs=2, samples=64, batch=32)
    outcome = simulate_run(NET, Accelerator(), run, (design,)).outcomes[design]
    phases = "BP,BP,BP,BP" if design == "baseline" else "GP,BP,GP,BP"
    costs = modelled_costs(NET, Accelerator(), 1, 32, design=design)
    assert simulate(generate("gpipe", 1, 1, parse_phases(phases)), costs).steps == outcome.cost.cycles


def test_bytes_of_a_cut() -> None:
    assert output_words(NET) == [128, 128, 10]
    costs = modelled_costs(NET, Accelerator(word_bits=16), 3, 32)
    assert [stage.output_bytes for stage in costs.stages] == [32 * 2 * words for words in (128, 128, 10)]
    assert [stage.kept_bytes for stage in costs.stages] == [32 * 2 * words for words in (192, 128, 128)]
    assert [stage.gradient_bytes for stage in costs.stages] == [2 * words for words in (216, 576, 1280)]
    assert [stage.summary_bytes for stage in costs.stages] == [2 * 16 * rows for rows in (8, 8, 10)]


def test_links_are_in_seconds_and_costs_in_cycles() -> None:
    costs = modelled_costs(NET, Accelerator(clock_hz=100e6), 2, 4, link=Link(bandwidth=1e9, latency=1e-6))
    assert costs.transfer(1000) == pytest.approx(100 + 100)  # a microsecond each at 100 MHz
