"""Switch models to training or evaluation mode temporarily."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import nn


def evaluation_mode(model: nn.Module) -> AbstractContextManager[None]:
    """Put all modules of `model` into evaluation mode; each has its own mode again at the end, also after an error."""
    return _mode(model, training=False)


def training_mode(model: nn.Module) -> AbstractContextManager[None]:
    """Put all modules of `model` into training mode; each has its own mode again at the end, also after an error."""
    return _mode(model, training=True)


@contextmanager
def _mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    try:
        model.train(training)
        yield
    finally:
        for module, before in modes.items():
            module.training = before
