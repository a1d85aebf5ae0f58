"""What autograd keeps, as it is traced on shapes, against what torch itself saves of a real forward pass."""

from collections.abc import Callable, Sequence
from math import prod

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from adagp.hw import Accelerator
from adagp.hw.memory import step_memory
from adagp.hw.workload import Elementwise, Linear, Workload
from adagp.models.vision import load_torchvision
from adagp.pipe.chips.parallel import split_tensors
from adagp.tracing.tracer import trace

pytestmark = pytest.mark.medium

SAMPLES = 6


class Recurrent(nn.Module):
    """An LSTM over an embedding, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.cell = nn.LSTMCell(16, 24)
        self.head = nn.Linear(24, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        inputs = self.table(tokens)
        state = inputs.new_zeros(2, len(tokens), 24)
        hidden, cell = state[0], state[1]
        outputs = []
        for step in inputs.unbind(1):
            hidden, cell = self.cell(step, (hidden, cell))
            outputs.append(self.head(hidden))
        return torch.stack(outputs, 1)


class RootMeanSquareNorm(nn.Module):
    """As Llama has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, inputs: Tensor) -> Tensor:
        variance = inputs.pow(2).mean(-1, keepdim=True)
        return self.weight * (inputs * torch.rsqrt(variance + 1e-6))


class DecoderBlock(nn.Module):
    """Attention with separate projections, and a gated unit."""

    def __init__(self, norm: Callable[[int], nn.Module] = RootMeanSquareNorm, width: int = 32) -> None:
        super().__init__()
        self.norm, self.second_norm = norm(width), norm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(inputs)
        heads = [layer(hidden).unflatten(-1, (4, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        scores = (heads[0] @ heads[1].transpose(-1, -2) / 8**0.5).softmax(-1)
        inputs = inputs + self.out((scores @ heads[2]).transpose(1, 2).flatten(2))
        hidden = self.second_norm(inputs)
        gated: Tensor = self.down(F.silu(self.gate(hidden)) * self.up(hidden))
        return inputs + gated


class Decoder(nn.Module):
    """An embedding, two blocks, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.blocks = nn.Sequential(DecoderBlock(), DecoderBlock())
        self.head = nn.Linear(32, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.table(tokens)))
        return logits


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Dropout(0.5), nn.Flatten(), nn.Linear(8 * 16, 10)),
    )


def vit() -> nn.Module:
    sizes = {"image_size": 8, "patch_size": 4, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 64}
    model: nn.Module = load_torchvision("torchvision.models").VisionTransformer(**sizes, num_classes=10)
    return model


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def from_torchvision(name: str) -> nn.Module:
    model: nn.Module = getattr(load_torchvision("torchvision.models"), name)(num_classes=10)
    return model


IMAGE, TOKENS = torch.zeros(2, 3, 8, 8), torch.zeros(2, 5, dtype=torch.long)
FAMILIES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "cnn": (cnn, IMAGE),
    "resnet": (lambda: from_torchvision("resnet18"), torch.zeros(2, 3, 32, 32)),
    "depthwise": (lambda: from_torchvision("mobilenet_v2"), torch.zeros(2, 3, 32, 32)),
    "vit": (vit, IMAGE),
    "lstm": (Recurrent, TOKENS),
    "mlp": (mlp, torch.zeros(2, 8)),
    "decoder": (Decoder, TOKENS),
}


def saved_bytes(model: nn.Module, inputs: Tensor) -> int:
    """Return the bytes that torch saves of a forward pass, parameters and buffers aside; a tensor counts once."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[tuple[object, ...], Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage().data_ptr()
        directions = sorted(zip(tensor.stride(), tensor.shape, strict=True), reverse=True)
        sizes = tuple(direction for direction in directions if direction[1] > 1)
        # What is contiguous is the same memory in any shape.
        shape: object = tensor.numel() if tensor.is_contiguous() or _is_dense(sizes) else sizes
        if memory not in own:
            saved[memory, tensor.storage_offset(), shape] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(inputs)
    return sum(tensor.numel() * tensor.element_size() for tensor in saved.values())


def _is_dense(sizes: Sequence[tuple[int, int]]) -> bool:
    return all(stride == prod(size for _, size in sizes[at + 1 :]) for at, (stride, _) in enumerate(sizes))


@pytest.mark.parametrize("family", FAMILIES)
def test_bytes_are_those_that_torch_saves(family: str) -> None:
    build, inputs = FAMILIES[family]
    model = build().train()
    workload = trace(model, [inputs])
    assert workload.saved is not None
    with sdpa_kernel(SDPBackend.MATH):  # which the trace has, too
        expected = saved_bytes(model, torch.cat([inputs] * (SAMPLES // 2)))
    assert sum(tensor.bytes(SAMPLES, 32) for tensor in workload.saved) == expected
    assert workload.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_fused_attention_keeps_what_torchs_own_does() -> None:
    model = vit().train()
    workload = trace(model, [IMAGE])
    expected = saved_bytes(model, torch.cat([IMAGE] * (SAMPLES // 2)))  # on a CPU, by its fused kernel
    memory = step_memory(workload, Accelerator(word_bits=32, fused_attention=True), SAMPLES)
    assert sum(tensor.bytes(SAMPLES, 32) for tensor in memory.tensors) == expected


class Shard(nn.Module):
    """A Transformer block, or the part that one of `ways` chips has of it: heads and hidden units are shared out."""

    def __init__(self, ways: int = 1, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, part = heads // ways, width // ways
        self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * part), nn.Linear(part, width)
        self.up, self.down = nn.Linear(width, 4 * part), nn.Linear(4 * part, width)

    def forward(self, inputs: Tensor) -> Tensor:
        parts = self.attention(self.norm(inputs)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = (query @ key.transpose(-1, -2) / 8**0.5).softmax(-1) @ value
        inputs = inputs + self.out(mixed.transpose(1, 2).flatten(2))
        outputs: Tensor = inputs + self.down(F.gelu(self.up(self.second_norm(inputs))))
        return outputs


@pytest.mark.parametrize("ways", [1, 2, 4])
def test_a_chip_of_a_tensor_group_keeps_what_torch_saves_of_its_part(ways: int) -> None:
    inputs = torch.randn(SAMPLES, 6, 32)
    workload = split_tensors(trace(Shard(), (6, 32)), ways).workload
    assert workload.saved is not None
    assert sum(tensor.bytes(SAMPLES, 32) for tensor in workload.saved) == saved_bytes(Shard(ways).train(), inputs)


def kept(workload: Workload, name: str) -> int:
    assert workload.saved is not None
    return sum(tensor.bytes(1, 16) for tensor in workload.saved if tensor.name.startswith(name))


def test_a_layer_of_vit_b_keeps_what_is_usually_counted() -> None:
    """32 s h bytes for inputs of norms, projections, attention and GELU, and 2 a s^2 of softmax; besides, sums of two norms."""
    model = load_torchvision("torchvision.models").vit_b_16()
    tokens, width, heads = 197, 768, 12
    usual = 32 * tokens * width + 2 * heads * tokens**2
    assert kept(trace(model, (3, 224, 224)), "encoder.layers.encoder_layer_5") == usual + 2 * 4 * tokens


def test_one_input_of_three_projections_is_kept_once() -> None:
    workload = trace(DecoderBlock(), (5, 32))
    assert workload.saved is not None
    words = 5 * 32
    attention = [tensor for tensor in workload.saved if tensor.operation in ("mm", "bmm", "_softmax")]
    # The input of q, k and v; q, k, the scores and v; the projection's input; that of the gated unit; that of its last layer.
    assert sorted(tensor.words for tensor in attention) == sorted([words] * 6 + [4 * 5 * 5, 2 * words])


def operations(workload: Workload) -> list[tuple[str, int, int]]:
    return [
        (work.operation, work.input_words, work.output_words)
        for work in workload.layers
        if isinstance(work, Elementwise)
    ]


def test_gradients_are_added_where_an_activation_has_several_uses() -> None:
    words = 5 * 32
    sums = [work[1:] for work in operations(trace(DecoderBlock(), (5, 32))) if work[0] == "gradient_sum"]
    # Nothing below the block's input is trained. Three projections use its first norm, two layers the second, and what is
    # between them has two uses.
    assert sorted(sums) == [(2 * words, words), (2 * words, words), (3 * words, words)]


def test_in_place_operations_and_parts_of_a_tensor_add_nothing() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 12), nn.Linear(4, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            parts = F.relu_(self.first(inputs)).chunk(3, -1)
            return torch.stack([self.second(part) for part in parts])

    assert not [work for work in operations(trace(Packed(), (8,))) if work[0] == "gradient_sum"]


@pytest.mark.parametrize("norm", [nn.LayerNorm, RootMeanSquareNorm])
def test_both_norms_are_one_operation(norm: Callable[[int], nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), norm(8), nn.Linear(8, 8))
    (work,) = (entry for entry in operations(trace(model, (8,))) if entry[0] != "mul")
    assert work[:2] in [("native_layer_norm", 8), ("rms_norm", 8)]


def test_the_product_of_a_gated_unit_keeps_both_factors() -> None:
    assert ("product", 2 * 5 * 64, 5 * 64) in operations(trace(DecoderBlock(), (5, 32)))


def test_a_table_is_updated_unless_a_product_has_its_weights() -> None:
    def parameters(model: Recurrent) -> int:
        return sum(layer.parameters for layer in trace(model, [TOKENS]).layers if isinstance(layer, Elementwise))

    model = Recurrent()
    assert parameters(model) == 50 * 16
    model.table = nn.Embedding(50, 24)
    model.cell = nn.LSTMCell(24, 24)
    model.table.weight = model.head.weight
    assert parameters(model) == 0


def test_frozen_parts_keep_nothing() -> None:
    model = mlp()
    for parameter in model[0].parameters():  # type: ignore[index]
        parameter.requires_grad_(False)
    workload = trace(model, (8,))
    assert workload.saved is not None
    assert [tensor.words for tensor in workload.saved] == [16, 16]
    assert [layer.trainable for layer in workload.layers if isinstance(layer, Linear)] == [False, True, True]


def test_inputs_of_trained_layers_are_told_apart() -> None:
    workload = trace(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Softmax(-1)), (8,))
    assert workload.saved is not None
    kept = [(tensor.operation, tensor.words, tensor.of_site) for tensor in workload.saved]
    assert kept == [("addmm", 8, True), ("relu", 16, True), ("_softmax", 4, False)]
