"""The contract of a gradient source.

The engine calls a source in this order, and never asks which one it has::

    bind(sites, norms)                  once, when a trainer is made
    prepare(shapes)                     once, where a trial forward pass was made: refuse here what cannot work
    for each batch:
        begin(context)                  what may be known before the forward pass
        watch(site, inputs, output)     in every forward call of a site it serves (or learns from)
        observe_error(error)            the loss's gradient at the model's output, if it `needs_error`
        produce(sites)                  sites whose plan names it: give their weight gradients
        sizes(gradients)                the norms of these, for the guard
        observe(sites, gradients)       sites trained by backprop: learn from the truth, if it learns
        forget()                        the batch is over
    end_epoch()                         after the last batch of an epoch

A source of your own is a subclass. Give it to `attach(sources={"name": ...})`, where a schedule names it; or make it a
method of the command line, as `--method package.module:Class` or under a name of its own (`adagp.register_method`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Size, Tensor

from adagp.methods import AcceleratorWork
from adagp.options import Option
from adagp.plan import Step
from adagp.predictor.layout import gradient_norms
from adagp.sites import Site
from adagp.sources.support.norms import RunningNorms


@dataclass(frozen=True)
class BatchContext:
    """What a source may know of a batch before its forward pass.

    `replaced` are the sites whose weight gradient comes from a source in this batch. `targets` are what the user gave, for
    sources that need them. The loss is multiplied by `scale` before it is differentiated (mixed precision), so gradients
    that a source sees during the backward pass are too. `measured` says that predictions for the sites trained by backprop
    will be asked for as well, to be compared with the truth.
    """

    step: Step
    replaced: frozenset[Site] = frozenset()
    targets: Any = None
    scale: float = 1.0
    measured: bool = False


@dataclass(frozen=True)
class RunFacts:
    """What a source may know of the run that it is built for."""

    seed: int = 0
    epochs: int = 1


class Source(ABC):
    """Gives the weight gradients of some sites for a batch."""

    own_options: ClassVar[tuple[Option, ...]] = ()
    """The options of a method of your own, which the command line then has and `build` gets."""
    own_schedule: ClassVar[str] = "ladder"
    """The schedule of a method of your own where none is given."""
    accelerator: ClassVar[AcceleratorWork | None] = None
    """What a method of your own makes an accelerator do; None: it cannot be simulated."""

    learns: bool = False
    """Whether it wants to watch and observe the sites of BP batches."""
    needs_targets: bool = False
    """Whether it looks at the targets: `Trainer.batch(targets=...)` must be given them."""
    needs_error: bool = False
    """Whether it wants the gradient of the loss at the model's output, in GP batches too. The model still runs without
    autograd there; only the loss is differentiated."""
    needs_backward: bool = False
    """Whether the sites that it serves need a backward pass through the layers above them."""
    needs_shapes: bool = False
    """Whether it can tell from the sites' output shapes, before training, that it cannot work."""
    skips: bool = False
    """Whether a batch that it serves is not run at all, not even forward."""

    @classmethod
    def build(cls, run: RunFacts, **options: Any) -> Self:
        """Return the source for a run, with the options of its method: by default, as arguments of the constructor."""
        return cls(**options)

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:  # noqa: B027  # not every source needs it
        """Get to know the sites, and the running norms of their true gradients, which the engine keeps up to date."""

    def prepare(self, shapes: Mapping[Site, Size]) -> None:  # noqa: B027
        """See the output shape of each site that it may serve, in a trial forward pass of one batch."""

    def begin(self, context: BatchContext) -> None:  # noqa: B027
        """Prepare for a batch."""

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:  # noqa: B027
        """See one forward call of `site`. Keep something small: activations are freed as the forward pass continues.

        A tensor that is returned takes the place of the output; it must have the same values.
        """

    def observe_error(self, error: Tensor) -> None:  # noqa: B027
        """See the loss's gradient at the model's output, samples first, before any gradient at a site's output is known."""

    @abstractmethod
    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return each site's weight gradient in the shape of its weight; None where the site was not called.

        The tensors become the weights' `.grad`: the optimizer, or clipping, may change them in place. So return new memory,
        or memory that the next batch overwrites; never a tensor whose values are used again. The engine makes no copy.
        """

    def sizes(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the norms of the gradients that it has just given.

        A source that knows them beforehand saves reading the gradients once more.
        """
        return gradient_norms(gradients)

    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:  # noqa: B027
        """Learn from the true gradients of a batch that was watched. They are changed in place later: copy what is kept.

        The running norms have taken these gradients in before.
        """

    def forget(self) -> None:  # noqa: B027
        """Drop what was watched in this batch."""

    def end_epoch(self) -> None:  # noqa: B027
        """Take note that an epoch is over."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue exactly, as tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Take over what `state_dict` returned."""
