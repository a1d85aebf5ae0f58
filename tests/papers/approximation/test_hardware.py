import pytest
from tests.hw.small_workload import ACCELERATOR, small_stages

from adagp.core.plan import Phase, Plan
from adagp.hw import Stage
from adagp.hw.stages import duties


@pytest.fixture(scope="module")
def found() -> tuple[Stage, ...]:
    return small_stages()


def test_top_one_costs_a_patch_for_each_sample_and_channel(found: tuple[Stage, ...]) -> None:
    plan = Plan(Phase.BP, by_site={"middle": "topk"})
    batch = duties(found, plan, ACCELERATOR, predictor_learns=False)
    macs = 4 * 16 * 16 * 9
    assert batch[1].backward.cycles - found[1].input_gradient.cycles == -(-macs // 180)
    assert found[1].weight_gradient.macs == macs * 64
