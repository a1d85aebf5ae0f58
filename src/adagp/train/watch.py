"""Forward hooks on the sites. All state is kept here; nothing is hung on the user's modules but the hooks themselves."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from adagp.sites import Site
from adagp.sources.base import Source


class Watcher:
    """Shows each forward call of a site to the sources that asked for it, while it is awake."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self._audience: Mapping[Site, Sequence[Source]] = {}
        self._handles = [site.module.register_forward_hook(self._hook(site)) for site in sites]

    @contextmanager
    def awake(self, audience: Mapping[Site, Sequence[Source]]) -> Iterator[None]:
        """Show calls to `audience` inside the context."""
        before, self._audience = self._audience, audience
        try:
            yield
        finally:
            self._audience = before

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Look away: a backward pass may call forwards again (activation checkpointing)."""
        with self.awake({}):
            yield

    def remove(self) -> None:
        """Take the hooks off the modules."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, site: Site) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            for source in self._audience.get(site, ()):
                source.watch(site, inputs, output)

        return hook
