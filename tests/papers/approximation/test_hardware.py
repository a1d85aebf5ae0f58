import pytest
from tests.hw.small_workload import ACCELERATOR, small_stages

from adagp.core.plan import Phase, Plan
from adagp.hw import Convolution, Stage, Workload, stages
from adagp.hw.stages import SiteWork, duties, weight_gradient_cost


@pytest.fixture(scope="module")
def found() -> tuple[Stage, ...]:
    return small_stages()


def test_top_one_costs_a_patch_for_each_sample_and_channel(found: tuple[Stage, ...]) -> None:
    plan = Plan(Phase.BP, by_site={"middle": "topk"})
    batch = duties(found, plan, ACCELERATOR, predictor_learns=False)
    macs = 4 * 16 * 16 * 9
    assert batch[1].backward.cycles - found[1].input_gradient.cycles == -(-macs // 180)
    assert found[1].weight_gradient.macs == macs * 64


def test_top_one_moves_no_more_off_chip_than_inputs_output_gradient_and_result() -> None:
    layer = Convolution("wide", 64, 128, (3, 3), (16, 16), (16, 16))
    (stage,) = stages(Workload("w", (layer,)), ACCELERATOR, 32)
    cost = weight_gradient_cost(
        "adagp.papers.approximation.hardware:top_one_gradient", SiteWork(layer, ACCELERATOR, 32, 10)
    )
    assert cost.dram_bits == 16 * (32 * (layer.input_words + layer.output_words) + layer.weights)
    assert cost.dram_bits <= stage.weight_gradient.dram_bits
