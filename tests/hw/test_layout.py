import pytest
import torch

from adagp.engine.trial_forward import trial_forward
from adagp.hw import Attention, Convolution, Elementwise, Linear, Workload
from adagp.hw.runs import workload_layout
from adagp.layers.sites import survey
from adagp.models.example import build_example
from adagp.schedules import Layer
from adagp.tracing.tracer import trace

WORKLOAD = Workload(
    "all kinds",
    (
        Convolution("stem", 3, 16, (3, 3), (8, 8), (8, 8), input_gradient=False),
        Elementwise("relu", "relu", 1024, 1024),
        Convolution("frozen", 16, 16, (3, 3), (8, 8), (8, 8), trainable=False),
        Linear("shared", 10, 16, 16),
        Attention("mix", 2, 10, 16, 12),
        Convolution("up", 16, 4, (2, 2), (8, 8), (16, 16), (2, 2), transposed=True),
        Linear("shared", 5, 16, 16),
        Linear("head", 1, 64, 10),
    ),
)


def test_trained_layers_in_order_each_once() -> None:
    layout = workload_layout(WORKLOAD)
    assert layout.measured
    assert layout.layers == (
        Layer("stem", "conv", True, 64 * 16 * 27, ("stem",)),
        Layer("shared", "linear", True, 15 * 256, ("shared",)),
        Layer("up", "conv", True, 64 * 16 * 16, ("up",)),
        Layer("head", "linear", True, 640, ("head",)),
    )


@pytest.mark.medium
@pytest.mark.parametrize("name", ["two_layer_cnn", "resnet20", "mobilenet_v2", "densenet121"])
def test_the_sites_are_those_that_a_trial_forward_pass_finds(name: str) -> None:
    with torch.device("meta"):
        example = build_example(name, classes=10, image=(3, 32, 32), batch=2)
        tried = trial_forward(example.model, survey(example.model), example.inputs).layout
    traced = workload_layout(trace(example.model, example.inputs))
    assert [(site.name, site.kind, site.macs) for site in tried.sites] == [
        (site.name, site.kind, 2 * site.macs) for site in traced.sites
    ]
    assert tried.savings() == traced.savings()
