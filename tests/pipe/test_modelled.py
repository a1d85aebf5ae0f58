"""Pipelines of accelerators: what the costs are made of."""

from dataclasses import replace

import pytest

from adagp.hw import Accelerator, Convolution, Elementwise, Linear, Workload, scheduled_run
from adagp.hw import simulate as simulate_run
from adagp.hw.workload import Saved
from adagp.pipe import generate, parse_phases, simulate
from adagp.pipe.modelled import modelled_costs, output_words
from adagp.pipe.timeline import Link
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


def test_a_stage_keeps_what_autograd_keeps() -> None:
    """The first operation that keeps a tensor decides; element-wise work belongs to the layer before it."""
    saved = Saved(0, "a", "convolution", 192), Saved(1, "pool", "pool", 128, 64), Saved(3, "c", "addmm", 7, fixed=True)
    costs = modelled_costs(replace(NET, saved=saved), Accelerator(), 3, 32)
    assert [stage.kept_bytes for stage in costs.stages] == [32 * (2 * 192 + 8 * 128), 0, 2 * 7]


def test_links_are_in_seconds_and_costs_in_cycles() -> None:
    costs = modelled_costs(NET, Accelerator(clock_hz=100e6), 2, 4, link=Link(bandwidth=1e9, latency=1e-6))
    assert costs.transfer(1000) == pytest.approx(100 + 100)  # a microsecond each at 100 MHz
