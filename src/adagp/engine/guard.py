"""What protects the model from bad predictions.

`Guard` rejects gradients that are too large. `BackpropCoverage` records the sites that backprop does not update: no source may
update them either.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adagp.errors import AdagpWarning, ModelError, OptionError, UsageError
from adagp.layers.sites import Site
from adagp.sources.base import RunningNorms


@dataclass(frozen=True)
class Guard:
    """Rejects gradients that are not finite, or whose norm is over `limit` times the running norm of the true gradient.

    Before a site's first true gradient only finiteness is checked. A site whose gradient is rejected is frozen in that batch.
    If all gradients are rejected, the batch changes nothing and the rest of its phase is trained by backprop.
    """

    limit: float = 10.0

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise OptionError(
                f"the guard's limit is {self.limit}; it must be above 0 (infinity checks finiteness only)."
            )

    def allowed(self, sites: Sequence[Site], sizes: Tensor, norms: RunningNorms) -> list[bool]:
        """Return which gradients pass, by their norms in `sizes`."""
        return self.judge(sites, sizes, norms)[0]

    def judge(self, sites: Sequence[Site], sizes: Tensor, norms: RunningNorms) -> tuple[list[bool], list[bool]]:
        """Return which gradients pass, by their norms in `sizes`, and which are 0 although true gradients of the site were not.

        It takes one transfer from the device for all sites.
        """
        usual = norms.of(sites)
        bound = torch.where(usual > 0, self.limit * usual, torch.inf)
        passed, empty = torch.stack([sizes.isfinite() & (sizes <= bound), (sizes == 0) & (usual > 0)]).tolist()
        return passed, empty


class ActingSources:
    """Checks that the first gradients of each source that has learned are not all 0."""

    def __init__(self) -> None:
        self._acted: set[str] = set()

    def check(self, source: str, empty: Sequence[bool]) -> None:
        """Raise if the first gradients of `source` are all 0 although true ones were not (`empty`, see `Guard.judge`)."""
        if source in self._acted or not empty:
            return
        if all(empty):
            raise source_does_nothing(source, "has seen true gradients, but every gradient that it produces is 0")
        self._acted.add(source)


def source_does_nothing(source: str, finding: str) -> ModelError:
    """Return the error for a batch that trains nothing; `finding` describes how `source` failed."""
    return ModelError(
        f"source '{source}' {finding}: the batch would train nothing. Was a part of the model compiled and called before "
        "adagp.attach, or do its layers run in a way that hooks do not see? trainer.rehearse(step) names the layers."
    )


class RejectionCounts:
    """Counts the gradients that the guard rejects, by site, and warns once when it rejects many in a row."""

    PATIENCE = 10
    """Batches in a row with at least half of the gradients rejected, after which it warns."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self._names = [site.name for site in sites]
        self._checked = [0] * len(sites)
        self._rejected = [0] * len(sites)
        self._in_a_row = 0
        self._warned = False

    def note(self, sites: Sequence[Site], allowed: Sequence[bool]) -> None:
        """Count the guard's decisions in one batch."""
        for site, may in zip(sites, allowed, strict=True):
            self._checked[site.index] += 1
            self._rejected[site.index] += not may
        self._in_a_row = self._in_a_row + 1 if 2 * sum(allowed) <= len(allowed) else 0
        if self._in_a_row == self.PATIENCE and not self._warned:
            self._warned = True
            first = next(site for site, may in zip(sites, allowed, strict=True) if not may)
            warnings.warn(
                f"the guard rejected half or more of the produced gradients in {self.PATIENCE} batches in a row "
                f"({len(allowed) - sum(allowed)} of {len(allowed)} in this one, among them that of '{first.name}'): "
                "their weights are frozen in those batches. A longer warm-up, method='feedback', or normalize=True "
                "for a predictor may help; "
                "adagp.EngineOptions(guard=adagp.Guard(limit)) sets how large a gradient may be.",
                AdagpWarning,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        """Return how many gradients were rejected, of how many."""
        rejected, checked = self.total
        return f"{rejected} of {checked} gradients rejected"

    @property
    def total(self) -> tuple[int, int]:
        """The gradients rejected, and those produced, since the last `read`."""
        return sum(self._rejected), sum(self._checked)

    def read(self) -> dict[str, float]:
        """Return the share of rejected gradients since the last call, of each site with checked ones, and reset the counts."""
        shares = {
            name: rejected / checked
            for name, rejected, checked in zip(self._names, self._rejected, self._checked, strict=True)
            if checked
        }
        self._checked, self._rejected = [0] * len(self._names), [0] * len(self._names)
        return shares

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {"given": list(self._checked), "refused": list(self._rejected), "in_a_row": self._in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._checked, self._rejected = list(state["given"]), list(state["refused"])
        self._in_a_row = state["in_a_row"]


class BackpropCoverage:
    """Remembers the sites that were called in a BP batch and got no gradient: heads that the loss ignores.

    A site whose weight gets a gradient although its layer is not called cannot be watched. It is frozen in GP batches, with one
    warning.
    """

    def __init__(self) -> None:
        self._missed: set[int] = set()
        self._warned_of: set[int] = set()

    def record(self, sites: Iterable[Site], called: Mapping[Site, int]) -> None:
        """Record the gradients of a BP batch; raise if there are gradients, but no layer was called."""
        self.prepare_record(sites, called)()

    def prepare_record(self, sites: Iterable[Site], called: Mapping[Site, int]) -> Callable[[], None]:
        """Look at the gradients of a BP batch, and raise as `record` does; return a function that records them."""
        missed, reached, unseen = set(), set(), []
        for site in sites:
            if site.weight.grad is None:
                if site in called:
                    _check_not_stepped(site)
                    missed.add(site.index)
                continue
            reached.add(site.index)
            if site not in called:
                unseen.append(site)
        if unseen and not called:
            raise UsageError(
                "the weights have gradients, but none of their layers was seen in a forward call. Was the model compiled and "
                "called before adagp.attach, or is another model in use? Attach first; EngineOptions(compile=True) compiles it."
            )
        self._warn([site for site in unseen if site.index not in self._warned_of])

        def add() -> None:
            self._missed = (self._missed | missed) - reached

        return add

    def servable(self, sites: Iterable[Site], called: Mapping[Site, int]) -> list[Site]:
        """Return those of `sites` that a source may serve: called in this batch, not missed by backprop, and not frozen by the
        user since the batch began."""
        return [
            site for site in sites if site in called and site.index not in self._missed and site.weight.requires_grad
        ]

    def state_dict(self) -> dict[str, list[int]]:
        """Return the sites that backprop missed."""
        return {"missed": sorted(self._missed)}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        """Restore what `state_dict` returned."""
        self._missed = set(state["missed"])

    def _warn(self, unseen: list[Site]) -> None:
        if not unseen:
            return
        self._warned_of.update(site.index for site in unseen)
        more = f" and {len(unseen) - 1} more" if len(unseen) > 1 else ""
        warnings.warn(
            f"layer '{unseen[0].name}'{more}: the weight has a gradient, but the layer itself was not called (its "
            "weight or its forward() is used directly). A layer that is not called cannot be predicted: its weight "
            "is frozen in GP batches.",
            AdagpWarning,
            stacklevel=2,
        )


def _check_not_stepped(site: Site) -> None:
    """Raise if a hook of the user's has removed the gradient of `site` in the backward pass."""
    if getattr(site.weight, "_post_accumulate_grad_hooks", None):
        raise UsageError(
            f"the gradient of layer '{site.name}' was missing after the backward pass, and its weight has a hook "
            "(register_post_accumulate_grad_hook): an optimizer that steps in the backward pass leaves no true gradient to "
            "learn from. Remove the hook, give the optimizers to adagp.attach, and call batch.step()."
        )
