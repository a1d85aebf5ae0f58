"""What adagp adds to the user's model: forward hooks on the sites and on the model, and its compiled forward.

All state is kept here; nothing is stored on the user's modules but the hooks, and a `__getstate__` that leaves them out of
copies and files.

Some sources need the loss's gradient at the model's outputs (the error). By default these outputs are all floating-point
tensors with at least one axis, in any nesting of tuples, lists, mappings and dataclasses that the model returns. `output` in
`adagp.attach` selects some of them: by the name of a field (`"logits"`), or by a function that gets what the model returns and
returns one tensor or several. It may also name a layer, whose output is used instead: for models that compute their loss
themselves.
"""

import copy
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from adagp.errors import ModelError, OptionError
from adagp.layers.sites import Site
from adagp.sources.base import ModelCall, Source, missing_error, on_gradient, weigh_gradient


def call(model: nn.Module, inputs: Any) -> Any:
    """Call `model` on `inputs`: a tuple is passed as separate arguments, a mapping by name.

    A named tuple, such as a PackedSequence, is one argument.
    """
    if isinstance(inputs, tuple) and not hasattr(inputs, "_fields"):
        return model(*inputs)
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


class CompiledForward:
    """The compiled `forward` of one module. Copies of the module have the plain one."""

    def __init__(self, module: nn.Module, backend: str) -> None:
        self._module = module
        self._compiled = torch.compile(module.forward, backend=backend)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run the compiled code."""
        return self._compiled(*inputs, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (type(self._module).forward, self._module)


def compile_model(model: nn.Module, backend: str) -> None:
    """Compile the `forward` of `model` with torch's compiler; the names of its parameters and its `state_dict` do not change.

    Its layers must have their hooks before, because these become part of the compiled code. The first batch of each kind (with
    a backward pass, and without) compiles, which takes a while.
    """
    if backend == "inductor" and next(model.parameters()).device.type == "cpu":
        _require_compiler()
    # Not model.compile(): that would also compile the hooks on the model itself.
    model.forward = CompiledForward(model, backend)


def restore_forward(model: nn.Module) -> None:
    """Undo `compile_model`."""
    if isinstance(vars(model).get("forward"), CompiledForward):
        del model.forward


def _require_compiler() -> None:
    named = os.environ.get("CXX")
    names = [named] if named else ["g++", "clang++"]
    if not any(shutil.which(name) for name in names):
        raise OptionError(
            f"compiling a model for the CPU needs a C++ compiler; {' and '.join(names)} cannot be found. "
            "Install one, name it in the environment variable CXX, or do not compile."
        )


OutputSelector = str | Callable[[Any], Any] | None


def _choose(output: Any, selector: OutputSelector) -> Any:
    if selector is None:
        return output
    if not isinstance(selector, str):
        return selector(output)
    return output.get(selector) if isinstance(output, Mapping) else getattr(output, selector, None)


def selected(output: Any, selector: OutputSelector) -> list[Tensor]:
    """Return the tensors of `output` that `selector` selects; raise if there are none."""
    chosen = _choose(output, selector)
    tensors = [tensor for tensor in leaves(chosen) if tensor.is_floating_point() and tensor.dim() > 0]
    if selector is not None and not tensors:
        what = f"'{selector}'" if isinstance(selector, str) else "the function"
        raise ModelError(
            f"output={what} finds no floating-point tensor in what the model returns ({type(output).__name__}). Give the "
            "name of a field of it, the name of a layer of the model, or a function of what it returns."
        )
    unreachable = selector is not None and {*map(id, tensors)} - {*map(id, leaves(output, objects=True))}
    if unreachable:
        raise ModelError(
            "output=... must select tensors that are part of what the model returns; this function computes a new one. Return "
            "the tensor as it is."
        )
    return list({id(tensor): tensor for tensor in tensors}.values())


def leaves(tree: Any, *, objects: bool = False) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists, mappings and dataclasses, and in attributes of other `objects`."""
    if isinstance(tree, Tensor):
        yield tree
    else:
        for member in _members(tree, objects).values():
            yield from leaves(member, objects=objects)


def replaced(tree: Any, new: Mapping[int, Tensor]) -> Any:
    """Return `tree` with some tensors replaced: `new` has them by the `id` of the old one. Changed containers are copies."""
    if isinstance(tree, Tensor):
        return new.get(id(tree), tree)
    members = _members(tree, objects=True)
    changed = {key: replaced(member, new) for key, member in members.items()}
    if all(changed[key] is members[key] for key in members):
        return tree
    if isinstance(tree, tuple):
        named: Any = type(tree)
        return named(*changed.values()) if hasattr(tree, "_fields") else named(changed.values())
    if isinstance(tree, list):
        return type(tree)(changed.values())
    result = copy.copy(tree)
    for key, member in changed.items():
        if isinstance(tree, Mapping):
            result[key] = member
        else:
            object.__setattr__(result, key, member)  # frozen dataclasses too
    return result


def _members(tree: Any, objects: bool) -> dict[Any, Any]:
    if isinstance(tree, Mapping):
        return dict(tree)
    if isinstance(tree, tuple | list):
        return dict(enumerate(tree))
    if is_dataclass(tree) and not isinstance(tree, type):
        return {field.name: getattr(tree, field.name) for field in fields(tree)}
    if objects and not isinstance(tree, type | nn.Module) and not callable(tree):
        return {name: value for name, value in getattr(tree, "__dict__", {}).items() if isinstance(value, Tensor)}
    return {}


def main_output(site: Site, returned: Any) -> Tensor:
    """Return the first floating-point tensor of a layer that returns several things."""
    for tensor in leaves(returned):
        if tensor.is_floating_point():
            return tensor
    raise ModelError(
        f"layer '{site.name}' returned a {type(returned).__name__} without a floating-point tensor. Exclude it "
        f"(exclude=['{site.name}'])."
    )


def _is_training_call() -> bool:
    """Return whether a forward call counts as training: autograd is on, and it is not inside vmap or torch.func.grad."""
    if torch.compiler.is_compiling():
        return torch.is_grad_enabled()
    return torch.is_grad_enabled() and torch._C._functorch.peek_interpreter_stack() is None


class OutputErrors:
    """The model's forward calls in a batch, until the loss is differentiated at their outputs.

    `wanting` are the sources that need the errors, by name, and `learning` those of them that learn from the batch. The loss,
    and so each gradient, is multiplied by `scale`; a `ModelCall` divides by it. In a batch without a backward pass,
    `error_leaves` are the leaves of the loss's graph: for each the forward call, the index of the output, and the tensor that
    replaced the output.
    """

    def __init__(self, wanting: Mapping[str, Source], learning: Sequence[Source], scale: float) -> None:
        self._wanting = wanting
        self._learning = learning
        self._scale = scale
        self._calls: list[ModelCall] = []
        self.error_leaves: list[tuple[ModelCall, int, Tensor]] = []

    @property
    def are_needed(self) -> bool:
        """Whether a source needs the errors."""
        return bool(self._wanting)

    def enter(self, call: ModelCall) -> None:
        """Announce a forward call of the model to the sources, when it begins."""
        call.scale = self._scale
        call.keeps_outputs = any(source.needs_outputs for source in self._wanting.values())
        self._calls.append(call)
        for source in self._wanting.values():
            source.enter(call)

    def leave(self, call: ModelCall, outputs: Sequence[Tensor]) -> None:
        """Pass the outputs of a forward call to the sources that learn, when it ends."""
        for source in self._learning:
            source.leave(call, outputs)

    def differentiate(self, loss: Tensor) -> None:
        """Compute the gradients at the outputs of the model, and no others: parameters of the loss get none."""
        if not self.error_leaves or not loss.requires_grad:
            return
        errors = torch.autograd.grad(loss, [leaf for _, _, leaf in self.error_leaves], allow_unused=True)
        waiting: list[tuple[ModelCall, int, Tensor]] = []
        for (call, index, leaf), error in zip(self.error_leaves, errors, strict=True):
            if error is None:
                waiting.append((call, index, leaf))  # another loss of the same batch may depend on it
            else:
                call.receive(index, error)
        self.error_leaves[:] = waiting

    def hand_over(self) -> None:
        """Pass the known errors to the sources; raise if the loss gave none."""
        calls = [call for call in self._calls if call.known]
        if not calls:
            raise missing_error(next(iter(self._wanting)))
        for call in calls:
            for source in self._wanting.values():
                source.observe_error(call)
        self._calls = [call for call in self._calls if not call.known]


class SiteWatcher(Protocol):
    """Receives the forward calls of sites, as sources do."""

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """See one forward call of `site`. If a tensor is returned, it replaces the output."""


@dataclass(frozen=True)
class Listeners:
    """What the hooks call in a batch.

    `sites` has the sources that see each site's forward calls, and `called` counts these calls. If a source needs the error at
    the model's outputs, `on_call` gets each forward call of the model before the call of its first site, and `on_return`, in
    batches with a backward pass, gets it with its outputs when it ends. In a batch without a backward pass, `error_leaves`
    receives the leaves of the loss's graph: the loss is differentiated at the outputs only.

    Calls of the model without autograd do not count as training, unless `everywhere`; nor do calls with an empty output. Their
    sites are added to `ignored`. Sites that run without autograd inside a call that counts, as in reentrant checkpointing, are
    added to `without_autograd`. `on_inputs` gets the inputs of every site. `error_weights` multiplies the errors of the
    samples, one weight for each sample.
    """

    sites: Mapping[Site, Sequence[SiteWatcher]] = field(default_factory=dict)
    called: dict[Site, int] = field(default_factory=dict)
    ignored: set[Site] = field(default_factory=set)
    without_autograd: set[Site] = field(default_factory=set)
    on_call: Callable[[ModelCall], None] | None = None
    on_return: Callable[[ModelCall, Sequence[Tensor]], None] | None = None
    error_leaves: list[tuple[ModelCall, int, Tensor]] | None = None
    everywhere: bool = False
    on_inputs: Callable[[Site, Sequence[Any]], None] | None = None
    error_weights: Tensor | None = None


NO_LISTENERS = Listeners()


class Hook:
    """Makes a function with some first arguments a forward hook; trainers recognise their hooks by this class."""

    def __init__(self, function: Callable[..., Any], *first: Any) -> None:
        self.function = function
        self.first = first

    def __call__(self, module: nn.Module, *arguments: Any) -> Any:
        """Call the function with its first arguments, then those of the hook without the module."""
        return self.function(*self.first, *arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        # For modules that override how they are copied (see StateWithoutHooks): a copy gets a function that does nothing.
        return getattr, (nullcontext(), "__exit__")


@cache
def _uncompiled_hook() -> type[Hook]:
    """Return the class of hooks that torch's compiler leaves alone. Made on first use, because it loads torch's compiler."""

    class UncompiledHook(Hook):
        __call__ = torch.compiler.disable(Hook.__call__, reason="adagp's hooks on gradients")

    return UncompiledHook


class StateWithoutHooks:
    """The `__getstate__` of a module that has hooks: `copy`, `pickle` and `torch.save` call it, and so leave the hooks out.

    It is an attribute of the module object, where Python finds it before the method of the class. So the module keeps its
    class.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __call__(self) -> Any:
        """Return what the module's class returns, without the hooks, the compiled forward and this attribute."""
        state = type(self._module).__getstate__(self._module)
        if not isinstance(state, dict):
            return state
        state = {
            name: value for name, value in state.items() if not isinstance(value, StateWithoutHooks | CompiledForward)
        }
        hooks = {key for name in _HOOKS for key, hook in state[name].items() if isinstance(hook, Hook)}
        for name in (*_HOOKS, *_HOOK_FLAGS):
            state[name] = type(state[name])((key, value) for key, value in state[name].items() if key not in hooks)
        return state


def has_hooks(module: nn.Module) -> bool:
    """Return whether a trainer has put its hooks on `module`."""
    return isinstance(vars(module).get("__getstate__"), StateWithoutHooks)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_HOOK_FLAGS = ("_forward_hooks_with_kwargs",)


class ModelHooks:
    """Passes each forward call of a site, and the errors at the model's outputs, to the active listeners.

    `output` selects these outputs among those of the model, or names a layer (see the module's docstring). All sites that run
    between two such outputs belong to one call.

    If the hooks are not `traceable`, they run uncompiled in a compiled model, between the compiled parts. torch's compiler
    would otherwise trace a hook on a gradient in the state that it has during the trace, in which it does nothing.
    """

    def __init__(
        self, model: nn.Module, sites: Sequence[Site], output: OutputSelector = None, *, traceable: bool = True
    ) -> None:
        self._listeners = NO_LISTENERS
        self._hook = Hook if traceable else _uncompiled_hook()
        self._recorded: bool | None = None  # whether the current call of the model counts as training; None: no call
        self._call: ModelCall | None = None
        self.source_context: Callable[[], AbstractContextManager[None]] = nullcontext
        """The context in which sources watch a site."""
        self._hooked: list[nn.Module] = []
        layer = dict(model.named_modules()).get(output) if isinstance(output, str) and output else None
        self._output = None if layer is not None else output
        self._handles: list[RemovableHandle] = []
        self._site_hooks: list[tuple[OrderedDict[int, Any], int]] = []
        for site in sites:
            self.also_watch(site.module, site)
        self._leave_out_of_copies(model)
        self._handles.append(model.register_forward_pre_hook(Hook(self._before)))
        self._leave_out_of_copies(layer or model)
        # Last: it may be a site itself.
        self._handles.append((layer or model).register_forward_hook(self._hook(self._hook_outputs)))
        self._handles.append(model.register_forward_hook(Hook(self._after)))

    def also_watch(self, module: nn.Module, site: Site) -> None:
        """Treat a call of `module` as a call of `site`: it computes the site's layer."""
        self._leave_out_of_copies(module)
        handle = module.register_forward_hook(self._hook(self._watch, site), with_kwargs=True, prepend=True)
        self._handles.append(handle)
        hooks: Any = module._forward_hooks  # an ordered dictionary, which torch's types do not show
        self._site_hooks.append((hooks, handle.id))

    def stay_first(self) -> None:
        """Move the hooks on sites before hooks that the user has registered with `prepend=True` since.

        Sources must see what the layer computes, not what a hook of the user's turns it into.
        """
        for hooks, own in self._site_hooks:
            for number, hook in hooks.items():
                if number == own:
                    break
                if not isinstance(hook, Hook):
                    hooks.move_to_end(own, last=False)
                    break

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
        for module in self._hooked:
            vars(module).pop("__getstate__", None)

    def _leave_out_of_copies(self, module: nn.Module) -> None:
        vars(module)["__getstate__"] = StateWithoutHooks(module)
        self._hooked.append(module)

    def _before(self, inputs: tuple[Any, ...]) -> None:
        if self._listeners is not NO_LISTENERS:
            self._recorded = self._listeners.everywhere or _is_training_call()
            self._call = None

    def _after(self, inputs: tuple[Any, ...], output: Any) -> None:
        self._recorded = None

    def records(self) -> bool:
        """Return whether the current call of the model, or of a part of it, counts as training."""
        if self._recorded is None:  # a part of the model was called on its own
            return self._listeners.everywhere or _is_training_call()
        return self._recorded

    def _watch(self, site: Site, inputs: tuple[Any, ...], named: dict[str, Any], returned: Any) -> Any:
        listeners = self._listeners
        if site not in listeners.sites:
            return None
        if not self.records():
            listeners.ignored.add(site)
            return None
        output = returned if isinstance(returned, Tensor) else main_output(site, returned)
        listeners.called[site] = listeners.called.get(site, 0) + 1
        if not torch.is_grad_enabled():
            listeners.without_autograd.add(site)
        if listeners.on_call is not None and self._call is None:
            self._call = ModelCall()
            listeners.on_call(self._call)
        if output.numel() == 0:  # an empty batch teaches nothing
            listeners.ignored.add(site)
            return None
        positional = inputs or tuple(named.values())[:1]
        if listeners.on_inputs is not None:
            listeners.on_inputs(site, positional)
        changed = self._show(site, positional, output)
        return changed if changed is None or returned is output else replaced(returned, {id(output): changed})

    def _show(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Pass a forward call to the sources of `site`; return the tensor that replaces the output, None if none does."""
        changed = None
        for source in self._listeners.sites[site]:
            with self.source_context():
                replacement = source.watch(site, inputs, output if changed is None else changed)
            changed = changed if replacement is None else replacement
        return changed

    def _hook_outputs(self, inputs: tuple[Any, ...], output: Any) -> Any:
        call, self._call = self._call, None
        if self._listeners.on_call is None or call is None or not self.records():
            return None
        tensors = selected(output, self._output)
        call.open(tensors)
        on_return = self._listeners.on_return
        if on_return is not None:
            with self.suspended():
                on_return(call, tensors)
        new = {id(tensor): self._hooked_output(call, index, tensor) for index, tensor in enumerate(tensors)}
        return replaced(output, new)

    def _hooked_output(self, call: ModelCall, index: int, tensor: Tensor) -> Tensor:
        """Return the tensor that replaces output number `index`, and whose gradient is passed to `call` as its error."""
        error_leaves = self._listeners.error_leaves
        if error_leaves is None:
            # A new tensor: its hooks run before those on the output of the last layer. Not a view: a change in place would
            # change the layer's output as well.
            output = tensor.clone() if tensor.requires_grad else tensor
            if self._listeners.error_weights is not None:
                weigh_gradient(output, self._listeners.error_weights)  # first: the next hook then gets the product
            return on_gradient(output, lambda error: call.receive(index, error))
        if tensor.requires_grad:  # because the inputs do
            leaf = tensor.view_as(tensor)
            error_leaves.append((call, index, leaf))
            return leaf
        leaf = tensor.detach().requires_grad_()
        error_leaves.append((call, index, leaf))
        return leaf.clone()  # which may be changed in place
