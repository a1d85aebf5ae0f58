"""The dry run against a ticking clock, and against the papers' step counts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipe.brute_force import last_tick

from adagp.errors import OptionError
from adagp.pipe import PIPELINES, Costs, Program, StageCosts, constant_costs, generate, parse_phases, simulate
from adagp.plan import Phase
from adagp.reproduce.published import published


def steps(name: str, phases: str, alpha: float = 0.0) -> float:
    return simulate(generate(name, 4, 4, parse_phases(phases)), constant_costs(4, alpha=alpha)).steps


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        ("BP", (21, 21, 16)),
        ("GP,BP", (25, 25, 20)),
        ("BP,GP", (28, 28, 22)),
        ("BP,BP", (42, 42, 32)),
        ("GP", (7, 7, 6)),
    ],
)
def test_steps_of_four_devices_and_four_micro_batches(phases: str, expected: tuple[int, ...]) -> None:
    assert tuple(steps(name, phases) for name in ("gpipe", "dapple", "chimera")) == expected


def test_published_steps() -> None:
    section = published("adagp-figure20")
    for name in PIPELINES:
        assert steps(name, "BP") == section.number("steps_bp", name).value
        assert steps(name, "GP,BP") == section.number("steps_gp_bp", name).value
        assert steps(name, "BP,BP") / steps(name, "GP,BP") == pytest.approx(section.number("maximum", name).value)


def test_the_predictor_costs_alpha_for_a_gp_batch_and_three_for_a_bp_batch() -> None:
    assert steps("gpipe", "BP", alpha=0.1) == pytest.approx(21.3)
    # A GP batch from idle: the update of the last stage is all that is added.
    assert steps("gpipe", "GP", alpha=0.1) == pytest.approx(7.1)
    # Streaming: each GP batch takes its four forwards and its update on every stage.
    assert steps("gpipe", "GP,GP,BP", alpha=0.1) == pytest.approx(4.1 + 4.1 + 21.3)


def test_a_gpipe_batch_has_the_known_bubble() -> None:
    timeline = simulate(generate("gpipe", 4, 4, (Phase.BP,)), constant_costs(4))
    assert timeline.bubble_share == pytest.approx(3 / 7)  # (D - 1) / (M + D - 1)


def test_streaming_leaves_no_bubble_but_at_the_ends() -> None:
    timeline = simulate(generate("gpipe", 4, 4, [Phase.GP] * 25), constant_costs(4))
    assert timeline.steps == 103
    assert timeline.bubble_share == pytest.approx(3 / 103)


def test_activations_are_kept_until_the_backward() -> None:
    peaks = {
        name: simulate(generate(name, 4, 8, (Phase.BP,)), constant_costs(4)).peak_activations for name in PIPELINES
    }
    assert peaks == {"gpipe": (8, 8, 8, 8), "dapple": (4, 3, 2, 1), "chimera": (3, 4, 4, 3)}
    assert simulate(generate("gpipe", 4, 8, (Phase.GP,)), constant_costs(4)).peak_activations == (1, 1, 1, 1)


def test_bytes_are_weighed_by_stage() -> None:
    costs = Costs((StageCosts(kept_bytes=10), StageCosts(kept_bytes=3)))
    assert simulate(generate("dapple", 2, 4, (Phase.BP,)), costs).peak_bytes == (20, 3)


def test_transfers_take_latency_and_bytes() -> None:
    program = generate("gpipe", 2, 1, (Phase.BP,))
    costs = Costs((StageCosts(output_bytes=6), StageCosts(output_bytes=100)), bandwidth=3, latency=0.5)
    assert simulate(program, costs).steps == 1 + 2.5 + 1 + 2 + 2.5 + 2


def test_copies_of_a_stage_exchange_before_they_update() -> None:
    for phases, plain in (((Phase.BP,), 16), ((Phase.GP,), 6)):
        program = generate("chimera", 4, 4, phases)
        costs = replace(constant_costs(4), stages=(StageCosts(gradient_bytes=8, summary_bytes=2),) * 4, bandwidth=2)
        assert simulate(program, costs).steps == plain + (4 if phases == (Phase.BP,) else 1)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    name = draw(st.sampled_from(sorted(PIPELINES)))
    devices = draw(st.integers(1, 6))
    phases = draw(st.lists(st.sampled_from([Phase.BP, Phase.GP]), min_size=1, max_size=3))
    return generate(name, devices + devices % 2 if name == "chimera" else devices, draw(st.integers(1, 7)), phases)


@given(programs(), st.data())
def test_the_dry_run_is_what_a_ticking_clock_shows(program: Program, data: st.DataObject) -> None:
    times = st.integers(0, 4)
    stage = st.builds(StageCosts, times, times, times, times, times, st.just(0), times, times)
    stages = data.draw(st.lists(stage, min_size=program.stages, max_size=program.stages))
    costs = Costs(tuple(stages), bandwidth=1, latency=data.draw(times))
    assert simulate(program, costs).steps == last_tick(program, costs)


def test_costs_must_fit_the_program() -> None:
    with pytest.raises(OptionError, match=r"^costs of 3 stages do not fit a program of 4\.$"):
        simulate(generate("gpipe", 4, 4, (Phase.BP,)), constant_costs(3))


@pytest.mark.slow
def test_many_devices_and_micro_batches() -> None:
    """64 devices and 256 micro-batches: the closed form of GPipe, and the memory that DAPPLE is for."""
    timeline = simulate(generate("dapple", 64, 256, (Phase.BP,)), constant_costs(64))
    assert timeline.steps == 3 * (256 + 63)
    assert timeline.peak_activations == tuple(range(64, 0, -1))
