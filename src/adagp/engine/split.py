"""A batch in two parts, each under a plan of its own: one is predicted only, the other is trained by backprop as well.

    for inputs, targets in batch.parts(inputs, targets):
        batch.backward(loss_fn(model(inputs), targets))
    batch.step()

The predicted part comes first: its forward pass keeps nothing for a backward pass, and both parts are predicted before the
source learns from the second. Each loss is a mean over the samples of its part.

A source that selects samples by their errors has the whole batch as its predicted part. The samples that it then selects run
again, and their errors are weighted at the model's outputs. So any loss works that is a mean over samples.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from adagp.core.plan import BACKPROP_ALL, Plan, Step
from adagp.engine.batch import Batch
from adagp.engine.batch_plan import FrozenParameters, TrainingSetup
from adagp.engine.hooks import Listeners, leaves, replaced
from adagp.errors import UsageError
from adagp.layers.sites import Site
from adagp.layers.weights import norms, sharded_like
from adagp.sources.base import BatchContext, SplitSource


class PredictedPart(Batch):
    """Samples that are predicted only: a GP batch whose gradients are kept instead of applied."""

    predictions: dict[Site, Tensor]

    def _take(self) -> None:
        produced = [self._produce(self._setup.sources[name], sites) for name, sites in self._work.served.items()]
        # Copies: the memory belongs to the source, which produces again for the other part.
        self.predictions = {site: gradient.clone() for pairs, _ in produced for site, gradient in pairs}


class TruePart(Batch):
    """Samples that are trained by backprop, and predicted as well. There are no predictions if gradients overflowed.

    The error of each sample is multiplied by its weight in `weights` (None: 1), for true and predicted gradients alike.
    """

    def __init__(
        self, setup: TrainingSetup, step: Step, targets: Any, source: SplitSource, weights: Tensor | None = None
    ) -> None:
        self._source = source
        self._weights = weights
        self.predictions: dict[Site, Tensor] = {}
        super().__init__(setup, BACKPROP_ALL, step, targets)

    @property
    def listeners(self) -> Listeners:
        """What the hooks call, with the weights of the samples."""
        return replace(super().listeners, error_weights=self._weights)

    def _context(self, step: Step, targets: Any) -> BatchContext:
        return replace(super()._context(step, targets), measured=bool(self._work.learners))

    def _predict(self, sites: Sequence[Site]) -> list[list[Tensor | None]]:
        predictions = super()._predict(sites)
        gradients: Sequence[Tensor | None] = predictions[self._work.learners.index(self._source)]
        processes = self._setup.processes
        if processes.several and not self._source.joins:
            gradients = processes.average([site.weight for site in sites], gradients)
        pairs = zip(sites, gradients, strict=True)
        self.predictions = {site: gradient for site, gradient in pairs if gradient is not None}
        return predictions


class SplitBatch(Batch):
    """A batch that a `SplitSource` serves. `within(part)` is a context in which model and autograd are prepared for a part.

    The guard checks the corrections that are added to the true gradients. If it rejects one, the site keeps the true gradient
    of its part of the batch, which is right on average, too; so `guarded` is never True. Parameters that belong to no site
    always get that gradient.
    """

    def __init__(
        self,
        setup: TrainingSetup,
        plan: Plan,
        step: Step,
        targets: Any,
        source: SplitSource,
        within: Callable[[Batch], AbstractContextManager[None]],
    ) -> None:
        super().__init__(setup, plan, step, targets)
        self.plan = replace(plan, hold_rest=False)  # nothing is frozen in the end
        self.frozen = FrozenParameters(())  # each part freezes its own
        self._source = source
        self._within = within
        self._part: Batch | None = None
        self._exits = ExitStack()
        self._order: Tensor | None = None
        self._sizes: tuple[int, int] = (0, 0)

    @property
    def needs_backward(self) -> bool:
        """True: the second part has a backward pass."""
        return True

    def parts(self, inputs: Any, targets: Any) -> Iterator[tuple[Any, Any]]:
        """Yield inputs and targets of each part of the batch; call `backward` with the part's loss before the next part."""
        step = self.context.step
        samples = _samples(inputs)
        split = self._source.split(step, samples)
        if split is None:
            true = Batch(self._setup, BACKPROP_ALL, step, targets)
            with self._running(true, last=True):
                yield inputs, targets
            self._take_over(true, true.loss)
            return
        chosen, others = split
        part, weights, share = (inputs, targets), None, 0.0
        if not self._source.selects:
            self._order, self._sizes = torch.cat([others, chosen]).argsort(), (len(others), len(chosen))
            part, share = _selected((inputs, targets), others, samples), len(chosen) / samples
        predicted = PredictedPart(self._setup, replace(self.plan, hold_rest=True), step, part[1])
        with self._running(predicted):
            yield part
        if self._source.selects:
            chosen, weights = self._source.select(step)
        part = _selected((inputs, targets), chosen, samples)
        true_part = TruePart(self._setup, step, part[1], self._source, weights)
        with self._running(true_part, last=True):
            yield part
        assert predicted.loss is not None, "its backward() was called"
        assert true_part.loss is not None, "its backward() was called"
        self._take_over(true_part, share * true_part.loss + (1 - share) * predicted.loss)
        self._correct(true_part.predictions, predicted.predictions, share)

    def joined(self, outputs: Sequence[Any]) -> Any:
        """Return what the model returned for the parts as one, detached, samples in the order of the batch."""
        if self._order is None:
            return outputs[0]
        trees = [list(leaves(output)) for output in outputs]
        whole = {id(last): self._joined_tensor(first, last) for first, last in zip(*trees, strict=True)}
        return replaced(outputs[1], whole)

    def backward(self, loss: Tensor | None = None, *, more: bool = False) -> None:
        """Run the backward pass of the present part; see `Batch.backward`."""
        self._current.backward(loss, more=more)

    def differentiate(
        self, loss: Tensor | None, backward: Callable[[Tensor], object] = lambda scaled: scaled.backward()
    ) -> None:
        """Run autograd for the present part."""
        self._current.differentiate(loss, backward)

    def complete(self, agree: Callable[[bool], bool] = bool) -> None:
        """Let the sources learn from, or produce for, the present part."""
        self._current.complete(agree)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the model's calls from all sources inside the context, and unfreeze its parameters."""
        with super().paused() if self._part is None else self._part.paused():
            yield

    def discard(self) -> None:
        """Undo what this batch has done, except for steps of the optimizer."""
        if self._part is not None:
            self._part.discard()
        super().discard()

    def end_part(self) -> None:
        """Leave the present part, if there is one."""
        self._part = None
        self._exits.close()

    @property
    def _current(self) -> Batch:
        if self._part is None:
            raise UsageError(
                f"source '{self.plan.default}' trains a part of each batch by backprop and predicts the rest: use "
                "trainer.step, or in a loop of your own `for inputs, targets in batch.parts(inputs, targets)`, with a "
                "backward() for each."
            )
        return self._part

    @contextmanager
    def _running(self, part: Batch, *, last: bool = False) -> Iterator[None]:
        """Run a part inside the context. Sources keep what they saw of the last part until the batch ends, to learn from it."""
        self._exits.enter_context(self._within(part))
        self._part = part
        try:
            yield
            if not part.has_gradients:
                raise UsageError("the loss of a part of the batch is missing: call backward(loss) for each part.")
        except BaseException:
            self.end_part()
            raise
        self._part = None
        if not last:
            self._exits.close()

    def _take_over(self, true: Batch, loss: Tensor | None) -> None:
        """Take what `step` and the schedule need from the part that was trained by backprop."""
        self.loss = loss
        self._scaled, self._called, self._agreement = true._scaled, true._called, true._agreement
        self._updates += true._updates
        self._rollbacks += true._rollbacks
        self._has_gradients = True

    @torch.no_grad()
    def _correct(self, predicted: dict[Site, Tensor], rest: dict[Site, Tensor], share: float) -> None:
        """Add the corrections that pass the guard to the true gradients."""
        sites = [site for site in predicted if site in rest and site.weight.grad is not None]
        if not sites:
            return
        setup = self._setup
        both = [predicted[site] for site in sites], [rest[site] for site in sites]
        corrections = self._source.corrections(sites, *both, share)
        allowed = setup.guard.allowed(sites, norms(corrections), setup.norms)
        self._note_rejected(sites, allowed)
        for site, correction in compress(zip(sites, corrections, strict=True), allowed):
            assert site.weight.grad is not None
            site.weight.grad.add_(sharded_like(correction, site.weight))

    def _joined_tensor(self, first: Tensor, last: Tensor) -> Tensor:
        if (first.dim() and len(first), last.dim() and len(last)) != self._sizes:
            return last  # it does not have one number, or row, for each sample
        assert self._order is not None, "there are two parts"
        return torch.cat([first.detach(), last.detach()]).index_select(0, self._order.to(last.device))


def _samples(inputs: Any) -> int:
    for tensor in leaves(inputs):
        if tensor.dim():
            return len(tensor)
    raise UsageError("a batch is split along the first axis of its inputs, but there is no tensor in them.")


def _selected(tree: Any, indices: Tensor, samples: int) -> Any:
    """Return some samples of inputs or targets: tensors, also in tuples, lists, mappings and dataclasses."""
    selected = {}
    for tensor in leaves(tree):
        if not tensor.dim() or len(tensor) != samples:
            raise UsageError(
                f"a batch of {samples} samples is split along the first axis of its inputs and targets; one of them has the "
                f"shape {tuple(tensor.shape)}."
            )
        part = tensor.index_select(0, indices.to(tensor.device))
        selected[id(tensor)] = part.contiguous(memory_format=torch.channels_last) if _is_image(tensor) else part
    return replaced(tree, selected)


def _is_image(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)
