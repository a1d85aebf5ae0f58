import torch
from torch import Tensor

from adagp.sources.support.taps import on_gradient


def test_the_gradient_is_the_one_before_changes_in_place() -> None:
    for needs in (True, False):
        seen: list[Tensor] = []
        start = torch.tensor([-1.0, 2.0], requires_grad=needs)
        output = on_gradient(start * 3, seen.append)
        assert torch.equal(output, torch.tensor([-3.0, 6.0]))
        (output.relu_() * 5).sum().backward()
        assert [one.tolist() for one in seen] == [[0.0, 5.0]]


def test_without_autograd_nothing_happens() -> None:
    output = torch.ones(2)
    with torch.no_grad():
        assert on_gradient(output, lambda gradient: None) is output
    assert not output.requires_grad
