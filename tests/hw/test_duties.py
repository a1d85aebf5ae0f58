from math import inf

import pytest

from adagp.core.methods import METHODS, AcceleratorWork, Method
from adagp.core.plan import BACKPROP_ALL, Phase, Plan
from adagp.hw import Accelerator, Attention, Convolution, Linear, Predictions, SiteWork, Stage, Workload, stages
from adagp.hw.product import Cost
from adagp.hw.stages import duties

ACCELERATOR = Accelerator(bandwidth=inf)
LAYERS = (
    Convolution("stem", 3, 16, (3, 3), (8, 8), (8, 8), input_gradient=False),
    Convolution("middle", 16, 16, (3, 3), (8, 8), (8, 8)),
    Attention("mix", 2, 10, 16, 12),
    Linear("head", 1, 64, 10),
)


@pytest.fixture(scope="module")
def found() -> tuple[Stage, ...]:
    return stages(Workload("w", LAYERS), ACCELERATOR, 4)


def cycles(costs: list[Cost]) -> list[int]:
    return [cost.cycles for cost in costs]


def test_backprop_runs_everything_but_the_stems_input_gradient(found: tuple[Stage, ...]) -> None:
    batch = duties(found, BACKPROP_ALL, ACCELERATOR, predictor_learns=True)
    both = [stage.input_gradient + stage.weight_gradient for stage in found]
    both[0] = found[0].weight_gradient
    assert cycles([duty.backward for duty in batch]) == cycles(both)
    assert [duty.learns for duty in batch] == [True, True, False, True]
    assert [duty.predicts for duty in batch] == [True, True, False, True]


def test_prediction_runs_forward_only(found: tuple[Stage, ...]) -> None:
    batch = duties(found, Plan(Phase.GP, default="predicted", hold_rest=True), ACCELERATOR, predictor_learns=True)
    assert cycles([duty.forward for duty in batch]) == cycles([stage.forward for stage in found])
    assert all(duty.backward == Cost() for duty in batch)
    assert [duty.predicts for duty in batch] == [True, True, False, True]
    assert not any(duty.learns for duty in batch)
    assert [duty.forward.dram_writes - stage.forward.dram_writes for duty, stage in zip(batch, found, strict=True)] == [
        stage.update.dram_writes for stage in found
    ]


def test_a_partial_backward_pass_stops_at_the_lowest_true_site(found: tuple[Stage, ...]) -> None:
    plan = Plan(Phase.GP, default="predicted", by_site={"middle": "backprop", "head": "backprop"}, hold_rest=True)
    batch = duties(found, plan, ACCELERATOR, predictor_learns=False)
    assert batch[0].backward.cycles == 0
    assert batch[1].backward.cycles == found[1].weight_gradient.cycles
    assert batch[2].backward.cycles == found[2].input_gradient.cycles + found[2].weight_gradient.cycles
    assert batch[3].backward.cycles == found[3].input_gradient.cycles + found[3].weight_gradient.cycles
    assert [duty.predicts for duty in batch] == [True, False, False, False]


def test_a_plan_that_holds_what_lies_below_a_cut_stops_there_too(found: tuple[Stage, ...]) -> None:
    below = {"stem": "zero", "middle": "zero"}
    cut = Plan(Phase.GP, by_site=below, held=frozenset(below))
    batch = duties(found, cut, ACCELERATOR, predictor_learns=False)
    assert cycles([duty.backward for duty in batch]) == [0, 0, 0, found[3].weight_gradient.cycles]
    whole = duties(found, Plan(Phase.GP, by_site=below), ACCELERATOR, predictor_learns=False)
    assert whole[1].backward.cycles == found[1].input_gradient.cycles


def test_parameters_outside_of_sites_keep_the_chain_going(found: tuple[Stage, ...]) -> None:
    plan = Plan(Phase.BP, by_site={"middle": "zero"})
    batch = duties(found, plan, ACCELERATOR, predictor_learns=False)
    assert batch[1].backward.cycles == found[1].input_gradient.cycles
    assert batch[0].backward.cycles == found[0].weight_gradient.cycles


@pytest.mark.parametrize("source", ["zero", "random", "noise", "momentum"])
def test_supplied_gradients_cost_no_weight_gradient(found: tuple[Stage, ...], source: str) -> None:
    plan = Plan(Phase.GP, default=source, hold_rest=True)
    batch = duties(found, plan, ACCELERATOR, predictor_learns=False)
    assert all(duty.backward.cycles == 0 and not duty.predicts for duty in batch)


@pytest.mark.parametrize(("source", "gradients"), [("replay", 1), ("average", 4)])
def test_remembered_gradients_are_read_from_memory(found: tuple[Stage, ...], source: str, gradients: int) -> None:
    remembering, supplied = (
        duties(found, Plan(Phase.GP, default=name, hold_rest=True), ACCELERATOR, False) for name in (source, "zero")
    )
    more = remembering[1].forward.dram_reads - supplied[1].forward.dram_reads
    assert more == gradients * 16 * LAYERS[1].weights
    assert remembering[1].backward == Cost()


def test_a_gradient_that_was_computed_is_read_back_by_the_update(found: tuple[Stage, ...]) -> None:
    batch = duties(found, BACKPROP_ALL, ACCELERATOR, False)
    passes = found[1].input_gradient + found[1].weight_gradient + found[1].update
    assert batch[1].backward.dram_reads - passes.dram_reads == 2 * 16 * LAYERS[1].weights


def test_a_skipped_batch_costs_nothing(found: tuple[Stage, ...]) -> None:
    batch = duties(found, Plan(Phase.GP, default="skip", hold_rest=True), ACCELERATOR, predictor_learns=True)
    assert all(duty.forward == Cost() and duty.backward == Cost() for duty in batch)


def doubled_gradient(site: SiteWork) -> Cost:
    return site.accelerator.tiled_cost(site.layer.product(2 * site.batch))


def small_predictions(site: SiteWork) -> Predictions | None:
    return (
        Predictions(Cost(5), Cost(site.variant if isinstance(site.variant, int) else 7)) if site.layer.weights else None
    )


def test_a_method_brings_cost_functions_of_its_own(found: tuple[Stage, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    work = AcceleratorWork(f"{__name__}:doubled_gradient", predictions=f"{__name__}:small_predictions")
    method = Method("outside", "a plug-in", "package.module:Class", accelerator=work)
    monkeypatch.setitem(METHODS._things, "outside", method)
    served = duties(found, Plan(Phase.GP, default="outside", hold_rest=True), ACCELERATOR, True, "outside")
    assert served[1].backward.macs == 2 * found[1].forward.macs
    assert [duty.predicts for duty in served] == [True, True, False, True]
    learning = duties(found, BACKPROP_ALL, ACCELERATOR, True, "outside", variant=11)
    assert [duty.learns for duty in learning] == [True, True, False, True]
    assert learning[1].predictions == Predictions(Cost(5), Cost(11))
