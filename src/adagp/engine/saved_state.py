"""Saves and loads the states of a trainer's parts, and checks that a state belongs to the run that loads it."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from adagp.core.plan import RunLength
from adagp.errors import AdagpWarning, UsageError

ADDED_LATER = frozenset({"refusals", "reach", "precisions"})
"""Parts that older checkpoints do not have."""


class Stateful(Protocol):
    """A part of a trainer that has a state."""

    def state_dict(self) -> Any:
        """Return the state."""

    def load_state_dict(self, state: Any) -> None:
        """Restore what `state_dict` returned."""


class StatefulGroup:
    """Several parts, by name or by number, as one."""

    def __init__(self, parts: Mapping[str, Stateful] | Sequence[Stateful]) -> None:
        self._parts = parts

    def state_dict(self) -> Any:
        """Return the states, as a dictionary or a list."""
        if isinstance(self._parts, Mapping):
            return saved_states(self._parts)
        return [part.state_dict() for part in self._parts]

    def load_state_dict(self, state: Any) -> None:
        """Restore what `state_dict` returned."""
        if isinstance(self._parts, Mapping):
            load_states(self._parts, state)
            return
        for part, saved in zip(self._parts, state, strict=True):
            part.load_state_dict(saved)


def saved_states(parts: Mapping[str, Stateful]) -> dict[str, Any]:
    """Return the state of each part."""
    return {name: part.state_dict() for name, part in parts.items()}


def load_states(parts: Mapping[str, Stateful], state: Mapping[str, Any]) -> None:
    """Restore what `saved_states` returned."""
    for name, part in parts.items():
        if name in state or name not in ADDED_LATER:
            part.load_state_dict(state[name])


def check_state(
    state: Mapping[str, Any], length: RunLength, sites: Mapping[str, list[int]], sources: Collection[str]
) -> None:
    """Raise if the state belongs to another model or method, or to a run with another number of batches per epoch.

    If the run was longer or shorter, warn. `sites` has the shapes of the weights by the names of their layers. States of
    earlier versions have no names, shapes or length: only their position in the epoch and the number of layers are checked.
    """
    if set(state["sources"]) != set(sources):
        saved_sources, own = (", ".join(sorted(names)) or "none" for names in (state["sources"], sources))
        raise UsageError(f"the state was saved by a trainer with the sources: {saved_sources}; this one has: {own}.")
    _check_sites(state, sites)
    saved = state.get("length")
    if saved is None:
        if state["batch"] >= length.batches_per_epoch:
            raise UsageError(
                f"the state was saved at batch {state['batch'] + 1} of an epoch, but an epoch of this run has "
                f"{length.batches_per_epoch} batches. Give attach the length that the saved run had."
            )
        return
    saved_length = RunLength(**saved)
    if saved_length.batches_per_epoch != length.batches_per_epoch:
        raise UsageError(
            f"the state was saved in a run of {saved_length}; this one has {length}, which has no such position. "
            "Give attach the length that the saved run had."
        )
    if saved_length != length:
        warnings.warn(
            f"the state was saved in a run of {saved_length}; this one has {length}. Training continues at the same batch, "
            "with the schedule of the new length.",
            AdagpWarning,
            stacklevel=4,
        )


def _check_sites(state: Mapping[str, Any], sites: Mapping[str, list[int]]) -> None:
    saved = state.get("sites")
    if saved is None:
        count = len(state["norms"]["values"])
        if count != len(sites):
            raise UsageError(
                f"the state was saved with a model of {count} predicted layers; this one has {len(sites)}."
            )
        return
    if list(saved) != list(sites):
        missing = [name for name in saved if name not in sites]
        added = [name for name in sites if name not in saved]
        changed = [f"the saved '{missing[0]}' is missing"] * bool(missing) + [f"'{added[0]}' is new"] * bool(added)
        raise UsageError(
            f"the state was saved with a model of other predicted layers ({len(saved)}; this one has {len(sites)}): "
            f"{' and '.join(changed) or 'they are in another order'}. Was another layer excluded, or is it another model?"
        )
    for (name, own), shape in zip(sites.items(), state.get("shapes", sites.values()), strict=True):
        if list(shape) != own:
            raise UsageError(
                f"the state was saved with a model whose layer '{name}' has a weight of the shape {tuple(shape)}; here it is "
                f"{tuple(own)}. Is it another model?"
            )
