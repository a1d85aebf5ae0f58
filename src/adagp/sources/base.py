"""The contract of a gradient source.

The engine calls every source in this order::

    bind(sites, norms)                  once, when a trainer is made
    prepare(shapes)                     once, if there was a trial forward pass: raise here on shapes that cannot work
    for each batch:
        begin(context)                  the facts known before the forward pass
        see_targets(targets)            if it `needs_targets` and each micro-batch has its own targets
        enter(call)                     if it `needs_error`: a forward call of the model begins
        watch(site, inputs, output)     in every forward call of a site that it serves or learns from
        leave(call, outputs)            if it `needs_error`, in BP batches only: that call is over
        observe_error(call)             if it `needs_error`: the loss's gradients at the outputs of that call are known
        join(sites)                     if several processes train on shares of the batch: exchange what they have seen
        produce(sites)                  return the weight gradients of the sites whose plan names this source
        sizes(gradients)                return the norms of these gradients, for the guard
        prepare_learning(sites, ...)    if it `learns`: see the true gradients of sites trained by backprop; the returned
                                        function is called when the optimizer steps, by default observe(sites, gradients)
        accept()                        the optimizer steps: the batch will not be discarded; or
        discard()                       the batch is discarded: it failed, or the user abandoned it
        forget()                        the batch is over
    end_epoch()                         after the last batch of an epoch

Your own source is a subclass. Pass an object to `attach(sources={"name": ...})` and use its name in a schedule; or make the
class a method of the command line, as `--method package.module:Class` or under a short name (`adagp.register_method`).
"""

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Size, Tensor

from adagp.core.methods import AcceleratorWork, Method, find_source
from adagp.core.options import Option, keyword_options
from adagp.core.plan import Step
from adagp.core.registry import import_reference
from adagp.errors import OptionError, UsageError
from adagp.layers.sites import Site
from adagp.layers.weights import norms as whole_norms
from adagp.sources.demand import Demand, TrialCall


class RunningNorms:
    """The Euclidean norm of each site's true weight gradient, averaged over its recent BP batches.

    It is a plain mean until `1 / (1 - decay)` batches were seen, exponential forgetting after that, and 0 before the first. The
    newest norms are stored as well, so that no source has to compute them again.
    """

    def __init__(self, sites: Sequence[Site], decay: float = 0.95) -> None:
        device = sites[0].weight.device if sites else torch.device("cpu")
        self.decay = decay
        self.values = torch.zeros(len(sites), dtype=torch.float32, device=device)
        self.counts = torch.zeros(len(sites), dtype=torch.float32, device=device)
        self._newest = torch.zeros(len(sites), dtype=torch.float32, device=device)

    @torch.no_grad()
    def update(self, sites: Sequence[Site], norms: Tensor) -> None:
        """Add the norms of one batch's true gradients, in the order of `sites`."""
        chosen = indices(sites, self.values.device)
        counts = self.counts[chosen] + 1
        share = (1 / counts).clamp(min=1 - self.decay)
        norms = norms.to(self.values)
        # New tensors, so that `rollback` can restore the old ones.
        self.values = self.values.index_add(0, chosen, share * (norms - self.values[chosen]))
        self.counts = self.counts.index_copy(0, chosen, counts)
        self._newest = self._newest.index_copy(0, chosen, norms)

    def rollback(self) -> Callable[[], None]:
        """Return a function that restores the present norms."""
        before = self.values, self.counts, self._newest

        def restore() -> None:
            self.values, self.counts, self._newest = before

        return restore

    def of(self, sites: Sequence[Site]) -> Tensor:
        """Return the running norms of `sites`, in their order."""
        return self.values[indices(sites, self.values.device)]

    def newest(self, sites: Sequence[Site]) -> Tensor:
        """Return the norms of the last true gradients of `sites`, in their order."""
        return self._newest[indices(sites, self.values.device)]

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and the number of batches in each."""
        return {"values": self.values.clone(), "counts": self.counts.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.values.copy_(state["values"])
        self.counts.copy_(state["counts"])


def indices(sites: Sequence[Site], device: torch.device) -> Tensor:
    """Return the positions of `sites` among the model's sites as an index tensor."""
    return torch.tensor([site.index for site in sites], device=device)


@dataclass(frozen=True)
class BatchContext:
    """The facts about a batch that a source gets before its forward pass.

    `replaced` are the sites whose weight gradient comes from a source in this batch. `targets` are those that the user passed,
    for sources that need them. The loss is multiplied by `scale` before it is differentiated (mixed precision), so gradients
    that a source sees during the backward pass are multiplied, too. `measured`: predictions for the sites trained by backprop
    will be requested as well, to be compared with the true gradients. `several`: other processes train on other samples of the
    batch, so `join` will be called.
    """

    step: Step
    replaced: frozenset[Site] = frozenset()
    targets: Any = None
    scale: float = 1.0
    measured: bool = False
    several: bool = False


class ModelCall:
    """One forward call of the model, and the gradients of the loss at its outputs (`errors`).

    `errors` has one entry for each watched output: None before the backward pass, and if the loss does not depend on that
    output. The loss was multiplied by `scale`; errors are divided by it. `outputs` has the values of the outputs if
    `keeps_outputs`.
    """

    def __init__(self) -> None:
        self.scale = 1.0
        self.keeps_outputs = False
        self.shapes: list[Size] = []
        self.outputs: list[Tensor] = []
        self.errors: list[Tensor | None] = []

    def open(self, outputs: Sequence[Tensor]) -> None:
        """Record the shapes of the outputs, and their values if these are needed."""
        self.shapes = [output.shape for output in outputs]
        self.outputs = [output.detach() for output in outputs] if self.keeps_outputs else []
        self.errors = [None] * len(outputs)

    def receive(self, index: int, error: Tensor) -> None:
        """Add the gradient of the scaled loss at output number `index`. Gradients of one output add up."""
        before, error = self.errors[index], error.detach() / self.scale
        self.errors[index] = error if before is None else before + error

    @property
    def known(self) -> bool:
        """Whether the loss's gradient at one of the outputs is known."""
        return any(error is not None for error in self.errors)


def missing_error(source: str) -> UsageError:
    """Return the error for a batch whose loss does not depend on the outputs that `source` looks at."""
    return UsageError(
        f"source '{source}' needs the error at the model's output, but none reached it: call the model itself (not parts of "
        "it, and not its forward()), and compute the loss from what it returns. A model that was compiled and called before "
        "adagp.attach runs without its hooks: attach first. If the model computes the loss itself, name the layer whose "
        "output the loss is computed from: adagp.attach(output='head') if that is model.head."
    )


@dataclass(frozen=True)
class RunFacts:
    """The facts about a run that `Source.build` gets."""

    seed: int = 0
    epochs: int = 1


Rounds = Iterator[list[Tensor]]
"""Lists of tensors. The caller replaces each tensor, in place, by its sum over the processes before it draws the next list."""


def in_step(exchanges: Iterable[Rounds]) -> Rounds:
    """Yield the first rounds of all exchanges as one list, then the second ones, until all exchanges have ended."""
    waiting = list(exchanges)
    while waiting:
        drawn = [(exchange, next(exchange, None)) for exchange in waiting]
        waiting = [exchange for exchange, tensors in drawn if tensors is not None]
        tensors = [tensor for _, yielded in drawn if yielded is not None for tensor in yielded]
        if tensors:
            yield tensors


class Source(ABC):
    """Produces the weight gradients of some sites for a batch."""

    own_options: ClassVar[tuple[Option, ...]] = ()
    """The options of your own method: the command line lists them, and `build` gets their values."""
    own_schedule: ClassVar[str] = "ladder"
    """The default schedule of your own method."""
    own_parallel: ClassVar[tuple[str, ...]] = ()
    """The kinds of parallel runs (data, fsdp, pipeline) of your own method; for pipeline it must be a `PipelineSource`."""
    accelerator: ClassVar[AcceleratorWork | None] = None
    """The work that your own method causes on an accelerator; None: it cannot be simulated."""

    learns: bool = False
    """Whether it watches and observes the sites of BP batches."""
    needs_targets: bool = False
    """Whether it uses the targets: `Trainer.batch(targets=...)` must then get them."""
    needs_error: bool = False
    """Whether it needs the gradient of the loss at the model's output, in GP batches too. The model still runs without
    autograd there; only the loss is differentiated."""
    needs_outputs: bool = False
    """Whether it also needs the values of the model's outputs (`ModelCall.outputs`)."""
    needs_backward: bool = False
    """Whether the sites that it serves need a backward pass through the layers above them."""
    sums_samples: bool = False
    """Whether its gradient is a sum over samples, scaled for whole batches, so that a part of a batch has a smaller one."""
    needs_shapes: bool = False
    """Whether it checks the sites' output shapes before training."""
    skips: bool = False
    """Whether a batch that it serves is not run at all, not even forward."""
    joins: bool = False
    """Whether processes that train on shares of a batch all produce the gradients of the whole batch after `join`. If not, the
    engine averages their gradients."""
    local: bool = False
    """Whether it takes each weight's gradient at the calls of its own layer, without other uses of the weight."""
    traceable: bool = False
    """Whether torch's compiler may compile `watch` into the model's code. If not, the compiled model is interrupted at each
    site, as a source that hooks gradients (`on_gradient`) requires."""
    takes_sharded: bool = False
    """Whether `observe` accepts sharded gradients (see `adagp.layers.weights`). If not, they are gathered before."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "observe" in vars(cls) and cls.prepare_learning not in (
            Source.prepare_learning,
            vars(cls).get("prepare_learning"),
        ):
            raise UsageError(
                f"{cls.__name__} overrides observe(), which is not called: {cls.__mro__[1].__name__} learns in "
                "prepare_learning(). Override that one."
            )
        if "takes_spread" in vars(cls):
            warnings.warn("Source.takes_spread is now Source.takes_sharded.", DeprecationWarning, stacklevel=2)
            cls.takes_sharded = vars(cls)["takes_spread"]

    @classmethod
    def build(cls, run: RunFacts, **options: Any) -> Self:
        """Return the source for a run. `options` are those of its method; by default they are passed to the constructor."""
        return cls(**options)

    @property
    def measures(self) -> bool:
        """Whether it wants to produce predictions in the coming BP batch as well, before it learns from the batch."""
        return False

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:  # noqa: B027  # not every source needs it
        """Store the model's sites and the running norms of their true gradients, which the engine updates."""

    def prepare(self, shapes: Mapping[Site, Size]) -> None:  # noqa: B027
        """Check or store the output shape that each site it may serve had in a trial forward pass of one batch."""

    def check_call(self, call: TrialCall, outputs: Sequence[Size]) -> None:  # noqa: B027
        """Raise if it cannot serve a call of a site in a trial forward pass; `outputs` are the sizes of the model's outputs."""

    def demand(self, calls: Sequence[TrialCall], outputs: Sequence[Size]) -> Demand | None:
        """Return the memory and the work that it takes in batches like the trial's; None: unknown. Called after `bind`."""
        return None

    def begin(self, context: BatchContext) -> None:  # noqa: B027
        """Prepare for a batch."""

    def see_targets(self, targets: Any) -> None:  # noqa: B027
        """See the targets of the coming micro-batch, which replace those of the whole batch."""

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:  # noqa: B027
        """See one forward call of `site`. Keep something small: activations are freed as the forward pass continues.

        If a tensor is returned, it replaces the output; it must have the same values.
        """

    def enter(self, call: ModelCall) -> None:  # noqa: B027
        """Assign the sites' calls that are watched from now on to `call` of the model."""

    def leave(self, call: ModelCall, outputs: Sequence[Tensor]) -> None:  # noqa: B027
        """See the watched outputs of `call`, with their graph, before a loss is computed from them."""

    def observe_error(self, call: ModelCall) -> None:  # noqa: B027
        """See the loss's gradients at the outputs of `call`, samples first.

        It is called before any gradient at a site's output is known.
        """

    def join(self, sites: Sequence[Site]) -> Rounds:
        """Exchange what the processes have seen of their shares of the batch, so that each knows about the whole batch.

        Yields lists of tensors, which the engine adds up over the processes, in place. In each round, all processes must yield
        the same number of tensors in the same shapes. `sites` are those that the source serves or learns from in this batch,
        whether they were called here or not.
        """
        return iter(())

    @abstractmethod
    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return each site's weight gradient in the shape of its weight; None for a site that was not called.

        The gradient of a sharded weight may be sharded like the weight, or whole: the engine then keeps this process's shard.
        The tensors become the weights' `.grad`, without a copy, and the optimizer or clipping may change them in place. So
        return new memory, or memory that the next batch overwrites; never a tensor whose values are used again.
        """

    def sizes(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the norms of the gradients that `produce` has just returned.

        A source that has computed them already overrides this, so that the gradients need not be read again.
        """
        return whole_norms(gradients)

    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:  # noqa: B027
        """Learn from the true gradients of a batch that was watched. They are changed in place later: copy what is kept.

        The running norms already include these gradients.
        """

    def prepare_learning(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> Callable[[], None]:
        """See the true gradients of a batch that was watched; return a function that learns from them.

        The function is called when the optimizer steps, and not at all if the batch is discarded before. Until then the user
        may change the gradients in place (clipping), so `observe` gets copies. A source that can do without copies overrides
        this.
        """
        copies = [gradient.detach().clone() for gradient in gradients]
        return lambda: self.observe(sites, copies)

    def accept(self) -> None:  # noqa: B027
        """Accept the batch: its optimizer steps, so it will not be discarded."""

    def discard(self) -> None:  # noqa: B027
        """Undo what this batch has changed: it is discarded. `forget` is called next."""

    def forget(self) -> None:  # noqa: B027
        """Drop what was watched in this batch."""

    def end_epoch(self) -> None:  # noqa: B027
        """End an epoch."""

    def replicated(self) -> Iterable[Tensor]:
        """Return the learned tensors that must be equal in all processes of a parallel run, which compares them."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue exactly, as tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Restore what `state_dict` returned."""


def build_source(method: Method, run: RunFacts, options: Mapping[str, Any] | None = None) -> Source:
    """Return the source of `method` for a run; options of the method that are not in `options` have their defaults."""
    source_class = _source_class(method)
    return source_class.build(run, **keyword_options(method.options, options or {}))


def default_source(name: str) -> Source:
    """Return the source that is called `name` in plans, made by its constructor without arguments."""
    return _source_class(find_source(name))()


def _source_class(method: Method) -> type[Source]:
    assert method.builds is not None, "plain backprop has no source"
    source_class = import_reference(method.builds, what="a method of your own", kind="Class")
    if not (isinstance(source_class, type) and issubclass(source_class, Source)):
        raise OptionError(
            f"'{method.builds}' is not a source of gradients: it must be a class derived from adagp.Source."
        )
    return source_class


def step_generator(seed: int, step: Step, device: torch.device | None = None) -> torch.Generator:
    """Return a generator for the batch at `step`; those of other steps, and other uses of the seed, are independent of it."""
    key = f"source {seed} {step.epoch} {step.batch}"
    number = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
    return torch.Generator(device or "cpu").manual_seed(number)


_hooks_off = 0


@contextmanager
def gradient_hooks_off() -> Iterator[None]:
    """Ignore the gradients that are computed inside the context: they are not part of training."""
    global _hooks_off
    _hooks_off += 1
    try:
        yield
    finally:
        _hooks_off -= 1


@contextmanager
def gradient_hooks_on() -> Iterator[None]:
    """Call the hooks of `on_gradient` inside the context, also within `gradient_hooks_off`."""
    global _hooks_off
    before, _hooks_off = _hooks_off, 0
    try:
        yield
    finally:
        _hooks_off = before


def weigh_gradient(output: Tensor, weights: Tensor) -> None:
    """Multiply the loss's gradient at `output` by a weight for each sample, in the backward pass of training."""
    if len(output) != len(weights):
        raise UsageError(
            f"{len(weights)} samples were selected by their errors, but the model returned {len(output)} rows: run them in one "
            "forward pass, without micro-batches, and let the first axis of what the model returns be the samples."
        )

    def hook(gradient: Tensor) -> Tensor | None:
        if _hooks_off:
            return None
        return gradient * weights.to(gradient).view(-1, *[1] * (gradient.dim() - 1))

    output.register_hook(hook)


def on_gradient(output: Tensor, receive: Callable[[Tensor], None]) -> Tensor:
    """Call `receive` with the loss's gradient at `output` in the backward pass; return the tensor to continue with.

    If `output` needs no gradient, because nothing below it does, a new graph begins there. The returned tensor is then a copy
    of the new leaf: the layers above may change their input in place, which torch forbids for a leaf.

    `receive` must not refer to `output`: a tensor with a hook that refers to the tensor is never freed.
    """

    def hook(gradient: Tensor | None) -> None:
        # None: an autograd function above returns no gradient, as for an argument that it does not use.
        if _hooks_off or gradient is None:
            return
        with torch.autocast(gradient.device.type, enabled=False):  # a backward pass may run under autocast
            receive(gradient.detach())

    if output.requires_grad:
        output.register_hook(hook)
        return output
    if not torch.is_grad_enabled():
        return output
    leaf = output.detach().requires_grad_()
    leaf.register_hook(hook)
    return leaf.clone()


class SplitSource(Source):
    """A source that corrects the true gradients of a part of the batch by predictions for all of it.

    For each batch that it serves the engine calls::

        split(step, samples)            which samples are trained by backprop
        begin, watch, produce, forget   for the samples that are predicted only, as in a GP batch
        begin, watch, produce           for the others, as in a BP batch whose predictions are compared with the truth
        corrections(...)                what is added to the true gradients
        (learning)                      from the second part, when the optimizer steps

    A source that `selects` looks at the errors of the whole batch first: all samples are predicted, then `select(step)` chooses
    some to train by backprop, and how much each counts.
    """

    selects: bool = False

    @abstractmethod
    def split(self, step: Step, samples: int) -> tuple[Tensor, Tensor] | None:
        """Return the indices of the samples to train by backprop, and of the others; None: all by backprop."""

    def select(self, step: Step) -> tuple[Tensor, Tensor]:
        """Return the indices of the samples to train by backprop, and the weight of each in the gradient; see `selects`.

        With weights of 1 the gradient is the mean over the chosen samples.
        """
        raise NotImplementedError

    @abstractmethod
    def corrections(
        self, sites: Sequence[Site], predicted: Sequence[Tensor], predicted_rest: Sequence[Tensor], share: float
    ) -> list[Tensor]:
        """Return the correction that is added to each site's true gradient, the mean over a `share` of the batch's samples.

        `predicted` are the predictions for the same samples, `predicted_rest` those for the others. If the source `selects`,
        `predicted_rest` are those for the whole batch, and `share` is 0.
        """
