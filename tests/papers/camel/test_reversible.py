"""Reversible chains against the same blocks under plain autograd: gradients, recomputed inputs, memory, faults."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adagp.errors import ModelError, OptionError
from adagp.papers.camel.duplex import TappedInput, ZeroConv2d, convolutions
from adagp.papers.camel.reversible import ReversibleBlock, ReversibleChain
from adagp.papers.camel.streams import BlockStream, FixedStream, ReadFaults


def chain(blocks: int = 3, channels: int = 4, gain: float = 0.5, **options: Any) -> ReversibleChain:
    torch.manual_seed(0)
    parts = [ReversibleBlock(TappedInput(channels), convolutions(channels)) for _ in range(blocks)]
    found = ReversibleChain(parts, **options)
    for layer in found.modules():
        if isinstance(layer, ZeroConv2d):
            nn.init.kaiming_normal_(layer.weight)
            layer.weight.data *= gain
    return found


def inputs(count: int = 2, channels: int = 4, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, channels, 5, 5, generator=generator, dtype=dtype).requires_grad_() for _ in range(count)]


def gradients(model: ReversibleChain, given: list[Tensor]) -> list[Tensor]:
    first, second = model(*given)
    loss = (first.sin() * torch.arange(5)).sum() + (second**2).sum()
    return list(torch.autograd.grad(loss, [*given, *model.parameters()]))


@pytest.mark.parametrize("taps", [None, [0, 1, 1], [1, -1, 0]])
@pytest.mark.parametrize("training", [True, False])
def test_gradients_are_those_of_plain_autograd(taps: list[int] | None, training: bool) -> None:
    found, expected = (
        gradients(
            chain(block_taps=taps, recompute=recompute).double().train(training),
            inputs(2 + 2 * bool(taps), dtype=torch.float64),
        )
        for recompute in (True, False)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("stream", ["fixed", "bfp"])
def test_rounded_streams_have_the_gradients_of_their_stored_control(stream: str) -> None:
    """To first order: the control rounds the same sums; what is recomputed in block floating point is off by roundings."""
    found, expected = (
        gradients(chain(stream=stream, recompute=recompute, gain=0.1), inputs()) for recompute in (True, False)
    )
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).norm() / other.norm()) < (1e-5 if stream == "fixed" else 0.5)


def recomputed(model: ReversibleChain, given: list[Tensor]) -> float:
    """Return the relative error of the recomputed inputs, as the chain measures it."""
    gradients(model, given)
    return model.read_figures()["reconstruction_error"]


def test_recomputed_inputs() -> None:
    """Exact in double precision and, whatever the gain and depth, bit by bit on the fixed grid."""
    assert recomputed(chain(6, gain=0.5).double(), inputs(dtype=torch.float64)) < 1e-10
    assert 1e-9 < recomputed(chain(6, gain=0.5), inputs()) < 1e-3
    assert recomputed(chain(24, gain=1.0, stream="fixed"), inputs()) == 0.0
    assert recomputed(chain(6, gain=0.1, stream="bfp"), inputs()) > 1e-3


def test_a_frozen_weight_gets_no_gradient_and_no_tap_is_asked_for_one() -> None:
    model = chain(block_taps=[0, 0, 0])
    frozen = model.block(1).second[0].weight  # type: ignore[index]
    frozen.requires_grad_(False)
    first, second, tap = inputs(3)
    sum(one.sum() for one in model(first, second, tap.detach())).backward()
    assert frozen.grad is None
    assert tap.grad is None
    assert sum(one.grad is not None for one in model.parameters()) == 23


def saved_bytes(model: ReversibleChain, given: list[Tensor]) -> int:
    kept: dict[int, int] = {}
    weights = {one.untyped_storage().data_ptr() for one in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(*given)
    return sum(kept.values())


def test_memory_does_not_grow_with_depth() -> None:
    given = inputs()
    assert saved_bytes(chain(24), given) == saved_bytes(chain(6), given) == 2 * given[0].nbytes
    assert saved_bytes(chain(24, recompute=False), given) > 3.9 * saved_bytes(chain(6, recompute=False), given)


def test_nothing_is_kept_where_nothing_needs_a_gradient() -> None:
    model = chain().requires_grad_(False)
    first, second = model(*(one.detach() for one in inputs()))
    assert not first.requires_grad
    assert not second.requires_grad
    assert model.read_figures() == {}


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_what_is_not_finite_comes_through_a_fixed_stream(bad: float) -> None:
    model = chain(stream="fixed")
    with torch.no_grad():
        model.block(1).first.layers[0].weight[0, 0, 0, 0] = bad  # type: ignore[index, union-attr]
    assert all(one.isnan().all() for one in model(*inputs()))


@pytest.mark.parametrize("layer", [nn.Dropout(0.1), nn.BatchNorm2d(4), nn.Dropout2d()])
def test_layers_that_do_not_repeat_themselves_are_rejected(layer: nn.Module) -> None:
    kind = type(layer).__name__
    with pytest.raises(ModelError) as raised:
        ReversibleBlock(nn.Sequential(nn.Conv2d(4, 4, 1), layer), nn.Identity())
    message = (
        f"layer 'first.1' ({kind}) cannot be part of a reversible block: recomputing it would not give the same result."
    )
    assert str(raised.value) == message


def test_an_unknown_stream() -> None:
    with pytest.raises(OptionError, match=r"^unknown stream 'int'\. Choose from: bfp, fixed, float\.$"):
        chain(stream="int")


def test_the_fixed_grid_adds_exactly_and_the_block_format_holds_its_own_numbers() -> None:
    values = torch.randn(3, 18, 2, 2)
    fixed, block = FixedStream(), BlockStream()
    stream = fixed.enter(values)
    assert torch.equal(fixed.subtract(fixed.add(stream, 7 * values), 7 * values), stream)
    assert (fixed.read(stream) - values).abs().max() <= 2**-17
    rounded = block.enter(values)
    assert torch.equal(block.enter(rounded), rounded)
    assert pytest.approx(6.44, abs=0.01) == 58 / 9  # bits a value: 4 + 9 * (5 + 1) in a group


@pytest.mark.parametrize("kind", ["values", "bits"])
def test_faults_are_of_the_exact_share_and_seeded(kind: str) -> None:
    values = torch.randn(10, 100)
    faults = ReadFaults(0.02, kind)
    torch.manual_seed(3)
    seen = faults.read(values)
    assert int((seen != values).sum()) == 20
    assert not torch.equal(seen, faults.read(values))
    torch.manual_seed(3)
    assert torch.equal(seen, faults.read(values))
    assert ReadFaults(0.0001, kind).read(values) is values


@pytest.mark.parametrize(("share", "kind"), [(-0.1, "values"), (1.1, "values"), (0.1, "words")])
def test_wrong_faults(share: float, kind: str) -> None:
    with pytest.raises(OptionError):
        ReadFaults(share, kind)


def test_faults_disturb_training_and_not_evaluation() -> None:
    given = inputs()
    faulty, plain = (chain(faults=ReadFaults(share)) for share in (0.05, 0.0))
    assert not torch.equal(faulty(*given)[0], plain(*given)[0])
    assert torch.equal(faulty.eval()(*given)[0], plain.eval()(*given)[0])
    assert recomputed(chain(stream="fixed", faults=ReadFaults(0.05)), given) > 0  # other reads are wrong the next time
