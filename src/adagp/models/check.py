"""Trying out a user's model before training starts."""

import torch
from torch import nn

from adagp.errors import ModelError
from adagp.modes import evaluation_mode
from adagp.references import faults_as


def check_scores(model: nn.Module, name: str, classes: int, image: tuple[int, int, int]) -> None:
    """Refuse a model that does not turn one image into one score a class; its modes are left as they were."""
    device = next((tensor.device for tensor in model.parameters()), torch.get_default_device())
    size = "x".join(str(length) for length in image)
    told = faults_as(ModelError, f"'{name}' cannot take images of {size}")
    with told, evaluation_mode(model), torch.no_grad():  # batch norm must not change its statistics
        scores = model(torch.zeros(1, *image, device=device))
    if not isinstance(scores, torch.Tensor) or scores.ndim != 2:
        given = f"shape {tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise ModelError(f"'{name}' gives {given} for one image of {size}; it must give (1, {classes}).")
    if scores.shape[1] != classes:
        raise ModelError(f"'{name}' gives scores for {scores.shape[1]} classes; the data has {classes}.")
