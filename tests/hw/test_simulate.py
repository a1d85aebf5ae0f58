import json
from dataclasses import replace
from math import inf

import pytest

from adagp.core.plan import BACKPROP_ALL, Phase, Plan
from adagp.errors import ModelError
from adagp.hw import (
    DATAFLOWS,
    Accelerator,
    Convolution,
    Elementwise,
    Linear,
    Run,
    Simulation,
    Workload,
    scheduled_run,
    simulate,
)
from adagp.hw.report import simulation_report
from adagp.schedules import parse_schedule

WORKLOAD = Workload(
    "small",
    (
        Convolution("stem", 3, 32, (3, 3), (16, 16), (16, 16), input_gradient=False),
        Elementwise("relu", "relu", 32 * 256, 32 * 256),
        Convolution("middle", 32, 64, (3, 3), (16, 16), (8, 8), (2, 2)),
        Convolution("depthwise", 64, 64, (3, 3), (8, 8), (8, 8), groups=64),
        Linear("head", 1, 64, 10),
    ),
)
ALL = ("baseline", "low", "efficient", "max", "equal-power", "equal-area")


def paper_run() -> Run:
    return scheduled_run(parse_schedule("paper", 90), 90, samples=2000, batch=100)


@pytest.fixture(scope="module", params=["ws", "os", "is", "rs"])
def simulation(request: pytest.FixtureRequest) -> Simulation:
    return simulate(WORKLOAD, Accelerator(dataflow=request.param), paper_run(), ALL)


def test_designs_are_in_their_order(simulation: Simulation) -> None:
    assert 1 < simulation.speedup("low") <= simulation.speedup("efficient") <= simulation.speedup("max")


def test_larger_baselines_are_no_slower(simulation: Simulation) -> None:
    assert 1 <= simulation.speedup("equal-power") <= simulation.speedup("equal-area")


def test_macs_of_a_backprop_run_are_three_forward_passes_without_the_stems_input_gradient(
    simulation: Simulation,
) -> None:
    stem = WORKLOAD.array_layers[0].product(1).macs
    assert simulation.baseline.cost.macs == 90 * 2000 * (3 * WORKLOAD.macs - stem)


def test_phases_and_layers_add_up(simulation: Simulation) -> None:
    for outcome in simulation.outcomes.values():
        assert sum(cost.cycles for cost in outcome.by_phase.values()) == outcome.cost.cycles
        assert sum(cost.cycles for layer in outcome.by_layer for cost in layer.values()) == outcome.cost.cycles
        assert outcome.cost.cycles * outcome.array.pes >= outcome.cost.macs or outcome is simulation.outcomes["max"]
    assert set(simulation.baseline.by_phase) == {Phase.BP}
    assert set(simulation.outcomes["max"].by_phase) == set(Phase)


def test_prediction_saves_energy_and_off_chip_traffic(simulation: Simulation) -> None:
    assert 0.1 < simulation.memory_energy_saving("efficient") < 0.45
    per_batch = {
        phase: simulation.outcomes["efficient"].by_phase[phase].dram_bits / simulation.run.phases[phase]
        for phase in Phase
    }
    assert per_batch[Phase.GP] < 0.5 * per_batch[Phase.BP]


def test_seconds_are_cycles_at_the_clock(simulation: Simulation) -> None:
    assert simulation.baseline.seconds == pytest.approx(simulation.baseline.cost.cycles / 200e6)


def test_without_a_predictor_the_ladder_alone_is_worth_its_arithmetic() -> None:
    # 90 epochs of backprop against 47.13 of backprop and 42.87 of forward passes, a third of the work each.
    layer = Convolution("c", 36, 60, (3, 3), (64, 64), (64, 64))
    accelerator = Accelerator(dataflow="rs", bandwidth=inf)
    epochs = simulate(
        Workload("one", (layer,)), accelerator, scheduled_run(parse_schedule("paper", 90), 90, 60 * 128, 128)
    )
    assert epochs.backward_to_forward == pytest.approx(2)
    assert epochs.speedup("max") == pytest.approx(1.4652, abs=0.0005)


def test_less_bandwidth_is_never_faster() -> None:
    cycles = [
        simulate(WORKLOAD, Accelerator(bandwidth=rate), paper_run()).baseline.cost.cycles
        for rate in (1e8, 1e9, 1e10, inf)
    ]
    assert cycles == sorted(cycles, reverse=True)
    assert cycles[0] > cycles[-1]


def test_a_partial_backward_pass_costs_between_forward_and_full() -> None:
    def cycles(plan: Plan) -> int:
        return simulate(WORKLOAD, Accelerator(), Run(100, ((plan, 1),), False), ("max",)).outcomes["max"].cost.cycles

    partial = Plan(Phase.GP, default="momentum", by_site={"depthwise": "backprop", "head": "backprop"}, hold_rest=True)
    none = Plan(Phase.GP, default="momentum", hold_rest=True)
    assert cycles(none) < cycles(partial) < cycles(BACKPROP_ALL)


def test_nothing_to_simulate_is_said() -> None:
    with pytest.raises(ModelError) as raised:
        simulate(Workload("empty", ()), Accelerator(), paper_run())
    assert str(raised.value) == "'empty' has no convolution, linear layer or product: there is nothing to simulate."


def test_report_has_stable_fields(simulation: Simulation) -> None:
    report = json.loads(json.dumps(simulation_report(simulation, per_layer=True)))
    for name in ("baseline", "low", "efficient", "max"):
        assert {"cycles", "speedup", "energy_joules", "energy_saving"} <= set(report["designs"][name])
    assert report["designs"]["baseline"]["speedup"] == 1
    assert [row["name"] for row in report["layers"]] == ["stem", "middle", "depthwise", "head"]
    fields = {"name", "macs", "forward_cycles", "input_gradient_cycles", "weight_gradient_cycles"}
    assert fields | {"predictor_cycles", "utilisation"} <= set(report["layers"][0])
    assert report["layers"][0]["input_gradient_cycles"] == 0
    assert all(0 < row["utilisation"] <= 1 for row in report["layers"])
    assert sum(row["macs"] for row in report["layers"]) == 100 * WORKLOAD.macs
    assert "layers" not in simulation_report(simulation)


def test_failure_signatures_are_named() -> None:
    assert simulation_report(simulate(WORKLOAD, Accelerator(), paper_run()))["failure_signatures"] == []
    tight = simulate(WORKLOAD, Accelerator(buffer_kilobytes=16), paper_run())  # 32 * 9 inputs of 64 features, 16 bits
    assert simulation_report(tight)["failure_signatures"] == [
        "The predictor's weights take 36 kB and do not fit the 16 kB global buffer: with low they are read from DRAM for each "
        "layer; with efficient and max a memory of that size is added."
    ]
    head = Workload("head", (Linear("head", 1, 64, 10, input_gradient=False),))
    slow = simulation_report(simulate(head, Accelerator(), replace(paper_run(), batch=1)))
    assert slow["failure_signatures"] == [
        "No faster than backprop: low, efficient, max. Predicting takes at least as long as the backward passes that it saves."
    ]


def test_layers_of_one_batch_add_up_to_the_baseline(simulation: Simulation) -> None:
    unstalled = simulate(WORKLOAD, replace(simulation.accelerator, bandwidth=inf), paper_run(), ("baseline",))
    rows = simulation_report(unstalled, per_layer=True)["layers"]
    one_batch = sum(
        row["forward_cycles"] + row["input_gradient_cycles"] + row["weight_gradient_cycles"] for row in rows
    )
    assert one_batch * unstalled.run.batches == unstalled.baseline.cost.cycles


def test_all_dataflows_are_registered() -> None:
    assert list(DATAFLOWS) == ["ws", "os", "is", "rs"]


def test_a_cut_costs_a_backward_pass_that_stops_by_hand() -> None:
    """Two of three batches stop above the stem and the middle layer; nothing is predicted, so all is passes of layers."""
    accelerator = Accelerator(bandwidth=inf)
    schedule = parse_schedule("sites=cut at depthwise; batches=2:1", 1, source="zero")
    found = simulate(WORKLOAD, accelerator, scheduled_run(schedule, 1, 300, 100, WORKLOAD), ("efficient",))
    forward = sum(stage.forward.cycles for stage in found.stages)
    stem, middle, depthwise, head = found.stages
    above = depthwise.weight_gradient.cycles + head.input_gradient.cycles + head.weight_gradient.cycles
    below = stem.weight_gradient.cycles + middle.input_gradient.cycles + middle.weight_gradient.cycles
    full = below + depthwise.input_gradient.cycles + above
    by_phase = {phase: cost.cycles for phase, cost in found.outcomes["efficient"].by_phase.items()}
    assert by_phase == {Phase.GP: 2 * (forward + above), Phase.BP: forward + full}
    assert found.baseline.cost.cycles == 3 * (forward + full)
    assert above < full


def test_a_notebook_shows_the_designs_and_escapes_the_names() -> None:
    hostile = replace(WORKLOAD, name="<script>small</script>")
    page = simulate(hostile, Accelerator(), paper_run())._repr_html_()
    assert "<script" not in page
    assert "<strong>&lt;script&gt;small&lt;/script&gt;: ws on 12x15 PEs; batches: " in page
    for design in ("baseline", "low", "efficient", "max"):
        assert f'<td style="text-align: left">{design}</td>' in page
    assert page.endswith("<p>All figures are modelled, none is measured.</p></div>")
