"""What a method's gradients have to do with the true ones: measured along a training run, which it does not change.

At some GP batches of the run, before the model is updated, four gradients of every site that comes from a source are
compared: the one that the source produced; the true one of the same minibatch; the mean of the true ones of many other
minibatches, `large_batch` samples in all; and the true one of one other minibatch.

cosine_true, norm_ratio_true                  the source's against the true one of the minibatch
cosine_large_batch, norm_ratio_large_batch    the source's against that of the large batch
ceiling_minibatch                             the cosine of two minibatches' true gradients
ceiling_large_batch                           the cosine of the minibatch's true gradient with that of the large batch

The last two are what noise leaves of the truth itself: no source that knows one minibatch can be expected to pass them. A
method without GP batches is measured at any batches.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adagp.core.files import write_atomically
from adagp.core.plan import BACKPROP, Phase, Step
from adagp.engine.metrics import cosine
from adagp.engine.trainer import Trainer
from adagp.layers.sites import Site
from adagp.layers.weights import gradient_norms
from adagp.program.jobs import Stop, Stopped, never
from adagp.program.run.config import TrainConfig
from adagp.program.run.documents import FIGURE, ListOf, TableOf, record_of
from adagp.program.run.folder import RunFolder, to_json
from adagp.program.tasks.base import Task
from adagp.program.train.job import TellingShare
from adagp.program.train.loop import Loop, Observer, to_device
from adagp.program.train.session import Session

FIGURES = (
    "cosine_true",
    "norm_ratio_true",
    "cosine_large_batch",
    "norm_ratio_large_batch",
    "ceiling_minibatch",
    "ceiling_large_batch",
)
COSINES = tuple(figure for figure in FIGURES if not figure.startswith("norm_ratio"))
ALIGNMENT = record_of({"points": ListOf(record_of({"sites": TableOf(record_of(dict.fromkeys(FIGURES, FIGURE)))}))})
"""The shape of what is kept of one run's measurement."""
ELSEWHERE = 1_000_000
"""Added to an epoch's number, it gives another order of the same samples, which no run gets to."""


class AlignedLoop(Loop):
    """A training loop that measures at the batches `points` (counted from 0 over the run), and keeps no folder.

    A point that is not a GP batch is measured at the next one, if there are GP batches at all.
    """

    def __init__(self, session: Session, large_batch: int, points: Sequence[int]) -> None:
        super().__init__(session.trainer, session.task, session.rate, _Nowhere(Path()), epochs=session.config.epochs)
        self.count = max(2, -(-large_batch // session.config.batch_size))
        self.due = list(points)
        self.anywhere = not self.trainer.schedule.sources
        self.found: list[dict[str, Any]] = []

    def _train(self, inputs: Any, targets: Any, before: float, observer: Observer) -> None:
        if not self._is_point():
            super()._train(inputs, targets, before, observer)
            return
        sites = replaced(self.trainer)
        place, number = self.trainer.at, self.trainer.done
        moved = to_device(inputs, self.device), to_device(targets, self.device)
        truth, other, large = true_gradients(self.trainer, self.task, sites, moved, self.count)
        with produced(self.trainer, sites) as gradients:
            super()._train(inputs, targets, before, observer)
        figures = {
            site.name: compare(gradients.get(site.index), *three)
            for site, three in zip(sites, zip(truth, other, large, strict=True), strict=True)
        }
        self.found.append({"done": number, "epoch": place.epoch, "batch": place.batch, "sites": figures})

    def _is_point(self) -> bool:
        """Tell whether a point is due and the coming batch will do: a GP batch, where there are any."""
        if not self.due or self.trainer.done < self.due[0]:
            return False
        if not (self.anywhere or self.trainer.phase is Phase.GP):
            return False
        self.due = [point for point in self.due if point > self.trainer.done]
        return True

    def _evaluate(self) -> dict[str, float]:
        return {}  # nobody asks

    def save(self) -> None:
        """Keep nothing."""


class _Nowhere(RunFolder):
    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        """Keep nothing."""


def replaced(trainer: Trainer) -> list[Site]:
    """Return the sites whose gradient comes from a source in the coming batch; all, if none does."""
    plan = trainer.plan
    return [site for site in trainer.survey.sites if plan.source_of(site.name) != BACKPROP] or list(
        trainer.survey.sites
    )


@contextmanager
def produced(trainer: Trainer, sites: Sequence[Site]) -> Iterator[dict[int, Tensor]]:
    """Collect the gradients that the optimizer is about to use, by site's index; none of a batch that is not trained on."""
    found: dict[int, Tensor] = {}

    def note(*_: Any) -> None:
        found.update({site.index: site.weight.grad.detach().clone() for site in sites if site.weight.grad is not None})

    handle = trainer.optimizer.register_step_pre_hook(note)
    try:
        yield found
    finally:
        handle.remove()


def true_gradients(
    trainer: Trainer, task: Task, sites: Sequence[Site], batch: tuple[Any, Any], count: int
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return the true gradients of `batch`, of another minibatch, and the mean of `count` others, that one among them.

    Everything that a forward pass changes is put back: running statistics and the random state. The batch itself is seen
    with the random numbers that training will see it with.
    """
    with untouched(trainer):
        truth = gradients_of(trainer, task, sites, *batch)
        total: list[Tensor] = []
        other: list[Tensor] = []
        batches = 0
        for inputs, targets in islice(_other_batches(task, trainer.at), count):
            moved = (to_device(one, trainer.device) for one in (inputs, targets))
            one = gradients_of(trainer, task, sites, *moved)
            other = other or [gradient.clone() for gradient in one]
            total = [sum_ + gradient for sum_, gradient in zip(total, one, strict=True)] if total else one
            batches += 1
    return truth, other, [gradient / batches for gradient in total]


def gradients_of(trainer: Trainer, task: Task, sites: Sequence[Site], inputs: Any, targets: Any) -> list[Tensor]:
    """Return the true gradients of the sites' weights for a batch; zero for a site that is not reached."""
    with torch.enable_grad():
        output = trainer.model(*inputs) if isinstance(inputs, tuple) else trainer.model(inputs)
        loss = task.loss(output, targets)
        found = torch.autograd.grad(loss, [site.weight for site in sites], allow_unused=True)
    known: Sequence[Tensor | None] = found
    return [torch.zeros_like(site.weight) if one is None else one for site, one in zip(sites, known, strict=True)]


@contextmanager
def untouched(trainer: Trainer) -> Iterator[None]:
    """Put back the model's buffers and the random state at the end."""
    buffers = [buffer.clone() for buffer in trainer.model.buffers()]
    with torch.random.fork_rng([trainer.device] if trainer.device.type == "cuda" else []):
        yield
    with torch.no_grad():
        for buffer, before in zip(trainer.model.buffers(), buffers, strict=True):
            buffer.copy_(before)


def _other_batches(task: Task, at: Step) -> Iterator[tuple[Any, Any]]:
    """Yield batches in orders that training does not use, other ones at each place of the run."""
    epoch = ELSEWHERE * (1 + at.epoch) + at.batch * 1000
    while True:
        yield from task.batches(epoch)
        epoch += 1


def compare(gradient: Tensor | None, truth: Tensor, other: Tensor, large: Tensor) -> dict[str, float | None]:
    """Return the figures of one site; None for a direction that is not there, or a size where nothing was produced."""
    found: list[Tensor | None] = [None] * 4
    if gradient is not None:
        norms = gradient_norms([gradient, truth, large]).double()
        found = [cosine(gradient, truth), norms[0] / norms[1], cosine(gradient, large), norms[0] / norms[2]]
    found += [cosine(truth, other), cosine(truth, large)]
    numbers = [None if one is None or not bool(one.isfinite()) else float(one) for one in found]
    return dict(zip(FIGURES, numbers, strict=True))


def choose_points(session: Session, count: int) -> list[int]:
    """Return `count` batches (fewer, if there are not so many) evenly spread over the GP batches of the run, or over all.

    A schedule that adapts tells no GP batches in advance: the points are spread over all batches, and each is measured at
    the next GP batch.
    """
    trainer, config = session.trainer, session.config
    total = config.batches or config.epochs * trainer.batches_per_epoch
    places = list(range(total))
    if not trainer.schedule.adapts:
        steps = (Step(*divmod(number, trainer.batches_per_epoch)) for number in places)
        phases = [trainer.schedule.phase(step) for step in steps]
        places = [number for number in places if phases[number] is Phase.GP] or places
    return sorted({places[(2 * one + 1) * len(places) // (2 * count)] for one in range(count)})


def align(session: Session, large_batch: int, points: int, stop: Stop = never) -> dict[str, Any]:
    """Train a run to its end and return what was measured on the way."""
    chosen = choose_points(session, points)
    loop = AlignedLoop(session, large_batch, chosen)
    if not loop.run(TellingShare(session), stop):
        raise Stopped
    return {
        "method": session.config.method,
        "seed": session.config.seed,
        "batches": session.config.batches,
        "minibatches_in_large_batch": loop.count,
        "points": loop.found,
    }


@dataclass(frozen=True)
class AlignmentJob:
    """Measures one run, and leaves the figures in the file `result`. Stopped half way, it leaves nothing."""

    config: TrainConfig
    large_batch: int
    points: int
    result: Path
    data_dir: Path | None = None

    def __call__(self, stop: Stop = never) -> None:
        """Do it."""
        session = Session(self.config, data_dir=self.data_dir, threads=1)
        found = align(session, self.large_batch, self.points, stop)
        self.result.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.result, (to_json(found, indent=2) + "\n").encode())
