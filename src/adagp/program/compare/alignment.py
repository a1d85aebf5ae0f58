"""Compares a method's gradients with the true ones at some batches of a training run, without changing the run.

At some GP batches, before the optimizer step, four gradients of each site with a gradient source are compared: the one from the
source, the true one of the same minibatch, the true one of another minibatch, and the mean of the true ones of many other
minibatches (`large_batch` samples in total).

cosine_true, norm_ratio_true                  source and minibatch
cosine_large_batch, norm_ratio_large_batch    source and large batch
ceiling_minibatch                             true gradients of two minibatches (cosine)
ceiling_large_batch                           minibatch and large batch, both true (cosine)

Two figures are over all these weights together. They use the true and predicted gradients t and p of the K minibatches of b
samples that make up the large batch, and their means T and P:

correlation    sum <t - T, p - P> / sqrt(sum |t - T|^2 sum |p - P|^2). A minibatch's gradients are means over independent
               samples, so their covariances are those of one sample divided by b, and the correlation is that of one sample's.
noise_scale    the critical batch size tr(S) / |G|^2, with S the covariance of one sample's gradient and G its mean: unbiased
               estimates of both from gradients of b and of K b samples (McCandlish et al., arXiv 1812.06162, appendix A.1).

Batch normalisation couples the samples of a minibatch: then both are those of this batch size.

The ceilings show how much of the true gradient sampling noise leaves: no source that sees one minibatch can be expected to
exceed them. A method without GP batches is measured at BP batches.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from math import sqrt
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
from adagp.program.train.loop import Loop, Observer, to_device
from adagp.program.train.session import Session, ShareObserver

NOISE = ("correlation", "noise_scale")
"""The figures of all weights together at one point of a run."""


@dataclass
class _Moments:
    """Sums over minibatches of a site's gradients, and of their squared norms and products."""

    truth: Tensor
    predicted: Tensor
    truth_square: float = 0.0
    predicted_square: float = 0.0
    product: float = 0.0

    def add(self, truth: Tensor, predicted: Tensor | None) -> None:
        self.truth += truth
        self.truth_square += _dot(truth, truth)
        if predicted is not None:
            self.predicted += predicted
            self.predicted_square += _dot(predicted, predicted)
            self.product += _dot(truth, predicted)


@dataclass
class NoiseStatistics:
    """Adds up minibatches of `batch_size` samples."""

    batch_size: int
    count: int = 0
    predictions: int = 0
    _moments: list[_Moments] = field(default_factory=list)

    def add(self, truths: Sequence[Tensor], predictions: Sequence[Tensor | None] | None) -> None:
        """Add the sites' gradients of one minibatch; `predictions` is None if there are none."""
        if not self._moments:
            self._moments = [_Moments(torch.zeros_like(truth), torch.zeros_like(truth)) for truth in truths]
        complete = predictions is not None and all(predicted is not None for predicted in predictions)
        for moments, truth, predicted in zip(self._moments, truths, predictions or [None] * len(truths), strict=True):
            moments.add(truth, predicted if complete else None)
        self.count += 1
        self.predictions += complete

    def figures(self) -> dict[str, float | None]:
        """Return the correlation and the noise scale of all weights together, None if unknown."""
        return {"correlation": self.correlation(), "noise_scale": self.noise_scale()}

    def correlation(self) -> float | None:
        """Return the correlation of one sample's true and predicted gradient."""
        number = self.count
        if number < 2 or self.predictions < number:
            return None
        sums = [
            (
                moments.truth_square - _dot(moments.truth, moments.truth) / number,
                moments.predicted_square - _dot(moments.predicted, moments.predicted) / number,
                moments.product - _dot(moments.truth, moments.predicted) / number,
            )
            for moments in self._moments
        ]
        truth, predicted, product = (sum(column) for column in zip(*sums, strict=True))
        return product / sqrt(truth * predicted) if truth > 0 and predicted > 0 else None

    def noise_scale(self) -> float | None:
        """Return the critical batch size in samples; None if the estimate of |G|^2 is not positive, so noise dominates."""
        number = self.count
        if number < 2:
            return None
        small = sum(moments.truth_square for moments in self._moments) / number
        large = sum(_dot(moments.truth, moments.truth) for moments in self._moments) / number**2
        gradient, noise = two_batch_sizes(small, large, self.batch_size, number * self.batch_size)
        return noise / gradient if gradient > 0 else None


def two_batch_sizes(small: float, large: float, small_batch: int, large_batch: int) -> tuple[float, float]:
    """Return unbiased estimates of |G|^2 and tr(S) from the mean squared norms of gradients of two batch sizes."""
    gradient = (large_batch * large - small_batch * small) / (large_batch - small_batch)
    noise = (small - large) / (1 / small_batch - 1 / large_batch)
    return gradient, noise


def _dot(first: Tensor, second: Tensor) -> float:
    return float((first.double() * second.double()).sum())


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
"""The expected content of a run's file."""
UNUSED_EPOCH = 1_000_000
"""Epochs from here on are shuffles that no training run uses."""


class AlignedLoop(Loop):
    """A training loop that compares gradients at the batches `points` (counted from 0 over the run) and writes no files.

    If a point is not a GP batch, the next GP batch is measured, unless the run has none.
    """

    def __init__(self, session: Session, large_batch: int, points: Sequence[int]) -> None:
        super().__init__(session.trainer, session.task, session.rate, _NoFolder(Path()), epochs=session.config.epochs)
        self.count = max(2, -(-large_batch // session.config.batch_size))
        self.batch_size = session.config.batch_size
        self.due = list(points)
        self.any_phase = not self.trainer.schedule.sources
        self.measured: list[dict[str, Any]] = []

    def _train(self, inputs: Any, targets: Any, before: float, observer: Observer) -> None:
        if not self._is_point():
            super()._train(inputs, targets, before, observer)
            return
        sites = predicted_sites(self.trainer)
        step, number = self.trainer.at, self.trainer.done
        moved = to_device(inputs, self.device), to_device(targets, self.device)
        noise = NoiseStatistics(self.batch_size)
        truth, other, large = true_gradients(self.trainer, self.task, sites, moved, self.count, noise)
        with optimizer_gradients(self.trainer, sites) as gradients:
            super()._train(inputs, targets, before, observer)
        figures = {
            site.name: compare(gradients.get(site.index), *three)
            for site, three in zip(sites, zip(truth, other, large, strict=True), strict=True)
        }
        self.measured.append(
            {"done": number, "epoch": step.epoch, "batch": step.batch, "noise": noise.figures(), "sites": figures}
        )

    def _is_point(self) -> bool:
        """Return whether a point is due and the next batch has the right phase."""
        if not self.due or self.trainer.done < self.due[0]:
            return False
        if not (self.any_phase or self.trainer.phase is Phase.GP):
            return False
        self.due = [point for point in self.due if point > self.trainer.done]
        return True

    def _evaluate(self) -> dict[str, float]:
        return {}  # not needed

    def save(self) -> None:
        """Write no checkpoint."""


class _NoFolder(RunFolder):
    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        """Write nothing."""


def predicted_sites(trainer: Trainer) -> list[Site]:
    """Return the sites whose gradient comes from a source in the next batch; all sites, if none does."""
    plan, sites = trainer.plan, trainer.survey.sites
    return [site for site in sites if plan.source_of(site.name) != BACKPROP] or list(sites)


@contextmanager
def optimizer_gradients(trainer: Trainer, sites: Sequence[Site]) -> Iterator[dict[int, Tensor]]:
    """Collect the gradients that the optimizer gets, by the site's index; none if the batch is skipped."""
    gradients: dict[int, Tensor] = {}

    def collect(*_: Any) -> None:
        gradients.update(
            {site.index: site.weight.grad.detach().clone() for site in sites if site.weight.grad is not None}
        )

    handle = trainer.optimizer.register_step_pre_hook(collect)
    try:
        yield gradients
    finally:
        handle.remove()


def true_gradients(
    trainer: Trainer,
    task: Task,
    sites: Sequence[Site],
    batch: tuple[Any, Any],
    count: int,
    noise: NoiseStatistics | None = None,
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return the true gradients of `batch`, of another minibatch, and the mean of `count` others including that one.

    Running statistics, the sources' state and the random state are restored, so that training then sees `batch` with the same
    random numbers. `noise` gets the true gradients of the other minibatches, and in a GP batch also the predicted ones.
    """
    with restored_state(trainer):
        truth = gradients_of(trainer, task, sites, *batch)
        total: list[Tensor] = []
        other: list[Tensor] = []
        batches = 0
        for inputs, targets in islice(_other_batches(task, trainer.at), count):
            moved = to_device(inputs, trainer.device), to_device(targets, trainer.device)
            gradients = gradients_of(trainer, task, sites, *moved)
            if noise is not None:
                noise.add(gradients, predicted_gradients(trainer, task, sites, *moved))
            other = other or [gradient.clone() for gradient in gradients]
            total = [sum_ + gradient for sum_, gradient in zip(total, gradients, strict=True)] if total else gradients
            batches += 1
    return truth, other, [gradient / batches for gradient in total]


def gradients_of(trainer: Trainer, task: Task, sites: Sequence[Site], inputs: Any, targets: Any) -> list[Tensor]:
    """Return the true gradients of the sites' weights for a batch; zero for a site that the loss does not depend on."""
    with torch.enable_grad():
        output = trainer.model(*inputs) if isinstance(inputs, tuple) else trainer.model(inputs)
        loss = task.loss(output, targets)
        result = torch.autograd.grad(loss, [site.weight for site in sites], allow_unused=True)
    gradients: Sequence[Tensor | None] = result  # torch's own type leaves out None
    return [torch.zeros_like(site.weight) if g is None else g for site, g in zip(sites, gradients, strict=True)]


class _DiscardError(Exception):
    """Ends a batch that is not part of training."""


def predicted_gradients(
    trainer: Trainer, task: Task, sites: Sequence[Site], inputs: Any, targets: Any
) -> list[Tensor | None] | None:
    """Return what the sources would produce for a batch, without training on it; None unless the next batch is a GP batch."""
    if trainer.phase is not Phase.GP:
        return None
    gradients: list[Tensor | None] = []
    with suppress(_DiscardError), trainer.batch(targets) as batch:
        if not batch.skipped:
            output = trainer.model(*inputs) if isinstance(inputs, tuple) else trainer.model(inputs)
            batch.differentiate(task.loss(output, targets))
            batch.complete()
            gradients = [None if site.weight.grad is None else site.weight.grad.detach().clone() for site in sites]
        raise _DiscardError
    trainer.keep_gradients()
    return gradients or None


@contextmanager
def restored_state(trainer: Trainer) -> Iterator[None]:
    """Restore the model's buffers, the sources' state and the random state at the end."""
    buffers = [buffer.clone() for buffer in trainer.model.buffers()]
    states = [(source, deepcopy(source.state_dict())) for source in trainer.sources.values()]
    with torch.random.fork_rng([trainer.device] if trainer.device.type == "cuda" else []):
        yield
    with torch.no_grad():
        for buffer, before in zip(trainer.model.buffers(), buffers, strict=True):
            buffer.copy_(before)
    for source, state in states:
        source.load_state_dict(state)


def _other_batches(task: Task, at: Step) -> Iterator[tuple[Any, Any]]:
    """Yield batches of shuffles that training does not use, different at each step of the run."""
    epoch = UNUSED_EPOCH * (1 + at.epoch) + at.batch * 1000
    while True:
        yield from task.batches(epoch)
        epoch += 1


def compare(gradient: Tensor | None, truth: Tensor, other: Tensor, large: Tensor) -> dict[str, float | None]:
    """Return the figures of one site; None without a produced gradient, and for the cosine of a zero gradient."""
    figures: list[Tensor | None] = [None] * 4
    if gradient is not None:
        norms = gradient_norms([gradient, truth, large]).double()
        figures = [cosine(gradient, truth), norms[0] / norms[1], cosine(gradient, large), norms[0] / norms[2]]
    figures += [cosine(truth, other), cosine(truth, large)]
    numbers = [None if value is None or not bool(value.isfinite()) else float(value) for value in figures]
    return dict(zip(FIGURES, numbers, strict=True))


def choose_points(session: Session, count: int) -> list[int]:
    """Return `count` batches (or fewer, in a short run), evenly spaced over the run's GP batches.

    They are spaced over all batches if there are no GP batches, or if an adaptive schedule does not fix them in advance.
    """
    trainer, config = session.trainer, session.config
    total = config.batches or config.epochs * trainer.batches_per_epoch
    numbers = list(range(total))
    if not trainer.schedule.adapts:
        steps = (Step(*divmod(number, trainer.batches_per_epoch)) for number in numbers)
        phases = [trainer.schedule.phase(step) for step in steps]
        numbers = [number for number in numbers if phases[number] is Phase.GP] or numbers
    return sorted({numbers[(2 * point + 1) * len(numbers) // (2 * count)] for point in range(count)})


def align(session: Session, large_batch: int, points: int, stop: Stop = never) -> dict[str, Any]:
    """Train a whole run and return the measurements."""
    chosen = choose_points(session, points)
    loop = AlignedLoop(session, large_batch, chosen)
    if not loop.run(ShareObserver(session), stop):
        raise Stopped
    return {
        "method": session.config.method,
        "seed": session.config.seed,
        "batches": session.config.batches,
        "minibatches_in_large_batch": loop.count,
        "points": loop.measured,
    }


@dataclass(frozen=True)
class AlignmentJob:
    """Measures one run and writes the file `result`; nothing if it is stopped."""

    config: TrainConfig
    large_batch: int
    points: int
    result: Path
    data_dir: Path | None = None

    def __call__(self, stop: Stop = never) -> None:
        """Train and measure."""
        session = Session(self.config, data_dir=self.data_dir, threads=1)
        content = align(session, self.large_batch, self.points, stop)
        self.result.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.result, (to_json(content, indent=2) + "\n").encode())
