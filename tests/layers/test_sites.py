from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transposed import Conv1D, output_last
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from adagp.errors import ModelError, OptionError
from adagp.hw.workload import Convolution, Linear
from adagp.layers.rules import RULES, register_rule
from adagp.layers.sites import Survey, survey
from adagp.tracing.tracer import trace


def names(found: Survey) -> list[str]:
    return [site.name for site in found.sites]


def reasons(found: Survey) -> dict[str, str]:
    return {one.name: one.reason for one in found.rest}


def test_layers_with_a_rule_are_sites_in_the_order_of_the_model() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 5), nn.ReLU(), nn.Sequential(nn.Conv1d(4, 6, 3, groups=2)), nn.Linear(6, 2))
    found = survey(model)
    assert names(found) == ["0", "2.0", "3"]
    assert [site.index for site in found.sites] == [0, 1, 2]
    assert [(site.rows, site.width) for site in found.sites] == [(4, 75), (6, 6), (2, 6)]
    assert [site.weight is site.module.weight for site in found.sites] == [True] * 3
    assert reasons(found) == {"0.bias": "bias", "2.0.bias": "bias", "3.bias": "bias"}


def test_rows_are_outputs_wherever_the_weight_counts_them() -> None:
    model = nn.Sequential(nn.ConvTranspose1d(4, 6, 3), nn.ConvTranspose2d(4, 6, (1, 3), groups=2), Conv1D(5, 3))
    found = survey(model)
    assert [(site.rows, site.width) for site in found.sites] == [(6, 12), (6, 6), (5, 3)]
    assert reasons(found) == {"0.bias": "bias", "1.bias": "bias", "2.bias": "bias"}


@pytest.mark.medium
@settings(max_examples=60)
@given(output_last())
def test_an_output_depends_on_its_row_and_on_nothing_else(case: tuple[nn.Module, Tensor]) -> None:
    """Autograd tells which weights make an output channel."""
    layer, inputs = case
    (site,) = survey(layer).sites
    output = layer(inputs)
    channels = output.movedim(-1 if isinstance(layer, Conv1D) else 1, 0)
    assert len(channels) == site.rows
    total = torch.zeros_like(site.weight)
    for channel in range(site.rows):
        (gradient,) = torch.autograd.grad(channels[channel].square().sum(), site.weight, retain_graph=True)
        rows = site.outputs_first(gradient)
        assert rows.flatten(1).shape == (site.rows, site.width)
        assert not rows[:channel].any()
        assert not rows[channel + 1 :].any()
        assert torch.equal(site.from_outputs_first(rows), gradient)
        total += gradient
    (whole,) = torch.autograd.grad(output.square().sum(), site.weight)
    torch.testing.assert_close(total, whole)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("groups", [1, 2])
def test_what_goes_back_into_the_weights_shape_lies_as_the_weight_does(form: torch.memory_format, groups: int) -> None:
    layer: nn.Module = nn.ConvTranspose2d(4, 6, 3, groups=groups).to(memory_format=form)  # type: ignore[call-overload]
    (site,) = survey(layer).sites
    rows = torch.randn(site.outputs_first(site.weight).shape, dtype=torch.float64)
    weight = site.from_outputs_first(rows)
    assert weight.dtype == torch.float64
    assert weight.stride() == site.weight.stride()
    assert torch.equal(site.outputs_first(weight), rows)


@pytest.mark.medium
@settings(max_examples=60)
@given(output_last(st.integers(1, 2)))
def test_multiply_accumulates_are_those_of_the_traced_products(case: tuple[nn.Module, Tensor]) -> None:
    layer, inputs = case
    inputs = inputs.float().expand(2, *inputs.shape[1:]) if len(inputs) == 1 else inputs.float()[:2]
    (site,) = survey(layer.float()).sites
    (traced,) = [one for one in trace(layer, (inputs,)).layers if isinstance(one, Convolution | Linear)]
    assert site.macs((inputs,), layer(inputs)) == traced.product(2).macs
    assert (site.rows, site.weight.numel()) == (traced.samples, traced.weights)


def test_a_model_that_is_one_layer() -> None:
    found = survey(nn.Linear(3, 2))
    assert names(found) == [""]
    assert reasons(found) == {"bias": "bias"}


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm2d(2), nn.LayerNorm(2), nn.GroupNorm(1, 2), nn.InstanceNorm1d(2, affine=True), nn.RMSNorm(2)]
)
def test_normalisation_is_no_site(layer: nn.Module) -> None:
    found = survey(nn.Sequential(layer))
    assert found.sites == ()
    assert set(reasons(found).values()) == {"normalisation"}
    assert len(found.rest) == len(list(layer.parameters()))


def test_layers_without_a_rule_are_named() -> None:
    found = survey(nn.Sequential(nn.Embedding(5, 3), nn.Bilinear(1, 1, 1, bias=False)))
    assert reasons(found) == {
        "0.weight": "no rule for layer type Embedding",
        "1.weight": "no rule for layer type Bilinear",
    }


def test_every_trainable_parameter_is_told_once() -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8), nn.LSTM(4, 3), nn.Linear(3, 2))
    found = survey(model)
    told = [site.weight for site in found.sites] + [one.parameter for one in found.rest]
    assert sorted(map(id, told)) == sorted(map(id, model.parameters()))
    assert names(found) == ["0.linear1", "0.linear2", "2"]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.body = nn.Linear(3, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


def test_shared_weights_are_no_sites() -> None:
    found = survey(Tied())
    assert names(found) == ["body"]
    assert reasons(found) == {"embedding.weight": "shared by embedding.weight and head.weight", "body.bias": "bias"}


def test_a_weight_shared_with_the_model_itself_is_told_by_its_name() -> None:
    layer = nn.Linear(2, 2, bias=False)
    model = nn.Sequential(layer)
    model.kernel = layer.weight
    assert reasons(survey(model)) == {"kernel": "shared by kernel and 0.weight"}


def test_a_layer_under_two_names_is_one_site() -> None:
    layer = nn.Linear(3, 3, bias=False)
    assert names(survey(nn.Sequential(layer, nn.ReLU(), layer))) == ["0"]


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    found = survey(model)
    assert names(found) == ["1"]
    assert reasons(found) == {"1.bias": "bias"}


def test_weights_outside_the_optimizer_never_move() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    found = survey(model, optimized=model[1].parameters())
    never = "not in the optimizer, so it never moves"
    assert names(found) == ["1"]
    assert reasons(found) == {"0.weight": never, "0.bias": never, "1.bias": "bias"}


def test_weights_that_are_computed_from_others_are_no_sites() -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 3)), nn.Linear(3, 2, bias=False))
    computed = "the layer computes its weight from it (parametrization)"
    found = survey(model)
    assert names(found) == ["1"]
    assert reasons(found) == {
        "0.bias": "bias",
        "0.parametrizations.weight.original0": computed,
        "0.parametrizations.weight.original1": computed,
    }


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
def test_the_older_weight_norm_is_no_site_either() -> None:
    layer: Any = torch.nn.utils.weight_norm(nn.Linear(3, 3))
    assert reasons(survey(nn.Sequential(layer))) == {
        "0.bias": "bias",
        "0.weight_g": "not the weight of its Linear",
        "0.weight_v": "not the weight of its Linear",
    }


def test_attention_uses_its_projections_without_calling_them() -> None:
    found = survey(nn.Sequential(nn.MultiheadAttention(4, 2, bias=False)))
    assert found.sites == ()
    assert reasons(found) == {
        "0.in_proj_weight": "no rule for layer type MultiheadAttention",
        "0.out_proj.weight": "used by nn.MultiheadAttention without calling the layer",
    }


def test_complex_weights_are_no_sites() -> None:
    found = survey(nn.Sequential(nn.Linear(2, 2, bias=False, dtype=torch.complex64)))
    assert reasons(found) == {"0.weight": "not a real floating-point tensor"}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_lazy_layers_want_a_forward_pass_first() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ModelError) as caught:
        survey(model)
    assert str(caught.value) == (
        "parameter '0.weight' has no shape yet (a lazy layer). Run one forward pass before attaching adagp."
    )
    model(torch.zeros(1, 2))
    assert names(survey(model)) == ["0"]


def test_excluded_layers_are_no_sites() -> None:
    model = nn.ModuleDict(
        {"stem": nn.Linear(2, 2), "blocks": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "head": nn.Linear(2, 2)}
    )
    found = survey(model, exclude=["head", "blocks.*"])
    assert names(found) == ["stem"]
    assert {name: why for name, why in reasons(found).items() if "bias" not in name} == {
        "blocks.0.weight": "excluded",
        "blocks.1.weight": "excluded",
        "head.weight": "excluded",
    }


def test_a_pattern_that_matches_nothing_is_rejected() -> None:
    with pytest.raises(OptionError) as caught:
        survey(Tied(), exclude=["body", "haed"])
    assert str(caught.value) == (
        "the pattern 'haed' matches no layer of the model. Its layers are: embedding, body, head."
    )


def test_of_many_layers_eight_are_told() -> None:
    model = nn.Sequential(*(nn.ReLU() for _ in range(9)))
    with pytest.raises(OptionError) as caught:
        survey(model, exclude=["x"])
    assert str(caught.value) == (
        "the pattern 'x' matches no layer of the model. Its layers are: 0, 1, 2, 3, 4, 5, 6, 7 and 1 more."
    )


class Scale(nn.Module):
    """A layer of somebody's own, with a weight and one more parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 2))
        self.offset = nn.Parameter(torch.zeros(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight.T + self.offset


@pytest.fixture
def own_rule() -> Iterator[None]:
    register_rule(Scale, lambda module, output: output.mean(0)[:, None, None])
    yield
    del RULES[Scale]


@pytest.mark.usefixtures("own_rule")
def test_a_layer_with_a_rule_of_ones_own_is_a_site() -> None:
    found = survey(nn.Sequential(Scale()))
    assert [(site.name, site.rows, site.width) for site in found.sites] == [("0", 3, 2)]
    assert reasons(found) == {"0.offset": "not the weight of its Scale"}
    assert found.sites[0].rule.samples(found.sites[0].module, torch.ones(4, 3)).shape == (3, 1, 1)
