from math import inf

import pytest

from adagp.core.plan import Phase, Plan
from adagp.hw import Accelerator, Attention, Convolution, Linear, Stage, Workload, stages
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


def test_synthetic_gradients_run_a_network_and_the_exact_product(found: tuple[Stage, ...]) -> None:
    batch = duties(found, Plan(Phase.GP, default="dni", hold_rest=True), ACCELERATOR, False)
    assert batch[1].backward.cycles == found[1].weight_gradient.cycles
    assert batch[1].predicts
    assert batch[1].predictions is not None
    one = 4 * 64 * 16 * 9 * 32  # a layer of the network, from 16 channels to 32 or back, 3x3
    assert batch[1].predictions.forward.macs == 2 * one
    assert batch[1].predictions.training.macs == 5 * one
    assert not batch[2].predicts
