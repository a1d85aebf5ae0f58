"""Checks the arguments of `attach`, before it touches the model, and derives method, options, schedule and sources from them.

The method decides where gradients come from: a schedule or a source that contradicts it is rejected.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from adagp.core.method_options import MethodName, MethodOptions, NamedMethod
from adagp.core.methods import DEFAULT_METHOD, Method, find_method
from adagp.core.plan import RunLength
from adagp.core.precision import Precision, parse_precision
from adagp.engine.extensions import WeightUpdateHook
from adagp.errors import OptionError, unknown_name
from adagp.schedules import Schedule, WarmUp, parse_schedule
from adagp.schedules.base import check_method_schedule
from adagp.schedules.ladder import scaled_warmup
from adagp.schedules.text import usual_warmup
from adagp.sources.base import RunFacts, Source, SplitSource, build_source


def check_model(model: object, optimizer: object) -> None:
    """Raise if `model` is not a module; if the two are swapped, the error says so."""
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
    """Raise if `exclude` is not a list of texts: one text would be taken for a list of letters."""
    if isinstance(exclude, str):
        raise OptionError(f"exclude is '{exclude}'; it must be a list of name patterns, for example ['{exclude}'].")
    if not isinstance(exclude, Iterable) or not all(isinstance(pattern, str) for pattern in exclude):
        raise OptionError(f"exclude is {exclude!r}; it must be a list of name patterns, for example ['head'].")


def check_selector(output: object) -> None:
    """Raise if `output` is neither a name nor a function."""
    if output is not None and not isinstance(output, str) and not callable(output):
        raise OptionError(f"output is {output!r}; it must be a name, or a function of what the model returns.")


def check_sources_given(sources: Mapping[str, Any]) -> None:
    """Raise if `sources` holds something that is not a source."""
    for name, source in sources.items():
        if not isinstance(source, Source):
            raise OptionError(
                f"sources['{name}'] is {source!r}; it must be an object of a class derived from adagp.Source."
            )


def read_precision(precision: Precision | str | None, *, compiled: bool, several: bool) -> Precision | None:
    """Return the precision of a run, None for single precision; raise if it cannot be used in this run."""
    chosen = parse_precision(precision) if isinstance(precision, str) else precision
    if chosen is None or chosen.native:
        return None
    if compiled:
        raise OptionError(f"precision '{chosen.text}' replaces products while the model runs; it cannot be compiled.")
    if several:
        raise OptionError(
            f"precision '{chosen.text}' is for runs in one process: exponents and widths depend on the whole batch, but each "
            "process has only a share of it."
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
            raise OptionError(f"source '{name}' skips whole batches: it cannot be used for only some sites of a batch.")
        if isinstance(source, SplitSource) and schedule.partial:
            raise OptionError(
                f"source '{name}' splits whole batches: it cannot be used for only some sites of a batch."
            )
        if source.needs_backward and schedule.stops:
            raise OptionError(
                f"source '{name}' needs the gradient at the output of its sites: it cannot be used for sites below "
                "the point where the backward pass stops."
            )
        if schedule.adapts and not source.learns:
            raise OptionError(f"an adaptive schedule needs a source that learns to predict; source '{name}' does not.")


MethodLike = MethodName | MethodOptions | NamedMethod
"""What `adagp.attach(method=...)` accepts."""


@dataclass(frozen=True)
class MethodChoice:
    """The method that a user named, None for the schedule's own sources, and the options given for it."""

    method: Method | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The method's name, '' if none was named."""
        return "" if self.method is None else self.method.name

    def build_sources(self, schedule: Schedule, sources: Mapping[str, Source], run: RunFacts) -> dict[str, Source]:
        """Return the sources that were given, and the method's own."""
        unused = sorted(set(sources) - schedule.sources)
        if unused:
            names = ", ".join(sorted(schedule.sources)) or "none"
            raise OptionError(f"source '{unused[0]}' was given, but the schedule names only: {names}.")
        method = self.method
        if method is None or not method.source:
            return dict(sources)
        if method.source in sources:
            raise OptionError(
                f"sources has '{method.source}', which method '{method.name}' creates itself. Leave out one of the two."
            )
        return {**sources, method.source: build_source(method, run, self.options)}


def read_method(
    method: MethodLike | str | None,
    schedule: Schedule | str | None,
    sources: Mapping[str, Source] | None,
    options: Mapping[str, Any] | None = None,
) -> MethodChoice:
    """Return the method that `method` stands for, with its options; `options` may be given only with a method's name.

    If `method` is None, it is the default method, unless the schedule or the given `sources` name the sources instead.
    """
    options = dict(options or {})
    if method is None:
        if not sources and isinstance(schedule, str | None) and "source=" not in (schedule or ""):
            return _checked(find_method("bp" if schedule == "bp" else DEFAULT_METHOD), options)
        if options:
            raise OptionError(
                f"attach has no argument '{next(iter(options))}'; options of a method go with it, as in "
                "method=adagp.Feedback(features=32)."
            )
        return MethodChoice()
    if isinstance(method, str):
        return _checked(find_method(method), options)
    if not isinstance(method, MethodOptions | NamedMethod):
        raise OptionError(
            f"method is {_described(method)}; it must be a name, for example 'feedback', or a method with options, for example "
            "adagp.Feedback(features=32)."
        )
    if options:
        raise OptionError(
            f"'{next(iter(options))}' is given in addition to {method!r}; pass it to that object instead."
        )
    return _checked(find_method(method.name), method.values)


def _described(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else repr(value)


def _checked(method: Method, options: Mapping[str, Any]) -> MethodChoice:
    """Return the choice; raise on options that the method does not have, or values that it does not allow."""
    options_by_name = {option.name: option for option in method.options}
    for name, value in options.items():
        if name not in options_by_name:
            raise (
                unknown_name(f"option of method '{method.name}'", name, options_by_name)
                if options_by_name
                else OptionError(f"method '{method.name}' has no options; got '{name}'.")
            )
        options_by_name[name].check_type(value, method.name)
        options_by_name[name].check(value, name)
    return MethodChoice(method, options)


def read_schedule(
    choice: MethodChoice, schedule: Schedule | str | None, length: RunLength, warmup: int | str | None
) -> Schedule:
    """Return the schedule of a run, with its warm-up; by default the method's own, or the ladder."""
    method = choice.method
    if method is not None and method.builds is None and (schedule not in (None, "bp") or warmup is not None):
        raise OptionError(f"method '{method.name}' predicts nothing: it takes no schedule and no warmup.")
    if isinstance(schedule, Schedule):
        if warmup is not None:
            raise OptionError("warmup needs a schedule in text form; wrap a Schedule object in a WarmUp instead.")
        resolved = schedule
    elif isinstance(schedule, str | None):
        text, source = ("ladder", "predicted") if method is None else (method.schedule, method.source or "predicted")
        resolved = _from_text(schedule or text, source, length, warmup)
    else:
        raise OptionError(
            f"schedule is {schedule!r}; it must be text, for example '1:1', or a Schedule, for example "
            "adagp.Ladder((adagp.Rung(1, 1),))."
        )
    if method is not None:
        check_method_schedule(method, resolved)
        _check_used(method, resolved)
    return resolved


def _check_used(method: Method, schedule: Schedule) -> None:
    if method.builds is not None and not schedule.sources:
        raise OptionError(
            f"schedule '{schedule.text}' has only batches by backprop: method '{method.name}' would not be used. Leave out "
            "the method, or the schedule."
        )


def _from_text(text: str, source: str, length: RunLength, warmup: int | str | None) -> Schedule:
    if not length.divided and not isinstance(warmup, str) and not _is_too_long(text, length, warmup):
        return parse_schedule(text, length.epochs, warmup, source)
    inner = parse_schedule(text, length.epochs, 0, source)
    batches = _warmup_batches(warmup)
    if batches is None:
        # Ten times the epochs: in a short run the schedule's own warm-up would be rounded to none.
        usual = parse_schedule(text, 10 * length.epochs, None, source)
        batches = scaled_warmup(length.total) if isinstance(usual, WarmUp) else 0
    if batches >= length.total:
        raise OptionError(
            f"a warm-up of {batches} batches does not fit a run of {length.total}: nothing would be predicted."
        )
    if not inner.sources or not batches:
        return inner
    return WarmUp(inner, batches=batches, batches_per_epoch=length.batches_per_epoch)


def _is_too_long(text: str, length: RunLength, warmup: int | str | None) -> bool:
    """Return whether the schedule's own warm-up, whole epochs, would take most of the run: of a single epoch all of it."""
    usual = usual_warmup(text, length.epochs) if warmup is None and length.total > 1 else None
    return usual is not None and 2 * usual > length.epochs


def _warmup_batches(warmup: int | str | None) -> int | None:
    if not isinstance(warmup, str):
        return warmup
    match = re.fullmatch(r"(\d+) batch(?:es)?", warmup)
    if match is None:
        raise OptionError(f"cannot read the warm-up '{warmup}': give a number of epochs, or for example '300 batches'.")
    return int(match[1])
