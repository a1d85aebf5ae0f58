"""The outputs of a model at which the loss's gradient is taken: finding them in what it returns, and exchanging them.

By default these are all floating-point tensors with at least one axis, in whatever tuples, lists, mappings and dataclasses
the model returns. `output` in `adagp.attach` selects some: the name of a field (`"logits"`), a function from what the model
returns to a tensor or several, or the name of a layer of the model, whose output is then looked at instead. The last is for
models that compute their loss themselves.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from adagp.errors import ModelError

OutputSelector = str | Callable[[Any], Any] | None


def selected(output: Any, selector: OutputSelector) -> list[Tensor]:
    """Return the tensors of `output` that `selector` chooses; refuse a selection that is not there."""
    if isinstance(selector, str):
        chosen = output.get(selector) if isinstance(output, Mapping) else getattr(output, selector, None)
    else:
        chosen = output if selector is None else selector(output)
    found = [one for one in leaves(chosen) if one.is_floating_point() and one.dim() > 0]
    if selector is not None and not found:
        what = f"'{selector}'" if isinstance(selector, str) else "the function"
        raise ModelError(
            f"output={what} finds no floating-point tensor in what the model returns ({type(output).__name__}). Give the "
            "name of a field of it, the name of a layer of the model, or a function of what it returns."
        )
    return list({id(one): one for one in found}.values())


def leaves(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists, mappings and dataclasses."""
    if isinstance(tree, Tensor):
        yield tree
    else:
        for one in _members(tree).values():
            yield from leaves(one)


def replaced(tree: Any, new: Mapping[int, Tensor]) -> Any:
    """Return `tree` with tensors exchanged, by their identity; containers are copied, the user's own are not changed."""
    if isinstance(tree, Tensor):
        return new.get(id(tree), tree)
    members = _members(tree)
    changed = {key: replaced(one, new) for key, one in members.items()}
    if all(changed[key] is members[key] for key in members):
        return tree
    if isinstance(tree, tuple):
        named: Any = type(tree)
        return named(*changed.values()) if hasattr(tree, "_fields") else named(changed.values())
    if isinstance(tree, list):
        return type(tree)(changed.values())
    result = copy.copy(tree)
    for key, one in changed.items():
        if isinstance(tree, Mapping):
            result[key] = one
        else:
            object.__setattr__(result, key, one)  # frozen dataclasses too
    return result


def _members(tree: Any) -> dict[Any, Any]:
    if isinstance(tree, Mapping):
        return dict(tree)
    if isinstance(tree, tuple | list):
        return dict(enumerate(tree))
    if is_dataclass(tree) and not isinstance(tree, type):
        return {field.name: getattr(tree, field.name) for field in fields(tree)}
    return {}
