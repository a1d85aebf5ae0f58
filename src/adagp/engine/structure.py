"""What must not change in a model after `attach`, and what is worth a warning if it does."""

import warnings
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from adagp.errors import AdagpWarning, ModelError
from adagp.layers.sites import Site, Survey

ATTACH_AGAIN = "Call trainer.detach() and adagp.attach() again after such a change."


class AttachedModel:
    """Recognises layers and weights that were replaced after `attach`, and parameters that were unfrozen."""

    def __init__(self, model: nn.Module, survey: Survey, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._model = model
        self._sites = survey.sites
        self._links = _links(model, survey.sites)
        optimized = {
            id(parameter)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        self._frozen = [
            (name, parameter)
            for name, parameter in model.named_parameters()
            if not parameter.requires_grad and id(parameter) in optimized
        ]

    def check(self) -> None:
        """Raise if a site is no longer what `attach` saw; warn once of parameters that were frozen then and train now."""
        if any(children.get(name) is not child for children, name, child in self._links):
            self._check_reachable()
        for site in self._sites:
            if not site.is_sharded and site.module._parameters.get("weight") is not site.weight:
                raise ModelError(
                    f"the weight of layer '{site.name}' is not the parameter that attach() saw: it was replaced, parametrized "
                    f"or pruned. {ATTACH_AGAIN}"
                )
        unfrozen = [name for name, parameter in self._frozen if parameter.requires_grad]
        if unfrozen:
            self._frozen = []
            more = f" and {len(unfrozen) - 1} more" if len(unfrozen) > 1 else ""
            warnings.warn(
                f"parameter '{unfrozen[0]}'{more} was frozen when attach() ran and is trained now: by backprop in BP batches, "
                f"not at all in GP batches. To have it predicted, attach again.",
                AdagpWarning,
                stacklevel=2,
            )

    def _check_reachable(self) -> None:
        """Raise if the layer of a site is no part of the model any more; a layer that was wrapped still is."""
        present = set(self._model.modules())
        for site in self._sites:
            if site.module not in present:
                raise ModelError(f"layer '{site.name}' was replaced after attach(). {ATTACH_AGAIN}")
        self._links = []


def _links(model: nn.Module, sites: Iterable[Site]) -> list[tuple[dict[str, nn.Module | None], str, nn.Module]]:
    """Return the way from the model down to each site: the children of a module, the name of one, and that child."""
    links: dict[str, tuple[dict[str, nn.Module | None], str, nn.Module]] = {}
    for site in sites:
        path = site.name
        while path and path not in links:
            around, _, name = path.rpartition(".")
            children = model.get_submodule(around)._modules
            links[path] = children, name, model.get_submodule(path)
            path = around
    return list(links.values())


class LossGraphCheck:
    """Looks once into the graph of the loss for weights whose gradient a GP batch would lack, and warns.

    `local` are the sources that take each weight's gradient at the calls of its own layer.
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
        """Warn of weights of `sites` that the loss depends on otherwise than by the calls of their layers."""
        due = [site for site in sites if site in self._unchecked and site in called] if self._unchecked else []
        if not due:
            return
        self._unchecked.difference_update(due)
        uses = trainable_leaves(loss)
        used = [site for site in due if uses.get(site.weight, 0) > called[site]]
        if used:
            more = f" and {len(used) - 1} more" if len(used) > 1 else ""
            warnings.warn(
                f"the loss uses the weight of layer '{used[0].name}'{more} otherwise than by calling the layer (a penalty, or "
                f"functional code): that part of its gradient is missing where '{self._local}' produces it. Use weight_decay, "
                "or exclude the layer.",
                AdagpWarning,
                stacklevel=2,
            )

    def check_other_models(self, loss: Tensor) -> None:
        """Warn of parameters that are neither the model's nor the optimizers', and get no gradient in GP batches."""
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
