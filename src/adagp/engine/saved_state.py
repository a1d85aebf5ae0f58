"""Whether a trainer's saved state belongs to the run that loads it: its length, and the layers of its model."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from adagp.engine.run_length import RunLength
from adagp.errors import AdagpWarning, UsageError


def check_state(state: Mapping[str, Any], length: RunLength, sites: Sequence[str]) -> None:
    """Raise if the state is that of another model, or of a run with other epochs; warn if the run was longer or shorter.

    States of earlier versions have neither names nor a length: their place in the run and the number of layers are checked.
    """
    _check_sites(state, sites)
    saved = state.get("length")
    if saved is None:
        if state["batch"] >= length.batches_per_epoch:
            raise UsageError(
                f"the state was saved at batch {state['batch'] + 1} of an epoch, but an epoch of this run has "
                f"{length.batches_per_epoch} batches. Give attach the length that the saved run had."
            )
        return
    before = RunLength(**saved)
    if before.batches_per_epoch != length.batches_per_epoch:
        raise UsageError(
            f"the state is that of a run of {before}; this one has {length}, where the same place in the run does not exist. "
            "Give attach the length that the saved run had."
        )
    if before != length:
        warnings.warn(
            f"the state is that of a run of {before}; this one has {length}. Training continues at the same batch, with the "
            "schedule of the new length.",
            AdagpWarning,
            stacklevel=4,
        )


def _check_sites(state: Mapping[str, Any], sites: Sequence[str]) -> None:
    saved = state.get("sites")
    if saved is None:
        count = len(state["norms"]["values"])
        if count != len(sites):
            raise UsageError(f"the state is that of a model with {count} predicted layers; this one has {len(sites)}.")
        return
    if list(saved) != list(sites):
        missing = [name for name in saved if name not in sites]
        added = [name for name in sites if name not in saved]
        changed = [f"'{missing[0]}' is not here"] * bool(missing) + [f"'{added[0]}' is not there"] * bool(added)
        raise UsageError(
            f"the state is that of a model with other predicted layers ({len(saved)}; this one has {len(sites)}): "
            f"{' and '.join(changed) or 'they are in another order'}. Was another layer excluded, or is it another model?"
        )
