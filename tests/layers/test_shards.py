"""Spread weights: which part is held here, against what DTensor itself says."""

from pathlib import Path

import pytest
import torch
from tests.program.distributed.own_loops import in_processes, is_same_everywhere
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from adagp.layers.shards import add_up_parts, blank, is_spread, laid_like, local, norms, part_of, spread_out, whole
from adagp.layers.sites import survey


def layers() -> nn.Module:
    """Weights of which four processes hold unequal parts, or none; the last one has its outputs on the second axis."""
    return nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(4, 9), nn.ConvTranspose1d(9, 7, 2))


def test_ordinary_tensors_are_left_alone() -> None:
    weight = torch.randn(4, 3)
    assert not is_spread(weight)
    assert all(function(weight) is weight for function in (local, whole, blank))
    assert laid_like(weight, weight) is weight
    assert torch.allclose(norms([weight]), weight.norm()[None])
    site = survey(layers()).sites[3]
    assert (site.held, site.share) == (slice(0, 7), slice(0, 7))
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
        part = part_of(weight)
        assert isinstance(weight, DTensor)
        assert torch.equal(
            local(weight),
            other.weight.detach().narrow(part.axis, part.rows.start, len(local(weight).transpose(0, part.axis))),
        )
        assert torch.equal(whole(weight), other.weight)
        assert torch.equal(whole(laid_like(other.weight.detach(), weight)), other.weight)
        assert torch.equal(whole(spread_out(local(weight), weight)), other.weight)
        assert torch.equal(site.share_of(weight.detach()), other.outputs_first(other.weight)[site.share])
        assert site.holds_rows == (site.name in ("0", "1"))
        assert site.like.shape == other.outputs_first(other.weight)[site.held].shape
        counts = torch.tensor([site.share.stop - site.share.start])
        add_up_parts([counts], weight)
        assert counts.item() == site.rows, "every row is in one share"
        shares.append((part.rows.start, part.rows.stop))
    found = norms([site.weight.detach() for site in survey(model).sites])
    torch.testing.assert_close(found, torch.stack([site.weight.detach().norm() for site in survey(alone).sites]))
    assert is_same_everywhere(found.tolist())
    return shares


@pytest.mark.medium
@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_parts_are_those_of_dtensor(shape: tuple[int, ...], tmp_path: Path) -> None:
    shares = in_processes(tmp_path, 4, look_at_parts, shape)
    assert [one[1] for one in shares] == (
        [(0, 1), (1, 2), (2, 3), (3, 3)] if shape == (4,) else [(0, 2), (2, 3), (0, 2), (2, 3)]
    )
