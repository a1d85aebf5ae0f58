"""Hooks on the sites and on the model. All state is kept here; nothing is hung on the user's modules but the hooks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from adagp.sites import Site
from adagp.sources.base import Source
from adagp.sources.support.taps import on_gradient


@dataclass(frozen=True)
class Listeners:
    """Who is called in a batch.

    `sites` are the sources that see each site's forward calls; `on_error` is called with the loss's gradient at the model's
    output, if a source needs it. With `error_only` no other gradient is needed: the model runs without autograd.
    """

    sites: Mapping[Site, Sequence[Source]] = field(default_factory=dict)
    on_error: Callable[[Tensor], None] | None = None
    error_only: bool = False


NO_LISTENERS = Listeners()


class ModelHooks:
    """Passes each forward call of a site, and the error at the model's output, to the active listeners."""

    def __init__(self, model: nn.Module, sites: Sequence[Site]) -> None:
        self._listeners = NO_LISTENERS
        self._handles = [site.module.register_forward_hook(self._hook(site)) for site in sites]
        self._handles.append(model.register_forward_pre_hook(self._before))
        self._handles.append(model.register_forward_hook(self._after))  # last: the model may be a site itself

    @contextmanager
    def active(self, listeners: Listeners) -> Iterator[None]:
        """Call `listeners` inside the context."""
        before, self._listeners = self._listeners, listeners
        try:
            yield
        finally:
            self._listeners = before

    def suspended(self) -> AbstractContextManager[None]:
        """Call no listeners inside the context: a backward pass may run forwards again (activation checkpointing)."""
        return self.active(NO_LISTENERS)

    def remove(self) -> None:
        """Take the hooks off the modules."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, site: Site) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
            changed = None
            for source in self._listeners.sites.get(site, ()):
                replacement = source.watch(site, inputs, output if changed is None else changed)
                changed = changed if replacement is None else replacement
            return changed

        return hook

    def _before(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._listeners.error_only:
            torch.set_grad_enabled(False)  # until _after; if the model raises, the batch's own context switches it on

    def _after(self, model: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        on_error = self._listeners.on_error
        if on_error is None:
            return None
        if self._listeners.error_only:
            torch.set_grad_enabled(True)
        leaves, shape = tree_flatten(output)
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():  # the first one: the others are side outputs
                # A view of its own: hooks on it run before those of a last layer whose output this is.
                leaves[place] = on_gradient(leaf.view_as(leaf), on_error)
                break
        return tree_unflatten(leaves, shape)
