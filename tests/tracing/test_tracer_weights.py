"""Weights are counted once however often, in whatever part and form they are used; the oracle is the model's parameters."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from adagp.hw import Accelerator, Attention, Linear, Workload, scheduled_run, simulate, stages
from adagp.schedules import parse_schedule
from adagp.tracing.tracer import trace
from adagp.tracing.weight_uses import WeightUses


def parameters(model: nn.Module, *left_out: str) -> int:
    """Return the number of the model's weights: all parameters but biases and those that are in no product."""
    return sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if "bias" not in name and not name.startswith(left_out or ("-",))
    )


class Recurrent(nn.Module):
    """One linear layer for five steps, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(64, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, hidden: Tensor) -> Any:
        for _ in range(5):
            hidden = torch.tanh(self.step(hidden))
        return self.head(hidden)


class Tied(nn.Module):
    """A language model whose head is its embedding, with a hidden layer tied to itself transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.inner = nn.Linear(8, 12, bias=False)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Any:
        hidden = self.inner(self.embedding(tokens)) @ self.inner.weight
        return self.head(hidden)


class Experts(nn.Module):
    """Four experts of two layers, computed in the way that `mix` does it."""

    def __init__(self, mix: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.zeros(4, 8, 16))
        self.down = nn.Parameter(torch.zeros(4, 16, 8))
        self.mix = mix

    def forward(self, tokens: Tensor) -> Any:
        return self.mix(tokens, self.up, self.down)


def by_einsum(tokens: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return torch.einsum("btef,efd->btd", torch.einsum("btd,edf->btef", tokens, up).relu(), down)


def by_bmm(tokens: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return torch.bmm(torch.bmm(tokens.flatten(0, 1).expand(4, -1, -1), up).relu(), down)


def by_broadcast(tokens: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return (tokens[:, None] @ up).relu() @ down


def one_by_one(tokens: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return sum(((tokens @ up[expert]).relu() @ down[expert] for expert in range(4)), torch.zeros(()))


def whole_and_parts(tokens: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Every weight again in another arrangement and another type."""
    again = tokens @ up.permute(1, 0, 2).reshape(8, 64) + (tokens.double() @ up.double()[2]).sum()
    return one_by_one(tokens, up, down) + again.sum()


class CrossAttention(nn.Module):
    """Query, key and value weights are parts of one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, tokens: Tensor) -> Any:
        return self.attention(tokens, tokens[:, :3], tokens[:, :3])[0]


TOKENS = torch.zeros(2, 5, dtype=torch.long)
MODELS: dict[str, tuple[nn.Module, Any]] = {
    "shared linear": (Recurrent(), (64,)),
    "tied embedding": (Tied(), (TOKENS,)),
    "lstm": (nn.LSTM(12, 20, 2, bidirectional=True, batch_first=True), (7, 12)),
    "lstm with projection": (nn.LSTM(12, 20, proj_size=6, batch_first=True), (7, 12)),
    "gru": (nn.GRU(12, 20, 2, batch_first=True), (7, 12)),
    "rnn": (nn.RNN(12, 20, batch_first=True), (7, 12)),
    "experts by einsum": (Experts(by_einsum), (6, 8)),
    "experts by bmm": (Experts(by_bmm), (6, 8)),
    "experts by broadcast": (Experts(by_broadcast), (6, 8)),
    "experts one by one": (Experts(one_by_one), (6, 8)),
    "experts in whole and parts": (Experts(whole_and_parts), (6, 8)),
    "self-attention": (nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), (5, 16)),
    "cross-attention": (CrossAttention(), (7, 16)),
    "bilinear vector": (nn.Sequential(nn.Linear(8, 1), nn.Linear(1, 4)), (8,)),
}


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_the_parameters_that_are_in_products(name: str) -> None:
    model, inputs = MODELS[name]
    workload = trace(model, inputs)
    assert workload.weights == parameters(model, "norm")
    assert all(layer.trainable for layer in workload.array_layers if isinstance(layer, Linear))


def test_the_issue_s_example() -> None:
    assert trace(Recurrent(), (64,)).weights == 4736


def test_experts_are_linear_layers_side_by_side() -> None:
    up, down = trace(Experts(by_broadcast), (6, 8)).array_layers
    assert up == Linear("up", 6, 8, 16, input_gradient=False, groups=4)
    assert down == Linear("down", 6, 16, 8, groups=4)
    assert up.product(3).macs == 3 * 6 * 4 * 8 * 16
    assert trace(Experts(by_bmm), (6, 8)).array_layers == (up, down)


def test_products_of_activations_stay_attention() -> None:
    model, inputs = MODELS["self-attention"]
    assert sum(isinstance(layer, Attention) for layer in trace(model, inputs).array_layers) == 2


def test_a_recurrent_weight_s_second_use_needs_the_gradient_of_its_input() -> None:
    uses = [
        layer for layer in trace(nn.GRU(12, 20, batch_first=True), (3, 12)).array_layers if layer.name.endswith("hh_l0")
    ]
    assert [(layer.input_gradient, layer.shared_weights) for layer in uses] == [(False, 0), (True, 1200), (True, 1200)]


def test_weights_made_of_parameters_are_trained_under_their_module_s_name() -> None:
    normed = torch.nn.utils.parametrizations.weight_norm(nn.Linear(8, 4))
    (layer,) = trace(nn.Sequential(normed), (8,)).array_layers
    assert layer == Linear("0", 1, 8, 4, input_gradient=False)


def test_a_shared_weight_is_updated_and_predicted_once() -> None:
    accelerator, batch = Accelerator(), 16
    uses = stages(trace(Recurrent(), (64,)), accelerator, batch)
    once = stages(Workload("once", (Linear("step", 1, 64, 64),)), accelerator, batch)[0]
    assert uses[0].update == once.update
    assert uses[0].predictions == once.predictions
    for use in uses[1:5]:
        assert use.update.dram_bits == 0
        assert use.predictions is None
        assert use.weight_gradient.macs == once.weight_gradient.macs


def test_sharing_costs_less_than_weights_of_its_own() -> None:
    shared = trace(Recurrent(), (64,))
    own = Workload("own", tuple(Linear(f"{place}", 1, 64, 64) for place in range(5)) + shared.array_layers[-1:])
    run = scheduled_run(parse_schedule("1:1", 3), 3, 320, 16)
    costs = [simulate(workload, Accelerator(), run).outcomes["efficient"].cost for workload in (shared, own)]
    assert costs[0].cycles < costs[1].cycles
    assert costs[0].dram_bits < costs[1].dram_bits


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(0, 5), st.integers(1, 6)), max_size=6))
def test_overlapping_parts_are_counted_like_sets_of_elements(parts: list[tuple[int, int, int, int]]) -> None:
    weight = nn.Parameter(torch.arange(36.0).reshape(6, 6))
    uses, seen = WeightUses(), set[float]()
    uses.add(weight, "layer", True)
    for top, height, left, width in parts:
        part = weight[top : top + height, left : left + width].T
        elements = uses.find(part)
        assert elements is not None
        held = set(part.flatten().tolist())
        assert elements.count == len(held)
        assert uses.use(elements) == len(held & seen)
        seen |= held
