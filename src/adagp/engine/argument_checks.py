"""What `attach` checks before it touches the model: the types of its arguments, and what cannot go together."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from adagp.core.precision import Precision, parse_precision
from adagp.engine.weight_update import WeightUpdateHook
from adagp.errors import OptionError
from adagp.schedules import Schedule
from adagp.sources.base import Source
from adagp.sources.split import SplitSource


def check_model(model: object, optimizer: object) -> None:
    """Raise if `model` is no module; if the two are swapped, the error says so."""
    if isinstance(model, nn.Module):
        return
    swapped = isinstance(model, torch.optim.Optimizer) and isinstance(optimizer, nn.Module)
    hint = " The arguments are swapped: the model comes first, then the optimizer." if swapped else ""
    raise OptionError(f"model is of type {type(model).__name__}; it must be a torch.nn.Module.{hint}")


def read_optimizers(optimizer: object) -> tuple[torch.optim.Optimizer, ...]:
    """Return the optimizers of a run; raise if there is none, or something else."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return (optimizer,)
    members = tuple(optimizer) if isinstance(optimizer, Iterable) else (optimizer,)
    wrong = [member for member in members if not isinstance(member, torch.optim.Optimizer)]
    if not members or wrong:
        received = f"has a {type(wrong[0]).__name__}" if wrong and isinstance(optimizer, Iterable) else "has none"
        received = received if isinstance(optimizer, Iterable) else f"is of type {type(optimizer).__name__}"
        raise OptionError(
            f"optimizer {received}; it must be a torch.optim.Optimizer or a list of these, for example "
            "torch.optim.SGD(model.parameters(), lr=0.1)."
        )
    return members


def check_patterns(exclude: object) -> None:
    """Raise if `exclude` is no list of texts: one text would be taken for a list of letters."""
    if isinstance(exclude, str):
        raise OptionError(f"exclude is '{exclude}'; it must be a list of name patterns, for example ['{exclude}'].")
    if not isinstance(exclude, Iterable) or not all(isinstance(pattern, str) for pattern in exclude):
        raise OptionError(f"exclude is {exclude!r}; it must be a list of name patterns, for example ['head'].")


def check_selector(output: object) -> None:
    """Raise if `output` neither names nor finds anything."""
    if output is not None and not isinstance(output, str) and not callable(output):
        raise OptionError(f"output is {output!r}; it must be a name, or a function of what the model returns.")


def check_sources_given(sources: Mapping[str, Any]) -> None:
    """Raise if `sources` holds something that is no source."""
    for name, source in sources.items():
        if not isinstance(source, Source):
            raise OptionError(
                f"sources['{name}'] is {source!r}; it must be an object of a class derived from adagp.Source."
            )


def read_precision(precision: Precision | str | None, *, compiled: bool, several: bool) -> Precision | None:
    """Return the precision of a run, None for single precision; raise where it cannot be used."""
    chosen = parse_precision(precision) if isinstance(precision, str) else precision
    if chosen is None or chosen.native:
        return None
    if compiled:
        raise OptionError(f"precision '{chosen.text}' replaces products while the model runs; it cannot be compiled.")
    if several:
        raise OptionError(
            f"precision '{chosen.text}' is for runs in one process: exponents and widths depend on the whole batch, of which "
            "each process has a share."
        )
    return chosen


def read_weight_hooks(hooks: WeightUpdateHook | Sequence[WeightUpdateHook]) -> tuple[WeightUpdateHook, ...]:
    """Return one hook or several as a tuple, in the order in which they are called."""
    return (hooks,) if isinstance(hooks, WeightUpdateHook) else tuple(hooks)


def check_weight_hooks(sharded: bool, hooks: Sequence[WeightUpdateHook]) -> None:
    """Raise if there are hooks on weights that are sharded over processes."""
    if sharded and hooks:
        raise OptionError(
            f"{type(hooks[0]).__name__} ranks the weights of the whole model together; here each process holds a part of them "
            "(fully_shard). Use DDP, or leave out weight_hooks."
        )


def check_sources(schedule: Schedule, sources: Mapping[str, Source]) -> None:
    """Raise on sources that cannot do what the schedule needs."""
    for name, source in sources.items():
        if source.skips and schedule.partial:
            raise OptionError(f"source '{name}' leaves out whole batches: it cannot serve some sites of a batch only.")
        if isinstance(source, SplitSource) and schedule.partial:
            raise OptionError(f"source '{name}' splits whole batches: it cannot serve some sites of a batch only.")
        if source.needs_backward and schedule.stops:
            raise OptionError(
                f"source '{name}' needs the gradient at the output of its sites: it cannot serve sites below the place "
                "where the backward pass stops."
            )
        if schedule.adapts and not source.learns:
            raise OptionError(
                f"an adaptive schedule measures predictions; source '{name}' learns and predicts nothing."
            )
