import pytest
from tests.hw.small_workload import ACCELERATOR, small_stages

from adagp.core.plan import BACKPROP_ALL, Phase, Plan
from adagp.hw import Stage
from adagp.hw.stages import duties


@pytest.fixture(scope="module")
def found() -> tuple[Stage, ...]:
    return small_stages()


def test_synthetic_gradients_run_a_network_and_the_exact_product(found: tuple[Stage, ...]) -> None:
    batch = duties(found, Plan(Phase.GP, default="dni", hold_rest=True), ACCELERATOR, False)
    assert batch[1].backward.cycles == found[1].weight_gradient.cycles
    assert batch[1].predicts
    assert batch[1].predictions is not None
    one = 4 * 64 * 16 * 9 * 32  # a layer of the network, from 16 channels to 32 or back, 3x3
    assert batch[1].predictions.forward.macs == 2 * one
    assert batch[1].predictions.training.macs == 5 * one
    assert not batch[2].predicts


def test_decoupled_networks_are_trained_in_every_batch(found: tuple[Stage, ...]) -> None:
    own = duties(found, Plan(Phase.GP, default="dni_decoupled"), ACCELERATOR, False)
    taught = duties(found, BACKPROP_ALL, ACCELERATOR, True, "dni")
    assert [duty.backward for duty in own] == [duty.backward for duty in taught]  # input and weight gradients
    for duty, reference in zip(own, taught, strict=True):
        assert (duty.predicts, duty.learns) == (duty.stage.is_site, duty.stage.is_site)
        assert duty.predictions == reference.predictions
