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


def test_top_one_costs_a_patch_for_each_sample_and_channel(found: tuple[Stage, ...]) -> None:
    plan = Plan(Phase.BP, by_site={"middle": "topk"})
    batch = duties(found, plan, ACCELERATOR, predictor_learns=False)
    macs = 4 * 16 * 16 * 9
    assert batch[1].backward.cycles - found[1].input_gradient.cycles == -(-macs // 180)
    assert found[1].weight_gradient.macs == macs * 64
