"""Checks of the user's model, gradients and loss after `attach`, which raise or warn; and the result of a rehearsal."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adagp.errors import AdagpWarning, ModelError, UsageError
from adagp.layers.sites import Site, Survey

SMALL_GRADIENT = 4096
"""The size of the largest gradient that is remembered whole, in numbers."""
SAMPLED_GRADIENTS = 3
"""How many of the smallest gradients are remembered, to detect changes."""
GradientId = tuple[int, int]
"""The address of a gradient and its version: enough to recognise it."""
ATTACH_AGAIN = "Call trainer.detach() and adagp.attach() again after such a change."


class AttachedModel:
    """Recognises layers and weights that were replaced after `attach`, and parameters that are trained only since then."""

    def __init__(self, model: nn.Module, survey: Survey, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._model = model
        self._sites = survey.sites
        self._links = _links(model, survey.sites)
        self._optimizers = optimizers
        optimized = self._optimized()
        self._untrained = [
            (name, parameter)
            for name, parameter in model.named_parameters()
            if not (parameter.requires_grad and id(parameter) in optimized)
        ]

    def check(self) -> None:
        """Raise if a site's layer or weight was replaced since `attach`; warn once of parameters that are trained only now."""
        if any(children.get(name) is not child for children, name, child in self._links):
            self._check_reachable()
        for site in self._sites:
            if not site.is_sharded and site.module._parameters.get("weight") is not site.weight:
                raise ModelError(
                    f"the weight of layer '{site.name}' is not the parameter that attach() saw: it was replaced, parametrized "
                    f"or pruned. {ATTACH_AGAIN}"
                )
        self._warn_of_newly_trained()

    def _warn_of_newly_trained(self) -> None:
        unfrozen = [(name, parameter) for name, parameter in self._untrained if parameter.requires_grad]
        optimized = self._optimized() if unfrozen else frozenset()
        trained = [name for name, parameter in unfrozen if id(parameter) in optimized]
        if trained:
            self._untrained = []
            more = f" and {len(trained) - 1} more" if len(trained) > 1 else ""
            warnings.warn(
                f"parameter '{trained[0]}'{more} was frozen, or in no optimizer, when attach() ran and is trained now: by "
                "backprop in BP batches, not at all in GP batches. To have it predicted, attach again.",
                AdagpWarning,
                stacklevel=2,
            )

    def _optimized(self) -> frozenset[int]:
        groups = (group for optimizer in self._optimizers for group in optimizer.param_groups)
        return frozenset(id(parameter) for group in groups for parameter in group["params"])

    def _check_reachable(self) -> None:
        """Raise if the layer of a site is not part of the model any more; a layer that was wrapped still is."""
        present = set(self._model.modules())
        for site in self._sites:
            if site.module not in present:
                raise ModelError(f"layer '{site.name}' was replaced after attach(). {ATTACH_AGAIN}")
        self._links = []


def _links(model: nn.Module, sites: Iterable[Site]) -> list[tuple[dict[str, nn.Module | None], str, nn.Module]]:
    """Return the links on the paths from the model to its sites: a module's dict of children, a child's name, and the child."""
    links: dict[str, tuple[dict[str, nn.Module | None], str, nn.Module]] = {}
    for site in sites:
        path = site.name
        while path and path not in links:
            around, _, name = path.rpartition(".")
            children = model.get_submodule(around)._modules
            links[path] = children, name, model.get_submodule(path)
            path = around
    return list(links.values())


class PreviousGradients:
    """Recognises the gradients that the last batch left for the user to look at: only these may be dropped."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._recorded: list[GradientId | None] = []
        self._samples: list[tuple[nn.Parameter, Tensor]] = []

    def record(self) -> None:
        """Take the present gradients as those of the last batch."""
        self._recorded = self._present()
        gradients = ((parameter, parameter.grad) for parameter in self._parameters())
        dense = [
            (parameter, grad) for parameter, grad in gradients if grad is not None and grad.layout is torch.strided
        ]
        smallest = sorted(dense, key=lambda pair: pair[1].numel())[:SAMPLED_GRADIENTS]
        self._samples = [(parameter, _part(gradient).clone()) for parameter, gradient in smallest]

    def drop_recorded(self) -> None:
        """Drop the gradients of the last batch, if they are still there."""
        clipped = self._were_only_clipped()
        for parameter, present, recorded in zip(self._parameters(), self._present(), self._recorded, strict=False):
            if present is not None and (clipped or present == recorded):
                parameter.grad = None

    def check_unchanged(self) -> None:
        """Raise if there are other gradients than those of the last batch."""
        if not {None, *self._recorded}.issuperset(self._present()) and not self._were_only_clipped():
            raise UsageError(
                "parameters still have gradients from before this batch. adagp cannot accumulate gradients across "
                "batches, as a GP batch has none to add to: accumulate inside one batch with "
                "batch.backward(loss, more=True), or call optimizer.zero_grad(set_to_none=True) first."
            )

    def _were_only_clipped(self) -> bool:
        """Return whether all gradients were written equally often and kept their values, as by clipping only to read the norm.

        Accumulating, in contrast, changes some gradients or all. Reading all of them would cost time in every batch, so only
        the first rows of a few small ones are compared.
        """
        present = self._present()
        if len(present) != len(self._recorded) or not any(sample.any() for _, sample in self._samples):
            return False
        pairs = zip(self._recorded, present, strict=True)
        writes = {_writes(before, after) for before, after in pairs if (before, after) != (None, None)}
        same = all(
            parameter.grad is not None and torch.equal(_part(parameter.grad), sample)
            for parameter, sample in self._samples
        )
        return len(writes) == 1 and None not in writes and same

    def _parameters(self) -> Iterator[nn.Parameter]:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]

    def _present(self) -> list[GradientId | None]:
        gradients = (parameter.grad for parameter in self._parameters())
        return [None if gradient is None else (_address(gradient), gradient._version) for gradient in gradients]


def _writes(before: GradientId | None, after: GradientId | None) -> int | None:
    """Return how often a gradient was written to in between; None if it is another tensor."""
    if before is None or after is None or before[0] != after[0]:
        return None
    return after[1] - before[1]


def _part(gradient: Tensor) -> Tensor:
    """Return a small gradient as it is, and the first row of a larger one."""
    return gradient if gradient.numel() <= SMALL_GRADIENT else gradient[(0,) * (gradient.ndim - 1)]


def _address(gradient: Tensor) -> int:
    # A sparse tensor has no data pointer.
    return gradient.data_ptr() if gradient.layout is torch.strided else id(gradient)


class LossGraphCheck:
    """Searches the graph of the loss, once per site, for uses of weights that a GP batch would miss, and warns.

    `local` are the names of the sources that take a weight's gradient only at the calls of its layer.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Sequence[Site],
        local: Sequence[str],
        optimizers: Sequence[torch.optim.Optimizer],
    ) -> None:
        self._model = model
        self._local = ", ".join(local)
        self._unchecked = set(sites) if local else set()
        self._optimizers = optimizers
        self._looked_for_others = False

    def check(self, loss: Tensor, called: Mapping[Site, int], sites: Sequence[Site]) -> None:
        """Warn if the loss uses weights of `sites` in other ways than by calling their layers."""
        due = [site for site in sites if site in self._unchecked and site in called] if self._unchecked else []
        if not due:
            return
        self._unchecked.difference_update(due)
        uses = trainable_leaves(loss)
        used = [site for site in due if uses.get(site.weight, 0) > called[site]]
        if used:
            more = f" (and those of {len(used) - 1} more)" if len(used) > 1 else ""
            warnings.warn(
                f"the loss uses the weight of layer '{used[0].name}'{more} other than by calling the layer, for example in a "
                f"penalty: that part of its gradient is missing where '{self._local}' produces it. Use weight_decay, or "
                "exclude the layer.",
                AdagpWarning,
                stacklevel=2,
            )

    def check_other_models(self, loss: Tensor) -> None:
        """Warn if the loss depends on parameters of neither model nor optimizers: in GP batches they get no gradient."""
        if self._looked_for_others or not loss.requires_grad:
            return
        self._looked_for_others = True
        known = {*self._model.parameters()}
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                known.update(group["params"])
        others = [leaf for leaf in trainable_leaves(loss) if isinstance(leaf, nn.Parameter) and leaf not in known]
        if others:
            warnings.warn(
                f"the loss depends on {len(others)} trainable parameters of another model: they get no gradient in GP batches. "
                "If they learn from this loss, skip their optimizer's step in GP batches (batch.phase), or give that optimizer "
                "to adagp.attach too.",
                AdagpWarning,
                stacklevel=2,
            )


def trainable_leaves(loss: Tensor) -> dict[Tensor, int]:
    """Return the leaves of a loss's graph that require a gradient, and how many operations use each."""
    uses: dict[Tensor, int] = {}
    waiting, seen = [loss.grad_fn], {loss.grad_fn}
    while waiting:
        node = waiting.pop()
        for following, _ in () if node is None else node.next_functions:
            leaf = getattr(following, "variable", None)
            if leaf is not None:
                uses[leaf] = uses.get(leaf, 0) + 1
            elif following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return uses


@dataclass(frozen=True)
class Rehearsal:
    """The result of a rehearsal. Names are those of layers (sites) or of parameters.

    `moved` are the parameters that the GP batch changed and was allowed to change: weights of sites, and the parameters that
    its plan trains by backprop. Parameters outside the model are numbered. `moved_wrongly` are the other parameters that it
    changed. `bp_kept` and `gp_kept` are the bytes that autograd saved for a backward pass. `bp_seconds` and `gp_seconds` are
    the times of one batch each, the first of its kind, so they are rough.
    """

    never_called: tuple[str, ...]
    without_gradient: tuple[str, ...]
    rejected: tuple[str, ...]
    moved: tuple[str, ...]
    moved_wrongly: tuple[str, ...]
    bp_kept: int
    gp_kept: int
    bp_seconds: float
    gp_seconds: float

    @property
    def clean(self) -> bool:
        """Whether every site is called, gets gradients and is updated, and nothing else is."""
        return not (self.never_called or self.without_gradient or self.rejected or self.moved_wrongly)

    def __str__(self) -> str:
        lines = [
            f"a GP batch changes {len(self.moved)} parameters; it kept {self.gp_kept:,} bytes for a backward pass, a BP batch "
            f"{self.bp_kept:,} (seconds, of one batch each: {self.gp_seconds:.3f} and {self.bp_seconds:.3f})"
        ]
        for names, words in (
            (self.never_called, "never called, so frozen in GP batches"),
            (self.without_gradient, "without a gradient in the BP batch, so frozen in GP batches"),
            (self.rejected, "rejected by the guard, which can happen before the source has learned"),
            (self.moved_wrongly, "changed by the GP batch, although they should not be"),
        ):
            if names:
                lines.append(f"{words}: {', '.join(names)}")
        return "\n".join(lines)
