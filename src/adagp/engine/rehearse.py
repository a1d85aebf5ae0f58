"""One BP and one GP batch of the user's own loop, to see what happens; everything is put back."""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from adagp.engine.batch import Batch
from adagp.engine.rehearsal import Rehearsal
from adagp.engine.trainer import Trainer
from adagp.errors import UsageError
from adagp.plan import BACKPROP_ALL, Plan, Step

SEARCHED = 1000
"""Epochs, and batches of each, in which a plan with a source is looked for."""


def rehearse(trainer: Trainer, step: Callable[[], object]) -> Rehearsal:
    """Run `step`, which trains one batch, once as a BP and once as a GP batch, and put everything back bit by bit.

    What cannot be put back are things that this library does not know: where a data loader stands, a scheduler's count.
    """
    plan = first_plan(trainer)
    named = dict(trainer.model.named_parameters())
    with restored(trainer):
        bp, bp_kept, bp_seconds, _ = _run(trainer, step, BACKPROP_ALL, named)
        reached = {site.name for site in trainer.survey.sites if site.weight.grad is not None}
        gp, gp_kept, gp_seconds, moved = _run(trainer, step, plan, named)
    sites = trainer.survey.sites
    weights = {id(site.weight): site for site in sites}
    wrongly = [name for name in moved if id(named[name]) not in weights or weights[id(named[name])].name in gp.refused]
    return Rehearsal(
        never_called=tuple(site.name for site in sites if site.name not in bp.called | gp.called),
        without_gradient=tuple(site.name for site in sites if site.name not in reached),
        refused=gp.refused,
        moved=tuple(name for name in moved if name not in wrongly),
        moved_wrongly=() if gp.needs_backward else tuple(wrongly),
        bp_kept=bp_kept,
        gp_kept=gp_kept,
        bp_seconds=bp_seconds,
        gp_seconds=gp_seconds,
    )


def first_plan(trainer: Trainer) -> Plan:
    """Return the first plan of the schedule that names a source."""
    names = [site.name for site in trainer.survey.sites]
    for epoch, batch in product(range(SEARCHED), range(min(SEARCHED, trainer.batches_per_epoch))):
        plan = trainer.schedule.plan(Step(epoch, batch))
        if any(plan.source_of(name) in trainer.sources for name in names):
            return plan
    raise UsageError("there is nothing to rehearse: no batch of the schedule takes gradients from a source.")


@contextmanager
def restored(trainer: Trainer) -> Iterator[None]:
    """Put back weights, buffers, gradients, optimizers, scaler, trainer and the random state at the end."""
    groups = (group for optimizer in trainer.optimizers for group in optimizer.param_groups)
    parameters = {id(one): one for one in trainer.model.parameters()}
    parameters |= {id(one): one for group in groups for one in group["params"]}
    tensors = [*parameters.values(), *trainer.model.buffers()]
    values = [one.detach().clone() for one in tensors]
    gradients = [None if one.grad is None else one.grad.clone() for one in parameters.values()]
    optimizers = [copy.deepcopy(one.state_dict()) for one in trainer.optimizers]
    scaler, state = copy.deepcopy(trainer.setup.scaler.state_dict()), copy.deepcopy(trainer.state_dict())
    devices = [trainer.device] if trainer.device.type == "cuda" else []
    trainer.setup.drop_gradients()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        with torch.no_grad():
            for one, value in zip(tensors, values, strict=True):
                one.copy_(value)
        for parameter, gradient in zip(parameters.values(), gradients, strict=True):
            parameter.grad = gradient
        for optimizer, saved in zip(trainer.optimizers, optimizers, strict=True):
            optimizer.load_state_dict(saved)
        if scaler:
            trainer.setup.scaler.load_state_dict(scaler)
        trainer.load_state_dict(state)
        trainer.keep_gradients()


def _run(
    trainer: Trainer, step: Callable[[], object], plan: Plan, named: dict[str, nn.Parameter]
) -> tuple[Batch, int, float, list[str]]:
    """Return the batch that `step` trained under `plan`, the bytes kept for its backward pass, its seconds, what moved."""
    before = {name: one.detach().clone() for name, one in named.items()}
    weights = {one.untyped_storage().data_ptr() for one in named.values()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    ended, start = trainer.ended, time.perf_counter()
    with trainer.forced(plan), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    seconds = time.perf_counter() - start
    if trainer.ended != ended + 1 or trainer.last is None:
        raise UsageError(f"rehearse() was given a step that trains {trainer.ended - ended} batches; it must train one.")
    moved = [name for name, one in named.items() if not torch.equal(one.detach(), before[name])]
    return trainer.last, sum(kept.values()), seconds, moved
