"""Multiply-accumulates by hand."""

import torch
from torch import nn

from adagp.models.example import ModelSize, measure


def test_by_hand() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),  # 8 x 5 x 5 outputs of 27 products
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),  # 8 x 5 x 5 outputs of 9 products
        nn.Flatten(),
        nn.Linear(200, 4),  # 4 outputs of 200 products
    )
    expected = ModelSize(8 * 27 + 8 + 8 * 9 + 200 * 4 + 4, 200 * 27 + 200 * 9 + 800)
    assert measure(model, torch.zeros(1, 3, 10, 10)) == expected
    assert measure(model, torch.zeros(1, 3, 10, 10)) == expected  # no hook is left behind
    assert model.training


def test_a_layer_used_twice_counts_twice() -> None:
    layer = nn.Linear(4, 4, bias=False)
    assert measure(nn.Sequential(layer, layer), torch.zeros(1, 4)) == ModelSize(16, 32)
