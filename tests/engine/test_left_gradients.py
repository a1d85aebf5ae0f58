import pytest
import torch
from torch import nn

from adagp.engine.left_gradients import LeftGradients
from adagp.errors import UsageError


def weights_and_left() -> tuple[list[nn.Parameter], LeftGradients]:
    weights = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    return weights, LeftGradients([torch.optim.SGD(weights, lr=0.1)])


def test_gradients_that_were_kept_or_dropped_are_no_others() -> None:
    weights, left = weights_and_left()
    left.refuse_others()
    weights[0].grad = torch.zeros(2)
    left.keep()
    left.refuse_others()
    weights[0].grad = None
    left.refuse_others()


@pytest.mark.parametrize("sparse", [False, True])
def test_a_gradient_that_came_later_is_refused(sparse: bool) -> None:
    weights, left = weights_and_left()
    weights[0].grad = torch.zeros(2)
    left.keep()
    weights[1].grad = torch.zeros(3).to_sparse() if sparse else torch.zeros(3)
    with pytest.raises(UsageError, match="parameters still have gradients from before this batch"):
        left.refuse_others()


def test_a_gradient_that_was_added_to_is_refused() -> None:
    weights, left = weights_and_left()
    weights[0].grad = torch.zeros(2)
    left.keep()
    weights[0].grad += 1
    with pytest.raises(UsageError, match="parameters still have gradients from before this batch"):
        left.refuse_others()
