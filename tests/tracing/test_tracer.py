from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagp.errors import ModelError, OptionError
from adagp.hw import Attention, Convolution, Elementwise, Linear, Workload
from adagp.hw.workload import workload_from_json
from adagp.tracing.tracer import trace, trace_model


class Net(nn.Module):
    """Strided, grouped and dilated convolutions, normalisation, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 16, (3, 1), groups=4, dilation=2)
        self.head = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Any:
        features = F.relu(self.norm(self.stem(images)))
        return self.head(self.grouped(features).mean((2, 3)))


def find(workload: Workload, kind: type[Any]) -> list[Any]:
    return [layer for layer in workload.layers if isinstance(layer, kind)]


def test_layers_have_their_shapes_and_names() -> None:
    workload = trace(Net(), (3, 16, 16))
    assert workload.array_layers == (
        Convolution("stem", 3, 8, (3, 3), (16, 16), (8, 8), (2, 2), input_gradient=False),
        Convolution("grouped", 8, 16, (3, 1), (8, 8), (4, 8), (1, 1), (2, 2), groups=4),
        Linear("head", 1, 16, 10),
    )
    assert workload.name == "Net"
    norm, relu, mean = find(workload, Elementwise)[:3]
    assert (norm.name, norm.operation, norm.input_words) == ("norm", "native_batch_norm", 512)
    assert (relu.operation, relu.input_words, relu.output_words) == ("relu", 512, 512)
    assert (mean.input_words, mean.output_words) == (512, 16)


def test_the_workload_reads_back_equal() -> None:
    workload = trace(Net(), (3, 16, 16))
    assert workload_from_json(workload.to_json()) == workload


def test_macs_are_those_of_torchs_own_counter() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = Net()
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(2, 3, 16, 16))
    assert trace(model, (3, 16, 16)).macs == counter.get_total_flops() / 2 / 2


@pytest.mark.parametrize("batch", [2, 3, 8])
def test_a_sample_is_a_sample_whatever_the_batch(batch: int) -> None:
    assert trace(Net(), (3, 16, 16), batch=batch).array_layers == trace(Net(), (3, 16, 16)).array_layers


def test_the_users_model_is_left_as_it_was() -> None:
    model = Net().eval()
    model.norm.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trace(model, (3, 16, 16))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == [False, False, True, False, False]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not torch.nn.modules.module._global_forward_hooks


def test_frozen_layers_are_not_trained_and_need_no_gradient_below() -> None:
    model = Net()
    for parameter in (*model.stem.parameters(), *model.norm.parameters()):
        parameter.requires_grad_(False)
    stem, grouped, _ = trace(model, (3, 16, 16)).array_layers
    assert (stem.trainable, stem.input_gradient) == (False, False)
    assert (grouped.trainable, grouped.input_gradient) == (True, False)


def test_transposed_and_one_dimensional_convolutions() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(4, 6, 2, stride=2), nn.Flatten(2), nn.Conv1d(6, 5, 3))
    up, line = trace(model, (4, 5, 5)).array_layers
    assert up == Convolution("0", 4, 6, (2, 2), (5, 5), (10, 10), (2, 2), transposed=True, input_gradient=False)
    assert line == Convolution("2", 6, 5, (1, 3), (1, 100), (1, 98))


def test_a_transformer_is_traced_with_its_attention() -> None:
    model = nn.Transformer(16, 4, 1, 1, 32, batch_first=True)
    tokens = torch.empty(2, 10, 16), torch.empty(2, 7, 16)
    workload = trace(model, tokens)
    encoder = "encoder.layers.0"
    linears = [(layer.name, layer.rows, layer.in_features, layer.out_features) for layer in find(workload, Linear)]
    assert linears[:4] == [
        (f"{encoder}.self_attn", 10, 16, 48),
        (f"{encoder}.self_attn.out_proj", 10, 16, 16),
        (f"{encoder}.linear1", 10, 16, 32),
        (f"{encoder}.linear2", 10, 32, 16),
    ]
    products = [(layer.count, layer.rows, layer.depth, layer.columns) for layer in find(workload, Attention)]
    assert products == [(4, 10, 4, 10), (4, 10, 10, 4), (4, 7, 4, 7), (4, 7, 7, 4), (4, 7, 4, 10), (4, 7, 10, 4)]


def test_fused_attention_is_two_products() -> None:
    class Fused(nn.Module):
        def forward(self, tokens: Tensor) -> Any:
            return F.scaled_dot_product_attention(tokens, tokens, tokens)

    products = find(trace(Fused(), (3, 10, 8)), Attention)
    assert [(layer.count, layer.rows, layer.depth, layer.columns) for layer in products] == [
        (3, 10, 8, 10),
        (3, 10, 10, 8),
    ]
    assert not any(layer.input_gradient for layer in products)


def test_shared_weights_and_weights_on_the_left_are_recognised() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(50, 8)

        def forward(self, tokens: Tensor) -> Any:
            hidden = self.embedding(tokens)
            logits = hidden @ self.embedding.weight.T
            return logits + (self.embedding.weight @ hidden.flatten(0, 1).T).sum()

    right, left = trace(Tied(), (torch.zeros(2, 5, dtype=torch.long),)).array_layers
    assert right == Linear("embedding", 5, 8, 50)
    assert left == Linear("embedding", 5, 8, 50, shared_weights=400)


def test_models_by_name_are_traced_without_weights() -> None:
    workload = trace_model("two_layer_cnn", classes=7, image=(3, 32, 32))
    assert workload.name == "two_layer_cnn"
    assert workload.array_layers[-1].samples == 7
    with pytest.raises(OptionError, match=r"^image \(3, 32\) is not allowed; it must be channels, height and width\.$"):
        trace_model("two_layer_cnn", classes=7, image=(3, 32))


def test_an_input_that_does_not_fit_is_named_with_the_layer() -> None:
    with pytest.raises(ModelError) as raised:
        trace(Net(), (1, 16, 16))
    assert str(raised.value).startswith(
        "input 1x16x16 does not fit Net: aten.convolution.default in module 'stem' failed: "
    )


class Peeks(nn.Module):
    """Looks at a value."""

    def forward(self, images: Tensor) -> Any:
        return images if images.sum().item() > 0 else -images


class Selects(nn.Module):
    """Has a shape that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, images: Tensor) -> Any:
        return self.inner(images)[images > 0]


@pytest.mark.parametrize(
    ("model", "operation"), [(Peeks(), "aten._local_scalar_dense.default"), (Selects(), "aten.index.Tensor")]
)
def test_an_operation_that_needs_values_is_named(model: nn.Module, operation: str) -> None:
    with pytest.raises(ModelError) as raised:
        trace(model, (3, 4, 4))
    name = type(model).__name__
    assert str(raised.value) == (
        f"cannot trace {name}: {operation} in the model needs the values of a tensor, and tracing has only shapes."
    )
    assert not torch.nn.modules.module._global_forward_hooks


def test_work_that_does_not_grow_with_the_batch_is_rejected() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Linear(4, 4)

        def forward(self, images: Tensor) -> Any:
            return images + self.table(torch.zeros(5, 4, device=images.device)).mean()

    with pytest.raises(ModelError) as raised:
        trace(Fixed(), (3, 4, 4))
    assert str(raised.value) == (
        "cannot trace module 'table': the number of rows of aten.addmm.default is 5, which does not divide by the batch "
        "of 2, so it cannot be scaled to other batches."
    )


def test_three_dimensional_convolutions_are_rejected() -> None:
    with pytest.raises(ModelError, match=r"^cannot trace module '0': a convolution of 3 dimensions\.$"):
        trace(nn.Sequential(nn.Conv3d(1, 1, 1)), (1, 4, 4, 4))
