"""Which sites backprop reaches: what it does not move, no source may move either."""

import warnings
from collections.abc import Iterable, Mapping

from adagp.errors import AdagpWarning, UsageError
from adagp.layers.sites import Site


class Reach:
    """Remembers the sites that were called in a BP batch and got no gradient: heads that the loss ignores.

    A site whose layer is not called, though its weight gets a gradient, cannot be watched: it is held in GP batches, which is
    said once.
    """

    def __init__(self) -> None:
        self._missed: set[int] = set()
        self._told: set[int] = set()

    def note(self, sites: Iterable[Site], called: Mapping[Site, bool]) -> None:
        """Learn from the gradients of a BP batch; refuse one in which no layer was called, though there are gradients."""
        unseen = []
        for site in sites:
            if site.weight.grad is None:
                if site in called:
                    self._missed.add(site.index)
                continue
            self._missed.discard(site.index)
            if site not in called:
                unseen.append(site)
        if unseen and not called:
            raise UsageError(
                "the weights have gradients, but none of their layers was seen in a forward call. Was the model compiled and "
                "called before adagp.attach, or is another model in use? Attach first; attach(compile=True) compiles it."
            )
        self._tell([site for site in unseen if site.index not in self._told])

    def served(self, sites: Iterable[Site], called: Mapping[Site, bool]) -> list[Site]:
        """Return those of `sites` that a source may serve: called in this batch, and not missed by backprop."""
        return [site for site in sites if site in called and site.index not in self._missed]

    def state_dict(self) -> dict[str, list[int]]:
        """Return the sites that backprop missed."""
        return {"missed": sorted(self._missed)}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        """Take over what `state_dict` returned."""
        self._missed = set(state["missed"])

    def _tell(self, unseen: list[Site]) -> None:
        if not unseen:
            return
        self._told.update(site.index for site in unseen)
        more = f" and {len(unseen) - 1} more" if len(unseen) > 1 else ""
        warnings.warn(
            f"layer '{unseen[0].name}'{more}: the weight has a gradient, but the layer itself was not called (its weight is "
            "used directly, or its forward() is). What is not called cannot be predicted: the weight is held in GP batches.",
            AdagpWarning,
            stacklevel=2,
        )
