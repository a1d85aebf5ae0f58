"""One BP and one GP batch of the user's own loop, to see what happens; everything is restored afterwards."""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from adagp.core.plan import BACKPROP_ALL, Plan, Step
from adagp.engine.batch import Batch
from adagp.engine.model_checks import Rehearsal
from adagp.engine.trainer import Trainer
from adagp.engine.user_state import UserState, recorded_loaders, saved_module, saved_optimizer
from adagp.errors import UsageError

SEARCHED = 1000
"""Epochs, and batches of each, in which a plan with a source is looked for."""


def rehearse(trainer: Trainer, step: Callable[[], object]) -> Rehearsal:
    """Run `step`, which trains one batch, once as a BP and once as a GP batch, and put everything back bit by bit.

    Both get the same batch of a loader and the same random numbers; see `adagp.engine.user_state` for what is put back.
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
        refused=gp.refused,
        moved=tuple(name for name in moved if id(named[name]) in may),
        moved_wrongly=tuple(name for name in moved if id(named[name]) not in may),
        bp_kept=bp_kept,
        gp_kept=gp_kept,
        bp_seconds=bp_seconds,
        gp_seconds=gp_seconds,
    )


def _movable(trainer: Trainer, gp: Batch, reached: set[str]) -> set[int]:
    """Return the ids of the parameters that the GP batch may move; backprop reached the sites of the names `reached`."""
    movable = [site.weight for site in trainer.survey.sites if site.name in reached and site.name not in gp.refused]
    if gp.needs_backward:
        movable += [other.parameter for other in trainer.survey.rest if not gp.plan.freezes(other.name)]
        if not gp.plan.hold_rest:
            movable += trainer.setup.outside_parameters()
    return {id(parameter) for parameter in movable}


def all_parameters(trainer: Trainer) -> dict[str, nn.Parameter]:
    """Return the parameters of the model by name, and those that only the optimizers have, numbered."""
    named = dict(trainer.model.named_parameters())
    foreign = enumerate(trainer.setup.outside_parameters(), 1)
    return named | {f"parameter {number} beside the model": parameter for number, parameter in foreign}


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
    """Put back everything at the end: model, gradients, optimizers, scaler, trainer, and what the step changes besides.

    The function that is yielded puts back the last of these alone, before another step.
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
    """Return the batch that `step` trained under `plan`, the bytes kept for its backward pass, its seconds, what moved."""
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
