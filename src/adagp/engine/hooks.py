"""Hooks on the sites and on the model. All state is kept here; nothing is hung on the user's modules but the hooks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from adagp.sites import Site
from adagp.sources.base import Source
from adagp.sources.support.taps import on_gradient


@dataclass(frozen=True)
class Audience:
    """Who wants to see what in a batch.

    `sites` are the sources that see each site's forward calls; `feel` is called with the loss's gradient at the model's
    output, if anybody wants it. With `alone` nothing but that gradient is wanted: the model runs without autograd.
    """

    sites: Mapping[Site, Sequence[Source]] = field(default_factory=dict)
    feel: Callable[[Tensor], None] | None = None
    alone: bool = False


NOBODY = Audience()


class Watcher:
    """Shows each forward call of a site, and the error at the model's output, to those who asked, while it is awake."""

    def __init__(self, model: nn.Module, sites: Sequence[Site]) -> None:
        self._audience = NOBODY
        self._handles = [site.module.register_forward_hook(self._hook(site)) for site in sites]
        self._handles.append(model.register_forward_pre_hook(self._before))
        self._handles.append(model.register_forward_hook(self._after))  # last: the model may be a site itself

    @contextmanager
    def awake(self, audience: Audience) -> Iterator[None]:
        """Show calls to `audience` inside the context."""
        before, self._audience = self._audience, audience
        try:
            yield
        finally:
            self._audience = before

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Look away: a backward pass may call forwards again (activation checkpointing)."""
        with self.awake(NOBODY):
            yield

    def remove(self) -> None:
        """Take the hooks off the modules."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, site: Site) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
            changed = None
            for source in self._audience.sites.get(site, ()):
                replacement = source.watch(site, inputs, output if changed is None else changed)
                changed = changed if replacement is None else replacement
            return changed

        return hook

    def _before(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._audience.alone:
            torch.set_grad_enabled(False)  # until _after; if the model raises, the batch's own context switches it on

    def _after(self, model: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        audience = self._audience
        if audience.feel is None:
            return None
        if audience.alone:
            torch.set_grad_enabled(True)
        leaves, shape = tree_flatten(output)
        feel = audience.feel
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():  # the first one: the others are side outputs
                # A name of its own: hooks on it run before those of a last layer whose output this is.
                leaves[place] = on_gradient(leaf.view_as(leaf), feel)
                break
        return tree_unflatten(leaves, shape)
