from collections import Counter
from dataclasses import dataclass

import pytest

from adagp.core.plan import BACKPROP_ALL, Phase, Plan, Step
from adagp.errors import OptionError
from adagp.hw import Convolution, Linear, Run, Workload, replayed_run, scheduled_run
from adagp.hw.runs import plan_key, workload_layout
from adagp.schedules import Schedule, WarmUp, parse_schedule

WORKLOAD = Workload(
    "three",
    (
        Convolution("a", 3, 16, (3, 3), (8, 8), (8, 8), input_gradient=False),
        Convolution("b", 16, 16, (3, 3), (8, 8), (8, 8)),
        Linear("c", 1, 1024, 10),
    ),
)


def test_counts_are_those_of_walking_every_batch() -> None:
    schedule = parse_schedule("paper", 90)
    run = scheduled_run(schedule, 90, samples=1000, batch=128)
    walked = Counter(schedule.plan(Step(epoch, batch)).phase for epoch in range(90) for batch in range(8))
    assert run.phases == walked
    assert run.batches == 720
    assert run.predictor_learns


def test_alternating_epochs_are_counted_by_their_labels() -> None:
    run = scheduled_run(parse_schedule("epochs:3:1", 20, warmup=5), 20, samples=10, batch=1)
    assert run.phases == {Phase.WARMUP: 50, Phase.GP: 120, Phase.BP: 30}


def test_sources_that_are_no_predictor_teach_none() -> None:
    assert not scheduled_run(parse_schedule("bp", 3), 3, 10, 1).predictor_learns
    assert not scheduled_run(parse_schedule("1:1", 3, source="zero"), 3, 10, 1).predictor_learns


@dataclass(frozen=True)
class ByLayer(Schedule):
    """Every other batch, one layer's gradient is zero."""

    def plan(self, step: Step) -> Plan:
        return Plan(Phase.BP, by_site={"a": "zero"}) if step.batch % 2 else BACKPROP_ALL

    def label(self, epoch: int) -> str:
        return "by layer"

    @property
    def text(self) -> str:
        return "by layer"

    @property
    def sources(self) -> frozenset[str]:
        return frozenset({"zero"})


@pytest.mark.parametrize("text", ["1:1", "epochs:1:1", "approx:2"])
@pytest.mark.parametrize("batches", [1, 5, 8, 11])
def test_a_warm_up_may_end_within_an_epoch(text: str, batches: int) -> None:
    schedule = WarmUp(parse_schedule(text, 6, 0), batches=batches, batches_per_epoch=4)
    run = scheduled_run(schedule, 6, samples=4, batch=1, workload=WORKLOAD)
    assert run.phases == Counter(schedule.phase(Step(epoch, batch)) for epoch in range(6) for batch in range(4))
    assert run.phases[Phase.WARMUP] == batches


def test_patterns_choose_among_the_layers_of_the_workload() -> None:
    run = scheduled_run(parse_schedule("approx:2", 2, source="zero"), 2, 10, 1, WORKLOAD)
    assert run.counts == ((BACKPROP_ALL, 10), (Plan(Phase.GP, by_site={"b": "zero"}), 10))
    run = scheduled_run(parse_schedule("sites=cut at c; batches=4:1", 2, source="zero"), 2, 10, 1, WORKLOAD)
    cut = Plan(Phase.GP, by_site={"a": "zero", "b": "zero"}, frozen=frozenset({"a", "b"}))
    assert run.counts == ((cut, 16), (BACKPROP_ALL, 4))


@pytest.mark.parametrize("warmup", [0, 1])
def test_a_schedule_that_decides_during_the_run_is_rejected(warmup: int) -> None:
    with pytest.raises(OptionError) as raised:
        scheduled_run(parse_schedule("adaptive", 9, warmup), 9, 10, 1, WORKLOAD)
    assert str(raised.value) == (
        "an adaptive schedule decides during the run, so it cannot be simulated before it. "
        "Train with it, then replay that run: adagp simulate --from-run RUN."
    )


def test_plans_that_hold_other_parameters_are_counted_apart() -> None:
    plans = [Plan(Phase.GP, by_site={"a": "zero"}, frozen=frozenset(held)) for held in ("", "a")]
    assert plan_key(plans[0]) != plan_key(plans[1])


def test_plans_by_layer_are_counted_apart() -> None:
    run = scheduled_run(ByLayer(), 4, samples=5, batch=1)
    assert [count for _, count in run.counts] == [12, 8]


@pytest.mark.parametrize(("name", "values"), [("epochs", (0, 10, 1)), ("samples", (1, 0, 1)), ("batch", (1, 10, 0))])
def test_rejects_empty_runs(name: str, values: tuple[int, int, int]) -> None:
    with pytest.raises(OptionError) as raised:
        scheduled_run(parse_schedule("bp", 1), *values)
    assert str(raised.value) == f"{name} is 0; it must be 1 or more."
    with pytest.raises(OptionError, match="^batch is 0; it must be 1 or more.$"):
        Run(0, ())


def test_a_recorded_run_is_replayed() -> None:
    warm = {"warmup": 10, "bp": 10, "gp": 0, "guarded": 0}
    mixed = {"warmup": 0, "bp": 2, "gp": 7, "guarded": 1}
    found = replayed_run([warm, mixed, mixed], 32, "predicted")
    assert found.phases == {Phase.WARMUP: 10, Phase.BP: 4, Phase.GP: 16}
    assert (found.batch, found.predictor_learns) == (32, True)


def test_a_run_of_backprop_teaches_no_predictor() -> None:
    assert not replayed_run([{"warmup": 0, "bp": 5, "gp": 0, "guarded": 0}], 32, "").predictor_learns


@pytest.mark.parametrize("text", ["ladder", "paper", "4:1", "3:1x2,2:1", "0:3", "epochs:3:1", "bp", "approx:1"])
@pytest.mark.parametrize("batches", [1, 3, 4, 17])
def test_whole_periods_count_as_walked_batches(text: str, batches: int) -> None:
    """Counting one period of an epoch gives what walking through all of its batches gives."""
    schedule = parse_schedule(text, 12, None)
    if text == "approx:1":
        schedule = schedule.resolve(workload_layout(WORKLOAD))
    walked = Counter(schedule.plan(Step(epoch, batch)).phase for epoch in range(12) for batch in range(batches))
    assert scheduled_run(schedule, 12, batches, 1, WORKLOAD).phases == walked


def test_epochs_that_do_not_repeat_themselves_have_a_limit() -> None:
    with pytest.raises(OptionError) as caught:
        scheduled_run(parse_schedule("999999999:1", 2, 1), 2, 10**9, 1)
    assert str(caught.value) == (
        "an epoch of 1,000,000,000 batches under this schedule repeats itself after 1,000,000,000 at the earliest; at most "
        "1,000,000 can be counted. Give fewer samples, or larger batches."
    )
    assert scheduled_run(parse_schedule("4:1", 2, 1), 2, 10**9, 1).phases[Phase.GP] == 8 * 10**8
