"""Hooks on the sites and on the model. All state is kept here; nothing is hung on the user's modules but the hooks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from adagp.engine.outputs import OutputSelector, replaced, selected
from adagp.layers.sites import Site
from adagp.sources.base import ModelCall
from adagp.sources.support.taps import on_gradient


class SiteWatcher(Protocol):
    """Somebody who is shown the forward calls of sites."""

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """See one call; a tensor that is returned takes the place of the output."""


@dataclass(frozen=True)
class Listeners:
    """Who is called in a batch.

    `sites` are the sources that see each site's forward calls, and `called` notes which sites had any. `on_call` is told of
    each forward call of the model, before the first site in it, if a source needs the error at its outputs, and `on_return`
    at its end, unless autograd computes nothing. With `taps` that
    error is all that is differentiated: the beginnings of the loss's graph are put there. Calls in which the user has
    switched autograd off are none of training, unless `everywhere`. `on_inputs` is shown the inputs of every site.
    """

    sites: Mapping[Site, Sequence[SiteWatcher]] = field(default_factory=dict)
    called: dict[Site, bool] = field(default_factory=dict)
    on_call: Callable[[ModelCall], None] | None = None
    on_return: Callable[[ModelCall, Sequence[Tensor]], None] | None = None
    taps: list[tuple[ModelCall, int, Tensor]] | None = None
    everywhere: bool = False
    on_inputs: Callable[[Site, Sequence[Any]], None] | None = None


NO_LISTENERS = Listeners()


class Hook:
    """A function as a forward hook. A copy of the module, or one that comes out of a file, has a hook that does nothing."""

    def __init__(self, function: Callable[..., Any], *first: Any) -> None:
        self.function = function
        self.first = first

    def __call__(self, module: nn.Module, *given: Any) -> Any:
        """Call the function with what it was made with, and what the hook is given besides the module."""
        return self.function(*self.first, *given)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")  # takes anything, does nothing, and is known without this library


class ModelHooks:
    """Passes each forward call of a site, and the errors at the model's outputs, to the active listeners.

    `output` says which outputs these are (see `adagp.engine.outputs`): what the model returns, or what a layer of that name
    does. What is watched between two such outputs belongs to one call.
    """

    def __init__(self, model: nn.Module, sites: Sequence[Site], output: OutputSelector = None) -> None:
        self._listeners = NO_LISTENERS
        self._recorded: bool | None = None  # whether the call of the model under way is one of training
        self._call: ModelCall | None = None
        self.beside: Callable[[], AbstractContextManager[None]] = nullcontext
        """What sources work under when they watch a site."""
        layer = dict(model.named_modules()).get(output) if isinstance(output, str) and output else None
        self._output = None if layer is not None else output
        self._handles = [site.module.register_forward_hook(Hook(self._watch, site), with_kwargs=True) for site in sites]
        self._handles.append(model.register_forward_pre_hook(Hook(self._before)))
        self._handles.append((layer or model).register_forward_hook(Hook(self._tap)))  # last: it may be a site itself
        self._handles.append(model.register_forward_hook(Hook(self._after)))

    def also_watch(self, module: nn.Module, site: Site) -> None:
        """Take a call of `module` for one of `site`: it does the site's work elsewhere."""
        self._handles.append(module.register_forward_hook(Hook(self._watch, site), with_kwargs=True))

    @contextmanager
    def active(self, listeners: Listeners) -> Iterator[None]:
        """Call `listeners` inside the context."""
        before = self._listeners, self._recorded, self._call
        self._listeners, self._recorded, self._call = listeners, None, None
        try:
            yield
        finally:
            self._listeners, self._recorded, self._call = before

    def suspended(self) -> AbstractContextManager[None]:
        """Call no listeners inside the context: a backward pass may run forwards again (activation checkpointing)."""
        return self.active(NO_LISTENERS)

    def remove(self) -> None:
        """Take the hooks off the modules."""
        for handle in self._handles:
            handle.remove()

    def _before(self, inputs: tuple[Any, ...]) -> None:
        if self._listeners is not NO_LISTENERS:
            self._recorded = self._listeners.everywhere or torch.is_grad_enabled()
            self._call = None

    def _after(self, inputs: tuple[Any, ...], output: Any) -> None:
        self._recorded = None

    def records(self) -> bool:
        """Tell whether the call of the model, or of a part of it, that is under way is one of training."""
        if self._recorded is None:  # a part of the model was called by itself
            return self._listeners.everywhere or torch.is_grad_enabled()
        return self._recorded

    def _watch(self, site: Site, inputs: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> Tensor | None:
        listeners = self._listeners
        if site not in listeners.sites or not self.records():
            return None
        listeners.called[site] = True
        if listeners.on_call is not None and self._call is None:
            self._call = ModelCall()
            listeners.on_call(self._call)
        if output.numel() == 0:  # an empty batch teaches nothing
            return None
        changed = None
        seen = inputs or tuple(named.values())[:1]
        if listeners.on_inputs is not None:
            listeners.on_inputs(site, seen)
        for source in listeners.sites[site]:
            with self.beside():
                replacement = source.watch(site, seen, output if changed is None else changed)
            changed = changed if replacement is None else replacement
        return changed

    def _tap(self, inputs: tuple[Any, ...], output: Any) -> Any:
        call, self._call = self._call, None
        if self._listeners.on_call is None or call is None or not self.records():
            return None
        tensors = selected(output, self._output)
        call.open([tensor.shape for tensor in tensors])
        told = self._listeners.on_return
        if told is not None:
            with self.suspended():
                told(call, tensors)
        new = {id(tensor): self._tapped(call, place, tensor) for place, tensor in enumerate(tensors)}
        return replaced(output, new)

    def _tapped(self, call: ModelCall, place: int, tensor: Tensor) -> Tensor:
        """Return the tensor to continue with in place of an output, at which the error of `call` will be known."""
        taps = self._listeners.taps
        if taps is None:
            # A tensor of its own: hooks on it run before those of a last layer whose output this is; and no view, of which a
            # change in place would be one of the layer's output as well.
            own = tensor.clone() if tensor.requires_grad else tensor
            return on_gradient(own, lambda error: call.receive(place, error))
        if tensor.requires_grad:  # the inputs do
            tap = tensor.view_as(tensor)
            taps.append((call, place, tap))
            return tap
        tap = tensor.detach().requires_grad_()
        taps.append((call, place, tap))
        return tap.clone()  # which may be changed in place
