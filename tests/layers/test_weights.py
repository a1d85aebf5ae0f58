"""Weights in memory: channels-last rows, norms, shards."""

import math
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.marks import slow
from tests.program.distributed.own_loops import in_processes, is_same_everywhere
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from adagp.layers.sites import survey
from adagp.layers.weights import (
    all_reduce_shards,
    as_rows,
    as_weight,
    blank,
    from_memory_order,
    from_shard,
    gradient_norms,
    is_sharded,
    kernel_taps,
    local,
    norms,
    shard_of,
    sharded_like,
    swapped_channels,
    to_memory_order,
    whole,
)

SIZES = st.integers(1, 4)


def laid(weight: Tensor, last: bool) -> Tensor:
    """Return the weight in the channels-last format or in the logical order."""
    forms = {4: torch.channels_last, 5: torch.channels_last_3d}
    form = forms.get(weight.dim(), torch.contiguous_format) if last else torch.contiguous_format
    return weight.contiguous(memory_format=form)


@given(SIZES, SIZES, st.lists(SIZES, max_size=3), st.booleans())
def test_rows_are_the_memory_and_lead_back_to_the_weight(rows: int, channels: int, taps: list[int], last: bool) -> None:
    weight = laid(torch.randn(rows, channels, *taps), last)
    count = kernel_taps(weight)
    flat = as_rows(weight, count)
    assert flat.shape == (rows, weight[0].numel())
    assert flat.data_ptr() == weight.data_ptr()
    assert flat.is_contiguous()
    back = as_weight(flat, weight, count)
    assert torch.equal(back, weight)
    assert back.data_ptr() == weight.data_ptr()


@given(SIZES, st.integers(2, 4), st.integers(2, 3))
def test_orders_are_inverse_and_those_of_the_memory(rows: int, channels: int, side: int) -> None:
    weight = laid(torch.randn(rows, channels, side, side), last=True)
    assert kernel_taps(weight) == side * side
    logical = torch.arange(weight[0].numel())[:, None]
    memory = to_memory_order(logical, side * side)
    for row in range(rows):
        numbers = [weight[row].flatten()[place].item() for place in memory[:, 0].tolist()]
        assert numbers == as_rows(weight, side * side)[row].tolist()
    assert torch.equal(from_memory_order(memory, side * side), logical)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (3, 4, 2, 2)])
def test_what_lies_otherwise_is_copied_in_logical_order(shape: tuple[int, ...]) -> None:
    weight = torch.randn(*reversed(shape)).permute(*reversed(range(len(shape))))
    assert kernel_taps(weight) == 1
    assert torch.equal(as_rows(weight, 1), weight.contiguous().view(shape[0], -1))


@given(SIZES, SIZES, SIZES, st.lists(SIZES, max_size=3), st.booleans())
def test_exchanging_equals_loops_and_is_its_own_inverse(
    groups: int, inputs: int, outputs: int, taps: list[int], last: bool
) -> None:
    """The weight of an input and an output of the same group, wherever it lies."""
    weight = laid(torch.randn(groups * inputs, outputs, *taps), last)
    found = swapped_channels(weight, groups)
    assert found.shape == (groups * outputs, inputs, *taps)
    for group, one, other in product(range(groups), range(inputs), range(outputs)):
        assert torch.equal(found[group * outputs + other, one], weight[group * inputs + one, other])
    assert torch.equal(swapped_channels(found, groups), weight)


@given(SIZES, SIZES, st.lists(SIZES, max_size=3), st.booleans(), st.booleans())
def test_norms_are_euclidean_in_any_order(
    rows: int, channels: int, taps: list[int], last: bool, transposed: bool
) -> None:
    tensor = laid(torch.randn(rows, channels, *taps), last)
    one = tensor.transpose(0, 1) if transposed else tensor
    found = gradient_norms([one, 2 * one])
    for norm, factor in zip(found, (1, 2), strict=True):
        assert norm.item() == pytest.approx(factor * math.sqrt(sum(number**2 for number in one.flatten().tolist())))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_norms_are_taken_in_single_precision(dtype: torch.dtype) -> None:
    found = gradient_norms([torch.tensor([1.0, -1.0, 1.0], dtype=dtype)])
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(math.sqrt(3), rel=1e-6)


def layers() -> nn.Module:
    """Weights of which four processes hold unequal parts, or none; the last one has its outputs on the second axis."""
    return nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(4, 9), nn.ConvTranspose1d(9, 7, 2))


def test_ordinary_tensors_are_left_alone() -> None:
    weight = torch.randn(4, 3)
    assert not is_sharded(weight)
    assert all(function(weight) is weight for function in (local, whole, blank))
    assert sharded_like(weight, weight) is weight
    assert torch.allclose(norms([weight]), weight.norm()[None])
    site = survey(layers()).sites[3]
    assert (site.local_rows, site.share) == (slice(0, 7), slice(0, 7))
    assert torch.equal(site.share_of(site.weight), site.weight.transpose(0, 1))


def look_at_parts(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    torch.manual_seed(0)
    alone, model = layers(), layers()
    model.load_state_dict(alone.state_dict())
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "parts")[-len(shape) :])
    fully_shard(model, mesh=mesh, shard_placement_fn=lambda one: Shard(1) if one.shape == (9, 4) else None)
    shares = []
    for site, other in zip(survey(model).sites, survey(alone).sites, strict=True):
        weight = site.weight
        part = shard_of(weight)
        assert isinstance(weight, DTensor)
        assert torch.equal(
            local(weight),
            other.weight.detach().narrow(part.axis, part.rows.start, len(local(weight).transpose(0, part.axis))),
        )
        assert torch.equal(whole(weight), other.weight)
        assert torch.equal(whole(sharded_like(other.weight.detach(), weight)), other.weight)
        assert torch.equal(whole(from_shard(local(weight), weight)), other.weight)
        assert torch.equal(site.share_of(weight.detach()), other.outputs_first(other.weight)[site.share])
        assert site.has_whole_rows == (site.name in ("0", "1"))
        assert site.like.shape == other.outputs_first(other.weight)[site.local_rows].shape
        counts = torch.tensor([site.share.stop - site.share.start])
        all_reduce_shards([counts], weight)
        assert counts.item() == site.rows, "every row is in one share"
        shares.append((part.rows.start, part.rows.stop))
    found = norms([site.weight.detach() for site in survey(model).sites])
    torch.testing.assert_close(found, torch.stack([site.weight.detach().norm() for site in survey(alone).sites]))
    assert is_same_everywhere(found.tolist())
    return shares


@pytest.mark.medium
@pytest.mark.parametrize("shape", [slow((4,)), (2, 2)])
def test_parts_are_those_of_dtensor(shape: tuple[int, ...], tmp_path: Path) -> None:
    shares = in_processes(tmp_path, 4, look_at_parts, shape)
    assert [one[1] for one in shares] == (
        [(0, 1), (1, 2), (2, 3), (3, 3)] if shape == (4,) else [(0, 2), (2, 3), (0, 2), (2, 3)]
    )
