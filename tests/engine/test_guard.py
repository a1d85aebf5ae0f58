"""The guard against predictions that would wreck the model."""

import math

import pytest
import torch
from torch import nn

from adagp.engine.guard import Guard
from adagp.errors import OptionError
from adagp.layers.sites import survey
from adagp.sources.base import RunningNorms


def test_the_guard_knows_the_usual_norm() -> None:
    sites = survey(nn.Linear(3, 2, bias=False)).sites
    norms = RunningNorms(sites)
    guard = Guard(limit=2.0)
    assert guard.allowed(sites, torch.tensor([1e15]), norms) == [True], "before the first truth only finiteness counts"
    norms.update(sites, torch.tensor([1.0]))
    assert guard.allowed(sites, torch.tensor([1.96]), norms) == [True]
    assert guard.allowed(sites, torch.tensor([2.03]), norms) == [False]
    assert guard.allowed(sites, torch.tensor([math.nan]), norms) == [False]
    assert guard.allowed(sites, torch.tensor([math.inf]), norms) == [False]
    with pytest.raises(
        OptionError, match=r"^the guard's limit is 0; it must be above 0 \(infinity checks finiteness only\)\.$"
    ):
        Guard(limit=0)
