import pytest
from tests.hw.small_workload import ACCELERATOR, small_stages

from adagp.core.plan import BACKPROP_ALL, Phase, Plan
from adagp.hw import Stage
from adagp.hw.stages import duties


@pytest.fixture(scope="module")
def stages() -> tuple[Stage, ...]:
    return small_stages()


def test_feedback_alignment_costs_what_backprop_costs(stages: tuple[Stage, ...]) -> None:
    aligned = duties(stages, Plan(Phase.GP, default="fa"), ACCELERATOR, False)
    exact = duties(stages, BACKPROP_ALL, ACCELERATOR, False)
    assert [duty.backward.cycles for duty in aligned] == [duty.backward.cycles for duty in exact]


def test_direct_feedback_projects_the_error_to_each_layers_input(stages: tuple[Stage, ...]) -> None:
    batch = duties(stages, Plan(Phase.GP, default="dfa", hold_rest=True), ACCELERATOR, False)
    for duty in batch:
        if not duty.stage.is_site:
            continue
        assert duty.backward.macs == duty.stage.weight_gradient.macs  # no chain of input gradients
        assert duty.predictions is not None
        words = duty.stage.error_words * duty.stage.layer.input_words
        assert duty.predictions.forward.macs == duty.stage.batch * words
    learning = duties(stages, BACKPROP_ALL, ACCELERATOR, True, "dfa")
    assert all(duty.predictions is None for duty in learning if duty.stage.is_site)


def test_direct_feedback_passes_no_gradient_through_a_layer_in_the_published_regime(stages: tuple[Stage, ...]) -> None:
    batch = duties(
        stages, Plan(Phase.GP, default="dfa"), ACCELERATOR, False
    )  # biases and normalisation are trained, too
    for duty in batch:
        if duty.stage.is_site:
            assert duty.backward.macs == duty.stage.weight_gradient.macs
