"""Splits: Megatron's counts by formula, chips by number, and what cannot be split."""

import pytest
from tests.pipe.chips.transformers import gpt2, llama

from adagp.errors import OptionError
from adagp.hw import Accelerator, Attention, Convolution, Elementwise, Linear, Workload
from adagp.pipe.chips import Parallelism, parse_parallelism, split_tensors, weight_memory


@pytest.mark.parametrize("workload", [gpt2(), llama()], ids=lambda workload: workload.name)
@pytest.mark.parametrize("ways", [2])
def test_two_sums_each_way_in_a_block(workload: Workload, ways: int) -> None:
    """Each of batch * sequence * hidden; and one more for the embedding, and one for the last layer's inputs."""
    blocks, hidden = 2, 8 * 32
    split = split_tensors(workload, ways)
    assert sum(split.forward) == (2 * blocks + 1) * hidden
    assert sum(split.backward) == (2 * blocks + 1) * hidden
    assert [words for words in split.forward if words] == [hidden] * (2 * blocks + 1)
    assert split.workload.weights == pytest.approx(workload.weights / ways, rel=0.01), "the vocabulary is padded"
    assert split.workload.macs == pytest.approx(workload.macs / ways, rel=0.01)


def test_parts_of_gpt2() -> None:
    split = split_tensors(gpt2(layers=1), 2).workload
    shapes = {
        layer.name: (layer.in_features, layer.out_features) for layer in split.array_layers if isinstance(layer, Linear)
    }
    assert shapes == {
        "h.0.attn.c_attn": (32, 48),
        "h.0.attn.c_proj": (16, 32),
        "h.0.mlp.c_fc": (32, 64),
        "h.0.mlp.c_proj": (64, 32),
        "lm_head": (32, 51),
    }
    assert [layer.count for layer in split.array_layers if isinstance(layer, Attention)] == [2, 2]
    words = {layer.operation: layer.output_words for layer in split.layers if isinstance(layer, Elementwise)}
    assert words == {
        "embedding": 256,
        "native_layer_norm": 256,
        "_safe_softmax": 128,
        "add": 256,
        "gelu": 512,
    }, "what lies between two split layers is split, the rest is on every chip"


def test_one_chip_has_all() -> None:
    split = split_tensors(gpt2(), 1)
    assert split.workload == gpt2()
    assert not any((*split.forward, *split.backward))


def test_chips_by_number() -> None:
    parallel = parse_parallelism("data=2,tensor=2,pipeline=2", 8)
    assert parallel.tensor_groups == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert parallel.data_groups == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert parallel.next_stages == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert parallel.everyone == (tuple(range(8)),)
    assert str(parse_parallelism("pipeline=4, data=2,zero=1", 8)) == "data=2,tensor=1,pipeline=4,zero=1"
    assert Parallelism(data=4, zero=2).shards == 4
    assert Parallelism(data=4).shards == 1


FORM = (
    "write for example data=8,tensor=2,pipeline=4, and zero=1, 2 or 3 to shard optimizer state, gradients and weights"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data=4", "--parallel data=4,tensor=1,pipeline=1 takes 4 x 1 x 1 = 4 chips, but --chips is 8."),
        ("data", f"cannot read 'data' in --parallel 'data'; {FORM}."),
        ("experts=8", f"cannot read 'experts=8' in --parallel 'experts=8'; {FORM}."),
        ("data=2,data=4", f"cannot read 'data=4' in --parallel 'data=2,data=4'; {FORM}."),
        ("data=0", "--parallel: data is 0; it must be 1 to 8."),
        ("data=16", "--parallel: data is 16; it must be 1 to 8."),
        ("data=8,zero=4", "--parallel: zero is 4; it must be 0 to 3."),
        ("tensor=8,zero=1", "zero=1 shards over copies of the model, but data=1 has only one."),
    ],
)
def test_wrong_splits(text: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_parallelism(text, 8)
    assert str(caught.value) == words


def test_what_cannot_be_split() -> None:
    vgg = Workload("vgg", (Convolution("conv", 3, 8, (3, 3), (8, 8), (8, 8)), Linear("fc", 1, 512, 10)))
    odd = Workload("odd", gpt2(layers=1).array_layers[:3])
    cases = (
        (vgg, 2, "tensor=2 splits the linear layers and the attention of Transformers; 'vgg' has no attention."),
        (gpt2(), 8, "'h.0.attn' has 4 heads, which do not divide by tensor=8."),
        (llama(), 4, "'layers.0.v_proj' has the outputs of 2 heads, which do not divide by tensor=4."),
        (odd, 2, "no linear layer takes the results of attention 'h.0.attn', so tensor=2 cannot split it."),
    )
    for workload, ways, words in cases:
        with pytest.raises(OptionError) as caught:
            split_tensors(workload, ways)
        assert str(caught.value) == words


ADAM = Accelerator(word_bits=16, optimizer_words=2)


@pytest.mark.parametrize("copies", [1, 4, 64])
def test_zero_by_formula(copies: int) -> None:
    """Rajbhandari et al. 2020: 2 + 2 + 12 bytes a weight, of which each stage shards more."""
    weights = 7_500_000
    expected = [16, 4 + 12 / copies, 2 + 14 / copies, 16 / copies]
    for zero, bytes_each in enumerate(expected):
        assert weight_memory(weights, ADAM, copies, zero).total == pytest.approx(weights * bytes_each)


def test_widths_of_the_accelerator_count() -> None:
    memory = weight_memory(100, Accelerator(word_bits=16, optimizer_words=2, state_bits=16, master_bits=24))
    assert (memory.weights, memory.gradients, memory.optimizer) == (200, 200, 100 * (2 * 2 + 3))


def test_words_of_32_bits_need_no_copy() -> None:
    memory = weight_memory(100, Accelerator(word_bits=32, optimizer_words=1))
    assert (memory.weights, memory.gradients, memory.optimizer) == (400, 400, 400)
