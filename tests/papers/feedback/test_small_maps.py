"""Patches written out against autograd, and where they are used."""

import pytest
import torch
from torch import nn

from adagp.layers.sites import survey
from adagp.papers.feedback.small_maps import gradient_of_patches, is_small


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 5, 3, padding=1),
        nn.Conv2d(3, 5, (3, 2), stride=(1, 2), padding=(2, 0), dilation=(2, 1)),
        nn.Conv2d(3, 5, 1, stride=2),
        nn.Conv2d(3, 5, 3, padding="same"),
        nn.Conv2d(3, 5, 3, padding=1, padding_mode="reflect"),
    ],
)
def test_equals_autograd(layer: nn.Conv2d) -> None:
    (site,) = survey(layer).sites
    inputs = torch.randn(4, 3, 7, 8).contiguous(memory_format=torch.channels_last)
    output = layer(inputs)
    gradient = torch.randn_like(output)
    (expected,) = torch.autograd.grad(output, layer.weight, gradient)
    assert is_small(site, inputs, output.shape)
    torch.testing.assert_close(gradient_of_patches(site, inputs, gradient), expected, rtol=1e-4, atol=1e-4)


def test_other_layers_and_large_maps_are_left_to_the_convolution() -> None:
    for layer, inputs in (
        (nn.Conv2d(2, 4, 3, groups=2), torch.randn(1, 2, 5, 5)),
        (nn.ConvTranspose2d(2, 4, 3), torch.randn(1, 2, 5, 5)),
        (nn.Conv1d(2, 4, 3), torch.randn(1, 2, 5)),
        (nn.Conv2d(2, 4, 3), torch.randn(1, 2, 11, 11)),
        (nn.Linear(2, 4), torch.randn(3, 2)),
    ):
        (site,) = survey(layer).sites
        assert not is_small(site, inputs, layer(inputs).shape)
