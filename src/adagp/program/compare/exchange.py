"""The bytes that data-parallel processes exchange in a batch, counted in one process.

In a BP batch the processes average the gradients of all parameters. In batches of either kind they add up what a source has
seen of each share (`Source.join`), in one or several rounds, and average the running statistics and the loss. Each of these
is an all-reduce. They are counted by training a few batches with an object in place of the processes that adds up nothing.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from adagp.core.methods import batch_variation
from adagp.core.plan import Phase
from adagp.engine.distributed import Processes
from adagp.program.compare.cluster import Exchange, Rounds
from adagp.program.compare.costs import endless_batches, timed_steps
from adagp.program.run.config import TrainConfig
from adagp.program.tasks.base import Task
from adagp.program.train.loop import to_device
from adagp.program.train.session import Session

REQUESTS = 3
"""Numbers that are averaged in every batch in addition to the running statistics: two requests (stop, save) and the loss."""
WORD = 4
"""Bytes of a number: processes exchange float32."""


class CountingProcesses(Processes):
    """Stands for several processes, while there is only this one: it counts the bytes and sums nothing."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, several=True)
        self.rounds: list[int] = []

    def _add_up(self, tensors: Sequence[Tensor]) -> None:
        self.rounds.append(sum(tensor.numel() * tensor.element_size() for tensor in tensors))


def count_exchange(config: TrainConfig, task: Task) -> Exchange:
    """Return what a run's batches exchange, as a mean over the batches of a period of the source's work."""
    session = Session(replace(config, guard_limit=1e30), task=task, threads=1)
    trainer = session.trainer
    processes = CountingProcesses(session.model)
    trainer.setup = replace(trainer.setup, processes=processes)
    period = batch_variation(config.method, config.method_options).cycle
    first, *others = timed_steps(trainer.schedule, session.config, task.batches_per_epoch)
    counted: defaultdict[bool, list[list[int]]] = defaultdict(list)
    batches = endless_batches(task)
    # The first batch is not counted: a source may exchange more once it has learned something.
    for number, step in enumerate([first] * (1 + period) + others):
        processes.rounds.clear()
        inputs, targets = (to_device(part, session.device) for part in next(batches))
        trainer.move_to(step)
        result = trainer.step(inputs, targets, task.loss)
        if number:
            counted[result.phase is Phase.GP].append(
                [] if result.skipped else [*processes.rounds, _statistics(session.model)]
            )
    parameters = (parameter for parameter in session.model.parameters() if parameter.requires_grad)
    gradients = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    return Exchange(gradients, _mean_rounds(counted[False]), _mean_rounds(counted[True]))


def _statistics(model: nn.Module) -> int:
    """Return the bytes of the running statistics, of requests and of the loss."""
    return WORD * (REQUESTS + sum(buffer.numel() for buffer in model.buffers() if buffer.is_floating_point()))


def _mean_rounds(batches: Sequence[Sequence[int]]) -> Rounds:
    number = max(1, len(batches))
    return Rounds(sum(map(len, batches)) / number, sum(map(sum, batches)) / number)
