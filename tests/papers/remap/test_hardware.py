import pytest
from tests.hw.small_workload import ACCELERATOR, small_stages

from adagp.core.methods import batch_variation
from adagp.core.plan import Phase, Plan
from adagp.hw import Accelerator
from adagp.hw.product import Operation
from adagp.hw.stages import duties
from adagp.hw.workload import ArrayLayer, Convolution, Linear
from adagp.papers.remap.hardware import network_layers
from adagp.program.workloads import model_workload

PLAN = Plan(Phase.GP, default="remapped", hold_rest=True)


def forward_cycles(layer: ArrayLayer, accelerator: Accelerator) -> int:
    """Return the cycles of the published network, written out: its layers one after the other."""
    size = (4, 4)
    products = [Convolution("", inputs, 64, (3, 3), size, size).product(layer.samples) for inputs in (1, 64, 64, 64)]
    products.append(Linear("", 1, 1024, 10_000).product(1))
    trained = [accelerator.trained_with(product, Operation.FORWARD) for product in products]
    return int(accelerator.with_stalls(accelerator.tiled_cost(*trained)).cycles)


def test_a_gp_batch_costs_its_own_network() -> None:
    for duty in duties(small_stages(), PLAN, ACCELERATOR, False):
        if not duty.stage.is_site:
            continue
        assert duty.predictions is not None
        layer = duty.stage.layer
        assert duty.predictions.forward.macs == layer.samples * 16 * 9 * (64 + 3 * 64 * 64) + 1024 * 10_000
        assert duty.predictions.forward.cycles == forward_cycles(layer, ACCELERATOR)


def test_the_predictor_of_vgg11_takes_about_five_billion_products() -> None:
    layers = [layer for layer in model_workload("vgg11", "cifar10").array_layers if layer.trainable]
    macs = [layer.samples * 16 * 9 * (64 + 3 * 64 * 64) + 1024 * 10_000 for layer in layers]
    assert sum(macs) == pytest.approx(5.0e9, rel=0.05)


def test_fewer_outputs_cost_less() -> None:
    variation = batch_variation("remap", {"remap_outputs": 1000})
    site = next(
        duty for duty in duties(small_stages(), PLAN, ACCELERATOR, False, variant=variation.at(0)) if duty.stage.is_site
    )
    assert site.predictions is not None
    assert site.predictions.forward.macs == site.stage.layer.samples * 16 * 9 * 12_352 + 1024 * 1000
    assert network_layers(1000)[-1].weights == 1024 * 1000
