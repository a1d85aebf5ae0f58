"""The dry run against a ticking clock, and against the papers' step counts."""

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipe.brute_force import last_tick

from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.pipe import (
    PIPELINES,
    Costs,
    Program,
    StageCosts,
    constant_costs,
    generate,
    parse_phases,
    simulate,
    with_broadcast,
)
from adagp.program.reproduce.published import published

PUBLISHED = ("gpipe", "dapple", "chimera")


def steps(name: str, phases: str, alpha: float = 0.0) -> float:
    program = generate(name, 4, 4, parse_phases(phases))
    return simulate(program, constant_costs(program.stages, alpha=alpha, devices=4)).steps


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        ("BP", (21, 21, 16, 16.5, 15, 13.5)),
        ("GP,BP", (25, 25, 20, 20.5, 19, 20.5)),
        ("BP,GP", (28, 28, 22, 22, 22, 20.5)),
        ("BP,BP", (42, 42, 32, 33, 30, 27)),
        ("GP", (7, 7, 6, 5.5, 7, 7)),
    ],
)
def test_steps_of_four_devices_and_four_micro_batches(phases: str, expected: tuple[float, ...]) -> None:
    assert tuple(steps(name, phases) for name in PIPELINES) == expected


def test_an_error_broadcast_waits_for_the_last_stage() -> None:
    """The forwards of the GP batch go through the whole pipeline before any stage may update, and are kept until then."""
    found = {}
    for name in PIPELINES:
        program = with_broadcast(generate(name, 4, 4, parse_phases("GP,BP")))
        found[name] = simulate(program, constant_costs(program.stages, devices=4)).steps
    assert found == {"gpipe": 28, "dapple": 28, "chimera": 22, "interleaved": 22, "zb-h1": 22, "zb-v": 20.5}
    program = with_broadcast(generate("dapple", 4, 4, parse_phases("GP,GP")))
    timeline = simulate(program, constant_costs(4))
    assert (timeline.steps, timeline.peak_activations) == (14, (4, 4, 4, 4))
    slow = replace(constant_costs(4), stages=(StageCosts(error_bytes=6),) * 4, bandwidth=3)
    assert simulate(program, slow).steps == 2 * (7 + 2)


@pytest.mark.parametrize(
    ("devices", "micro_batches"), [(2, 2), (3, 6), (4, 4), (4, 8), (4, 13), (6, 24), (8, 8), (8, 25)]
)
def test_zero_bubble_pipelines_have_the_known_bubbles(devices: int, micro_batches: int) -> None:
    """Qi et al. 2023: ZB-H1 waits for (D - 1)(F + I - W) and keeps what 1F1B keeps; ZB-V is only late to begin."""
    costs = StageCosts(2, 4, input_gradient=2, weight_gradient=2)
    first = simulate(generate("zb-h1", devices, micro_batches, (Phase.BP,)), Costs((costs,) * devices))
    assert first.steps == 6 * micro_batches + 2 * (devices - 1)
    assert max(first.peak_activations) <= devices
    half = StageCosts(1, 2, input_gradient=1, weight_gradient=1)
    second = simulate(generate("zb-v", devices, micro_batches, (Phase.BP,)), Costs((half,) * 2 * devices))
    assert second.steps == 6 * micro_batches + devices - 1
    assert max(second.peak_activations) <= 2 * devices


def test_published_steps() -> None:
    section = published("adagp-figure20")
    for name in PUBLISHED:
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
        name: simulate(program, constant_costs(program.stages)).peak_activations
        for name, program in ((name, generate(name, 4, 8, (Phase.BP,))) for name in PIPELINES)
    }
    assert peaks == {
        "gpipe": (8, 8, 8, 8),
        "dapple": (4, 3, 2, 1),
        "chimera": (3, 4, 4, 3),
        "interleaved": (11, 9, 7, 5),  # of stages half as large, as those of zb-v
        "zb-h1": (4, 4, 4, 4),
        "zb-v": (8, 8, 8, 8),
    }
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
    micro_batches = draw(st.integers(1, 7))
    if name == "interleaved":
        micro_batches = devices * draw(st.integers(1, 2))
    program = generate(name, devices + devices % 2 if name == "chimera" else devices, micro_batches, phases)
    return with_broadcast(program) if draw(st.booleans()) else program


@pytest.mark.medium
@given(programs(), st.data())
def test_the_dry_run_is_what_a_ticking_clock_shows(program: Program, data: st.DataObject) -> None:
    times = st.integers(0, 4)
    stage = st.builds(StageCosts, times, times, times, times, times, st.just(0), times, times, times, times, times)
    stages = data.draw(st.lists(stage, min_size=program.stages, max_size=program.stages))
    costs = Costs(tuple(stages), bandwidth=1, latency=data.draw(times))
    assert simulate(program, costs).steps == last_tick(program, costs)


def test_costs_must_fit_the_program() -> None:
    with pytest.raises(OptionError, match=r"^costs of 3 stages do not fit a program of 4\.$"):
        simulate(generate("gpipe", 4, 4, (Phase.BP,)), constant_costs(3))


@pytest.mark.medium
def test_many_devices_and_micro_batches() -> None:
    """64 devices and 256 micro-batches: the closed form of GPipe, and the memory that DAPPLE is for."""
    timeline = simulate(generate("dapple", 64, 256, (Phase.BP,)), constant_costs(64))
    assert timeline.steps == 3 * (256 + 63)
    assert timeline.peak_activations == tuple(range(64, 0, -1))


@pytest.mark.parametrize("value", [-1.0, inf, nan])
def test_times_are_finite_and_not_negative(value: float) -> None:
    with pytest.raises(OptionError) as raised:
        StageCosts(backward=value)
    assert str(raised.value) == f"backward of a stage is {value}; it must be a finite number of 0 or more."
    with pytest.raises(OptionError) as raised:
        constant_costs(4, alpha=value)
    assert str(raised.value) == f"alpha is {value}; it must be a finite number of 0 or more."


@pytest.mark.parametrize("value", [0.0, -1.0, nan])
def test_links_carry_something(value: float) -> None:
    with pytest.raises(OptionError) as raised:
        Costs((StageCosts(),), bandwidth=value)
    assert str(raised.value) == f"bandwidth is {value}; it must be more than 0 (infinity: transfers take no time)."


def test_latency_is_not_negative() -> None:
    with pytest.raises(OptionError, match=r"^latency is -1; it must be a finite number of 0 or more\.$"):
        Costs((StageCosts(),), latency=-1)
