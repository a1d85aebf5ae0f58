"""Trying out models that are not of our own making before training starts."""

import torch
from torch import nn

from adagp.core.references import faults_as
from adagp.errors import ModelError
from adagp.layers.eval_mode import evaluation_mode


def check_scores(model: nn.Module, name: str, classes: int, image: tuple[int, ...]) -> None:
    """Refuse a model that does not turn one image into one score per class; its modes are left as they were."""
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


def check_next_tokens(model: nn.Module, name: str, vocabulary: int, length: int) -> None:
    """Refuse a model that does not score the next token at each position, or that looks ahead at the tokens to come."""
    device = next((tensor.device for tensor in model.parameters()), torch.get_default_device())
    tokens = torch.zeros(2, length, dtype=torch.long, device=device)
    tokens[1, -1] = 1  # the samples differ in their last token alone
    try:
        with evaluation_mode(model), torch.no_grad():
            scores = model(tokens)
    except Exception as fault:  # the user's code may fail in any way
        raise ModelError(f"'{name}' cannot take sequences of {length}: {type(fault).__name__}: {fault}") from fault
    expected = (2, length, vocabulary)
    given = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
    if given != expected:
        raise ModelError(f"'{name}' answers two sequences of {length} with {given}; it must give {expected}.")
    if device.type != "meta" and not torch.allclose(scores[0, :-1], scores[1, :-1], rtol=1e-4, atol=1e-5):
        raise ModelError(f"'{name}' looks ahead: its scores before the last token depend on it.")
