"""Workloads of GPT-2's and Llama's shape, written out by hand as the tracer has them."""

from adagp.hw import Attention, Elementwise, Linear, Workload
from adagp.hw.workload import Layer


def gpt2(layers: int = 2, width: int = 32, heads: int = 4, length: int = 8, vocabulary: int = 101) -> Workload:
    """Fused projections to queries, keys and values; a wide layer and a narrow one."""
    words = length * width
    chain: list[Layer] = [Elementwise("wte", "embedding", length, words)]
    for number in range(layers):
        name, size = f"h.{number}", width // heads
        chain += [
            Elementwise(f"{name}.ln_1", "native_layer_norm", words, words),
            Linear(f"{name}.attn.c_attn", length, width, 3 * width),
            Attention(f"{name}.attn", heads, length, size, length),
            Elementwise(f"{name}.attn", "_safe_softmax", heads * length**2, heads * length**2),
            Attention(f"{name}.attn", heads, length, length, size),
            Linear(f"{name}.attn.c_proj", length, width, width),
            Elementwise(name, "add", 2 * words, words),
            Linear(f"{name}.mlp.c_fc", length, width, 4 * width),
            Elementwise(f"{name}.mlp.act", "gelu", 4 * words, 4 * words),
            Linear(f"{name}.mlp.c_proj", length, 4 * width, width),
            Elementwise(name, "add", 2 * words, words),
        ]
    chain.append(Linear("lm_head", length, width, vocabulary))
    return Workload("gpt2", tuple(chain))


def llama(layers: int = 2, width: int = 32, heads: int = 4, key_heads: int = 2, length: int = 8) -> Workload:
    """Separate projections, fewer heads of keys and values, and a gated pair of wide layers."""
    size, inner = width // heads, 88
    chain: list[Layer] = [Elementwise("embed_tokens", "embedding", length, length * width)]
    for number in range(layers):
        name = f"layers.{number}"
        chain += [
            Linear(f"{name}.q_proj", length, width, width),
            Linear(f"{name}.k_proj", length, width, key_heads * size),
            Linear(f"{name}.v_proj", length, width, key_heads * size),
            Attention(f"{name}.self_attn", heads, length, size, length),
            Attention(f"{name}.self_attn", heads, length, length, size),
            Linear(f"{name}.o_proj", length, width, width),
            Linear(f"{name}.gate_proj", length, width, inner),
            Linear(f"{name}.up_proj", length, width, inner),
            Elementwise(f"{name}.mlp", "mul", 2 * length * inner, length * inner),
            Linear(f"{name}.down_proj", length, inner, width),
        ]
    chain.append(Linear("lm_head", length, width, 100))
    return Workload("llama", tuple(chain))
