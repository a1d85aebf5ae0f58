from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from torch import nn

from adagp.layers.eval_mode import evaluation_mode, training_mode

Mode = Callable[[nn.Module], AbstractContextManager[None]]


def mixed() -> nn.Module:
    """Return a model in training mode, one layer of which is frozen in evaluation mode."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
    model[1].eval()
    return model


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


@pytest.mark.parametrize(("context", "inside"), [(evaluation_mode, False), (training_mode, True)])
def test_each_module_gets_its_own_mode_back_even_after_an_error(context: Mode, inside: bool) -> None:
    model = mixed()
    with context(model):
        assert modes(model) == [inside] * 4
    assert modes(model) == [True, True, False, True]
    with pytest.raises(ZeroDivisionError), context(model):
        raise ZeroDivisionError
    assert modes(model) == [True, True, False, True]
