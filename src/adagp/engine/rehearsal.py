"""A rehearsal runs one BP and one GP batch of the user's own loop and reports what happened; everything is restored afterwards.

A step changes more than the model: random numbers, loaders, schedulers, averages. The objects to save are found through the
variables that the step's code names: its closure, globals, bound arguments, the attributes of its object, and those of the
functions it calls. Objects with `state_dict` and `load_state_dict` (schedulers, other models and optimizers, averages of
weights) are saved through these methods; random generators by their state; lists, dictionaries and sets by their members;
tensors and arrays by their values; numbers and strings (counters) by the variables that hold them. Batches that were drawn from
a torch `DataLoader` are returned again. A Python generator cannot be rewound, so a step that uses one is rejected.
"""

import copy
import inspect
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from types import CellType, FunctionType, MethodType, ModuleType, UnionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data.dataloader import _BaseDataLoaderIter

from adagp.core.plan import BACKPROP_ALL, Plan, Step
from adagp.engine.batch import Batch
from adagp.engine.model_checks import Rehearsal
from adagp.engine.trainer import Trainer
from adagp.errors import UsageError

LIBRARIES = frozenset({*sys.stdlib_module_names, "builtins", "adagp", "torch", "numpy"}) - {"__main__"}
"""Packages whose functions and objects hold no state of the user's, so they are not searched."""
DEEPEST = 5
"""How deep functions that call functions, and objects in objects, are searched."""


class RandomStates:
    """The state of torch's, Python's and NumPy's global random numbers."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        self._python = random.getstate()
        self._numpy = np.random.get_state()  # the user's code may draw from it

    def restore(self) -> None:
        """Restore the states."""
        torch.set_rng_state(self._torch)
        if self._devices:
            torch.cuda.set_rng_state_all(self._devices)
        random.setstate(self._python)
        np.random.set_state(self._numpy)


class UserState:
    """The state of the objects that `step` names, except the `known` ones, which are restored elsewhere."""

    def __init__(self, step: Callable[[], object], known: list[object]) -> None:
        self._random = RandomStates()
        self._restorers: list[Callable[[], object]] = []
        seen = {id(value) for value in known}
        for name, value in (("step", step), *variables(step)):
            if id(value) not in seen:
                seen.add(id(value))
                self._save(name, value)

    def restore(self) -> None:
        """Put everything back."""
        for restore in self._restorers:
            restore()
        self._random.restore()

    def _save(self, name: str, value: Any) -> None:
        for kinds, save in _SAVERS:
            if isinstance(value, kinds):
                self._restorers.append(save(value))
                return
        if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            # A copy each time: some objects keep a reference to the loaded state.
            saved = copy.deepcopy(value.state_dict())
            self._restorers.append(lambda: value.load_state_dict(copy.deepcopy(saved)))
        elif hasattr(type(value), "__next__") and not isinstance(value, _BaseDataLoaderIter):
            raise UsageError(
                f"rehearse() was given a step that draws from '{name}', a {type(value).__name__}, which cannot be "
                "rewound. Draw a batch first, and let the step train on that one."
            )
        elif hasattr(value, "__dict__") and not _of_library(type(value)):
            self._restorers.append(saved_numbers(vars(value)))


PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.Tensor, np.ndarray)
"""Values that a step replaces rather than changes: counters, for instance."""


def saved_numbers(names: dict[str, Any], *, chosen: Collection[str] | None = None) -> Callable[[], None]:
    """Return a function that restores the present values of the `chosen` names (None: all) that are `PLAIN`."""
    values = {
        name: value for name, value in names.items() if isinstance(value, PLAIN) and (chosen is None or name in chosen)
    }
    return lambda: names.update(values)


def saved_names(function: FunctionType) -> Callable[[], None]:
    """Return a function that restores the `PLAIN` values of a function's closure and of the globals that it names."""
    filled = [cell for cell in function.__closure__ or () if _is_filled(cell)]
    cells = [(cell, cell.cell_contents) for cell in filled if isinstance(cell.cell_contents, PLAIN)]
    numbers = saved_numbers(function.__globals__, chosen=function.__code__.co_names)

    def restore() -> None:
        numbers()
        for cell, value in cells:
            cell.cell_contents = value

    return restore


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # the variable has no value yet
        return False


def saved_container(container: Any) -> Callable[[], None]:
    """Return a function that restores the present members of a list, dictionary, set or deque."""
    members = copy.copy(container)

    def restore() -> None:
        container.clear()
        (container.extend if isinstance(container, list | deque) else container.update)(members)

    return restore


def saved_optimizer(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Return a function that restores the parameter groups and the state of an optimizer, in the same dictionaries."""
    groups = [(group, _copied(group)) for group in optimizer.param_groups]
    state = {parameter: copy.deepcopy(entry) for parameter, entry in optimizer.state.items()}

    def restore() -> None:
        optimizer.param_groups[:] = [group for group, _ in groups]
        for group, values in groups:
            group.clear()
            group.update(_copied(values))
        optimizer.state.clear()
        optimizer.state.update({parameter: copy.deepcopy(entry) for parameter, entry in state.items()})

    return restore


def _copied(group: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a parameter group that refers to the same parameters."""
    return {name: list(value) if name == "params" else copy.deepcopy(value) for name, value in group.items()}


def saved_module(module: nn.Module) -> Callable[[], None]:
    """Return a function that restores a module's present weights, buffers, modes and `requires_grad`, in place."""
    parameters_and_buffers = (*module.parameters(), *module.buffers())
    tensors = [(tensor, tensor.detach().clone(), tensor.requires_grad) for tensor in parameters_and_buffers]
    modes = [(part, part.training) for part in module.modules()]

    @torch.no_grad()
    def restore() -> None:
        for tensor, value, requires_grad in tensors:
            tensor.copy_(value)
            tensor.requires_grad_(requires_grad)
        for part, training in modes:
            part.training = training

    return restore


def saved_values(values: Any) -> Callable[[], None]:
    """Return a function that restores the present values of a tensor or an array, in place, if they were changed."""
    is_tensor = isinstance(values, torch.Tensor)
    saved = values.detach().clone() if is_tensor else values.copy()

    @torch.no_grad()
    def restore() -> None:
        # Only if changed: read-only, expanded and inference-mode tensors cannot be written to.
        if is_tensor and not torch.equal(values, saved):
            values.copy_(saved)
        elif not is_tensor and not np.array_equal(values, saved):
            np.copyto(values, saved)

    return restore


def saved_generator(generator: np.random.Generator) -> Callable[[], None]:
    """Return a function that restores the present state of a NumPy generator."""
    return partial(setattr, generator.bit_generator, "state", copy.deepcopy(generator.bit_generator.state))


_SAVERS: tuple[tuple[type | UnionType, Callable[[Any], Callable[[], object]]], ...] = (
    (torch.Generator, lambda generator: partial(generator.set_state, generator.get_state())),
    (random.Random, lambda generator: partial(generator.setstate, generator.getstate())),
    (np.random.Generator, saved_generator),
    (nn.Module, saved_module),
    (torch.optim.Optimizer, saved_optimizer),
    (FunctionType, saved_names),
    (torch.Tensor | np.ndarray, saved_values),
    (list | dict | set | deque, saved_container),
)
"""Types of objects, each with a function that saves such an object and returns a function that restores it."""


def variables(step: Callable[..., object]) -> Iterator[tuple[str, object]]:
    """Yield name and value of the variables that `step` uses, and of those that its objects have and its functions use."""
    yield from _of_callable(step, 0, set())


def _of_callable(step: Callable[..., object], depth: int, seen: set[int]) -> Iterator[tuple[str, object]]:
    if isinstance(step, partial):
        arguments = {str(index): argument for index, argument in enumerate((step.func, *step.args))}
        yield from _members({**arguments, **step.keywords}, depth, seen)
    elif isinstance(step, MethodType):
        yield from _members({"self": step.__self__, step.__name__: step.__func__}, depth, seen)
    elif isinstance(step, FunctionType):
        captured = inspect.getclosurevars(step)
        yield from _members({**captured.globals, **captured.nonlocals}, depth, seen)
    else:
        yield from _members({"self": step, "call": type(step).__dict__.get("__call__")}, depth, seen)


def _members(named: Mapping[str, object], depth: int, seen: set[int]) -> Iterator[tuple[str, object]]:
    for name, value in named.items():
        if id(value) in seen or isinstance(value, ModuleType | type):
            continue
        seen.add(id(value))
        yield name, value
        if depth < DEEPEST:
            yield from _inside(name, value, depth + 1, seen)


def _inside(name: str, value: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, object]]:
    if isinstance(value, list | tuple | dict):
        parts = value.values() if isinstance(value, dict) else value
        yield from _members({f"{name}[{index}]": part for index, part in enumerate(parts)}, depth, seen)
    elif (isinstance(value, FunctionType) and not _of_library(value)) or isinstance(value, MethodType | partial):
        yield from _of_callable(value, depth, seen)
    elif not hasattr(value, "state_dict") and not _of_library(type(value)):
        yield from _members(getattr(value, "__dict__", {}), depth, seen)


def _of_library(item: FunctionType | type) -> bool:
    return str(item.__module__).partition(".")[0] in LIBRARIES


Drawn = list[tuple[Any, RandomStates]]


class Tape:
    """Records the batches drawn from loaders, so that both steps of a rehearsal, and then the training, get the same ones."""

    def __init__(self) -> None:
        self._drawn: dict[_BaseDataLoaderIter, Drawn] = {}
        self._positions: dict[_BaseDataLoaderIter, int] = {}

    def rewind(self) -> None:
        """Start again with the first batch."""
        self._positions.clear()

    def next(self, iterator: _BaseDataLoaderIter, draw: Callable[[_BaseDataLoaderIter], Any]) -> Any:
        """Return the next batch of `iterator`: a recorded one, with the random numbers as they were after it, or a new one."""
        drawn, position = self._drawn.setdefault(iterator, []), self._positions.get(iterator, 0)
        self._positions[iterator] = position + 1
        if position == len(drawn):
            drawn.append((draw(iterator), RandomStates()))
        return _restored_batch(drawn[position])

    def hand_back(self) -> None:
        """Make each iterator return the recorded batches first."""
        for iterator, drawn in self._drawn.items():
            if drawn:
                _begin_with(iterator, drawn)


def _restored_batch(drawn: tuple[Any, RandomStates]) -> Any:
    item, states = drawn
    states.restore()
    return copy.deepcopy(item)  # the step may change it in place


def _begin_with(iterator: _BaseDataLoaderIter, drawn: Drawn) -> None:
    """Make `iterator` return `drawn` first, and then continue as before."""
    kind = type(iterator)

    class Rewound(kind):  # type: ignore[misc, valid-type]
        def __next__(self) -> Any:
            first = drawn.pop(0)
            if not drawn:
                self.__class__ = kind  # type: ignore[assignment]
            return _restored_batch(first)

    Rewound.__name__ = Rewound.__qualname__ = kind.__name__
    iterator.__class__ = Rewound


@contextmanager
def recorded_loaders() -> Iterator[Tape]:
    """Record the batches drawn from torch's loaders inside the context; afterwards the loaders return these first."""
    tape, draw = Tape(), _BaseDataLoaderIter.__next__
    _BaseDataLoaderIter.__next__ = lambda self: tape.next(self, draw)  # type: ignore[method-assign]
    try:
        yield tape
    finally:
        _BaseDataLoaderIter.__next__ = draw  # type: ignore[method-assign]
        tape.hand_back()


SEARCHED = 1000
"""How many epochs, and how many batches of each, are searched for a plan with a source."""


def rehearse(trainer: Trainer, step: Callable[[], object]) -> Rehearsal:
    """Run `step`, which trains one batch, once as a BP and once as a GP batch, and restore everything to the same bits.

    Both get the same batch of a loader and the same random numbers; see `adagp.engine.rehearsal` for what is restored.
    """
    plan = first_plan(trainer)
    named = all_parameters(trainer)
    with restored(trainer, step) as again:
        bp, bp_kept, bp_seconds, _ = _run(trainer, step, BACKPROP_ALL, named)
        reached = {site.name for site in trainer.survey.sites if site.weight.grad is not None}
        again()
        gp, gp_kept, gp_seconds, moved = _run(trainer, step, plan, named)
    sites = trainer.survey.sites
    may = _movable(trainer, gp, reached)
    return Rehearsal(
        never_called=tuple(site.name for site in sites if site.name not in bp.called | gp.called),
        without_gradient=tuple(site.name for site in sites if site.name not in reached),
        rejected=gp.rejected,
        moved=tuple(name for name in moved if id(named[name]) in may),
        moved_wrongly=tuple(name for name in moved if id(named[name]) not in may),
        bp_kept=bp_kept,
        gp_kept=gp_kept,
        bp_seconds=bp_seconds,
        gp_seconds=gp_seconds,
    )


def _movable(trainer: Trainer, gp: Batch, reached: set[str]) -> set[int]:
    """Return the ids of the parameters that the GP batch may change; `reached` names the sites with a true gradient."""
    movable = [site.weight for site in trainer.survey.sites if site.name in reached and site.name not in gp.rejected]
    if gp.needs_backward:
        movable += [other.parameter for other in trainer.survey.rest if not gp.plan.freezes(other.name)]
        if not gp.plan.hold_rest:
            movable += trainer.setup.outside_parameters()
    return {id(parameter) for parameter in movable}


def all_parameters(trainer: Trainer) -> dict[str, nn.Parameter]:
    """Return the parameters of the model by name, and those of the optimizers that are not in the model, numbered."""
    named = dict(trainer.model.named_parameters())
    foreign = enumerate(trainer.setup.outside_parameters(), 1)
    return named | {f"parameter {number} outside the model": parameter for number, parameter in foreign}


def first_plan(trainer: Trainer) -> Plan:
    """Return the first plan of the schedule that names a source."""
    names = [site.name for site in trainer.survey.sites]
    for epoch, batch in product(range(SEARCHED), range(min(SEARCHED, trainer.batches_per_epoch))):
        plan = trainer.schedule.plan(Step(epoch, batch))
        if any(plan.source_of(name) in trainer.sources for name in names):
            return plan
    raise UsageError("there is nothing to rehearse: no batch of the schedule takes gradients from a source.")


@contextmanager
def restored(trainer: Trainer, step: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """Restore everything at the end of the context: model, gradients, optimizers, scaler, trainer, and the objects of the step.

    The yielded function restores only the objects of the step and rewinds the loaders, for another run of the step.
    """
    known = [trainer, trainer.model, trainer.setup.scaler, *trainer.optimizers, *trainer.model.modules()]
    user = UserState(step, known)
    model = saved_module(trainer.model)
    parameters = list(all_parameters(trainer).values())
    values = [item.detach().clone() for item in parameters]
    gradients = [None if item.grad is None else item.grad.clone() for item in parameters]
    optimizers = [saved_optimizer(item) for item in trainer.optimizers]
    scaler, state = copy.deepcopy(trainer.setup.scaler.state_dict()), copy.deepcopy(trainer.state_dict())
    ended = trainer.last, trainer.ended
    trainer.setup.drop_gradients()
    with recorded_loaders() as tape:

        def again() -> None:
            user.restore()
            tape.rewind()

        try:
            yield again
        finally:
            model()
            with torch.no_grad():
                for parameter, value, gradient in zip(parameters, values, gradients, strict=True):
                    parameter.copy_(value)
                    parameter.grad = gradient
            for restore_optimizer in optimizers:
                restore_optimizer()
            if scaler:
                trainer.setup.scaler.load_state_dict(scaler)
            trainer.load_state_dict(state)
            trainer.last, trainer.ended = ended
            trainer.keep_gradients()
            user.restore()


def _run(
    trainer: Trainer, step: Callable[[], object], plan: Plan, named: dict[str, nn.Parameter]
) -> tuple[Batch, int, float, list[str]]:
    """Run `step` under `plan`; return its batch, the bytes kept for a backward pass, the seconds, and the moved parameters."""
    before = {name: parameter.detach().clone() for name, parameter in named.items()}
    weights = {parameter.untyped_storage().data_ptr() for parameter in named.values()}
    stored: dict[int, int] = {}

    def pack(tensor: Tensor) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            stored[storage.data_ptr()] = storage.nbytes()
        return tensor

    ended, start = trainer.ended, time.perf_counter()
    with trainer.forced(plan), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    seconds = time.perf_counter() - start
    if trainer.ended != ended + 1 or trainer.last is None:
        raise UsageError(f"rehearse() was given a step that trains {trainer.ended - ended} batches; it must train one.")
    moved = [name for name, parameter in named.items() if not torch.equal(parameter.detach(), before[name])]
    return trainer.last, sum(stored.values()), seconds, moved
