"""DropBack: only a fixed share of the weights may differ from their (decaying) initial values.

After each step of the optimizer all weights are ranked together, and those that rank below the threshold go back to
`d * w0`: their initial value times a factor that falls from 1 to 0 by `decay` in each step, so that they become zeros.

- rule `accumulated`, as printed: ranked is the size of what a weight has accumulated, `u = w - d * w0`, which for a weight
  that was not kept before is its present update. Kept weights are `d * w0 + u`. A weight that falls out loses its u.
- rule `magnitude`, as in the published code: kept weights keep all of their initial value while d falls, so that `|w - d *
  w0|` becomes the plain magnitude |w| after some 200 steps (decay 0.9).

DropBack: Golub, Lemieux, Lis, arXiv 1806.06949. Decay and estimated threshold: Procrustes, Yang et al., MICRO 2020, arXiv
2009.10976.
"""

from collections.abc import Callable, Mapping, Sequence
from math import exp, isfinite, log1p
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adagp.core.plan import Step
from adagp.engine.extensions import WeightUpdateHook
from adagp.errors import OptionError, unknown_name
from adagp.layers.sites import Survey

LARGEST_RATE = 1e-3
CHUNK = 4096
SMALLEST_CHUNK = 64
LEAST = 1e-30
"""The estimate never falls below it: from zero it could not rise again."""


def keep_largest(sizes: Sequence[Tensor], count: int) -> list[Tensor]:
    """Return masks of the `count` largest of all sizes: those above the `count`-th largest, and as many equal to it as are
    needed, the first in order. Zeros are never kept."""
    flat = torch.cat([size.reshape(-1) for size in sizes])
    count = min(count, flat.numel())
    if count == 0:
        return [torch.zeros_like(size, dtype=torch.bool) for size in sizes]
    threshold = flat.kthvalue(flat.numel() - count + 1).values
    mask = flat > threshold
    equal = (flat == threshold).nonzero().reshape(-1)
    mask[equal[: count - int(mask.sum())]] = True
    mask &= flat > 0
    parts = mask.split([size.numel() for size in sizes])
    return [part.view(size.shape) for part, size in zip(parts, sizes, strict=True)]


class QuantileEstimate:
    """A running estimate of the quantile `below` (0 to 1) of positive numbers, by the multiplicative rule of Yazidi and Hammer.

    Each number above the estimate raises it by a factor `1 + rate * below`, each other one lowers it by
    `1 - rate * (1 - below)`; in equilibrium a share `below` of the numbers is below it. The numbers of a chunk are all compared
    with the estimate at its beginning, and their factors are applied at once: two vector operations instead of a loop. The
    estimate is carried on from pass to pass. The default `rate` is our choice: 10 / the kept number, at most 1e-3, so that one
    pass can correct a start that is too high by a factor of exp(10).
    """

    def __init__(self, below: float, count: int, *, start: float = 1e-2, rate: float | None = None) -> None:
        self.below = below
        self.rate = min(LARGEST_RATE, 10 / max(1, count)) if rate is None else rate
        self.value = start
        self.chunk = int(min(CHUNK, max(SMALLEST_CHUNK, 0.5 / self.rate)))
        self._raise = log1p(self.rate * below)
        self._lower = log1p(-self.rate * (1 - below))

    def masks(self, sizes: Sequence[Tensor]) -> list[Tensor]:
        """Return masks of the numbers above the estimate as it was when they came, from the last tensor to the first."""
        masks = [self._pass(part) for part in reversed(sizes)]
        return masks[::-1]

    def _pass(self, sizes: Tensor) -> Tensor:
        flat = sizes.reshape(-1)
        passed = torch.empty_like(flat, dtype=torch.bool)
        for numbers, mask in zip(reversed(flat.split(self.chunk)), reversed(passed.split(self.chunk)), strict=True):
            torch.gt(numbers, self.value, out=mask)
            above = int(mask.sum())
            factor = exp(self._raise * above + self._lower * (len(numbers) - above))
            self.value = max(LEAST, self.value * factor)
        return passed.view(sizes.shape)


Regenerate = Callable[[], Mapping[str, Tensor]]
"""Returns the initial value of every parameter by name, as drawn from the seed."""


class InitialWeights:
    """The values that parameters had in the beginning.

    Without `regenerate` they are copied, and the copy is part of the state, until `free`. With it they need not be in any
    checkpoint; `keep=False` stores no copy in memory either and draws them again for each use.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], regenerate: Regenerate | None = None, *, keep: bool = True
    ) -> None:
        self._parameters = dict(parameters)
        self.regenerate = regenerate
        self._keep = keep or regenerate is None
        self._copy: dict[str, Tensor] | None = None
        if self._keep:
            self._copy = {name: weight.detach().clone() for name, weight in self._parameters.items()}

    @property
    def stored(self) -> int:
        """Bytes of the copy."""
        return sum(copy.numel() * copy.element_size() for copy in (self._copy or {}).values())

    def read(self) -> dict[str, Tensor]:
        """Return the initial values by name."""
        if self._copy is not None:
            return self._copy
        if self.regenerate is None:
            raise RuntimeError("the initial weights were freed")
        drawn = self.regenerate()
        initial = {
            name: drawn[name].detach().to(weight.device).to(memory_format=_order(weight))
            for name, weight in self._parameters.items()
        }
        if self._keep:
            self._copy = initial
        return initial

    def free(self) -> None:
        """Free the copy, which is no longer needed."""
        self._copy = None

    def state_dict(self) -> dict[str, Any]:
        """Return the copy, if there is one that cannot be drawn again."""
        return {} if self.regenerate is not None or self._copy is None else {"copy": dict(self._copy)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if self.regenerate is not None:
            self._copy = None
        elif "copy" not in state:
            self.free()
        else:
            saved: Mapping[str, Tensor] = state["copy"]
            self._copy = {name: saved[name].to(weight.device) for name, weight in self._parameters.items()}


def _order(parameter: Tensor) -> torch.memory_format:
    last = parameter.dim() == 4 and not parameter.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format


THRESHOLDS = ("estimate", "sort")
RULES = ("accumulated", "magnitude")
RANKED = ("sites", "all")
ESTIMATED_FROM = 100_000
"""Default number of weights from which the threshold is estimated; sorting fewer costs next to nothing."""
GONE = 1e-10
"""Initial weights that have decayed to this share count as zero."""


class DropBack(WeightUpdateHook):
    """Keeps the share `keep` of the weights; all others are their initial values times a factor that falls to 0.

    `threshold` is `sort` (exact: never more than the share), `estimate` (one pass), or None: sort below 100,000 weights.
    `over` selects what is ranked: the weights of sites, or `all` trainable parameters; what is not ranked is trained as usual.
    Initial weights are copied when it is bound, and freed when they are no longer needed; with `regenerate` no checkpoint
    holds them, and with `keep_initial=False` no copy is made at all.

    The authors used plain SGD. With momentum, a weight that was dropped is still pushed by what its momentum remembers.
    """

    def __init__(
        self,
        keep: float,
        *,
        decay: float = 0.9,
        threshold: str | None = None,
        rule: str = "accumulated",
        over: str = "sites",
        regenerate: Regenerate | None = None,
        keep_initial: bool = True,
    ) -> None:
        if not 0 < keep <= 1:
            raise OptionError(f"keep is {keep}; it must be above 0 and at most 1.")
        if not 0 <= decay <= 1:
            raise OptionError(f"decay is {decay}; it must be from 0 to 1.")
        for what, name, known in (("threshold", threshold, THRESHOLDS), ("rule", rule, RULES), ("over", over, RANKED)):
            if name not in known and not (what == "threshold" and name is None):
                raise unknown_name(what, str(name), known)
        self.keep, self.decay, self.threshold, self.rule, self.over = keep, decay, threshold, rule, over
        self._regenerate, self._keep_initial = regenerate, keep_initial
        self._steps = 0
        self._parameters: dict[str, nn.Parameter] = {}
        self._estimate: QuantileEstimate | None = None

    def bind(self, survey: Survey) -> None:
        """Take the parameters to be ranked, in the order of the model."""
        parameters = {f"{site.name}.weight" if site.name else "weight": site.weight for site in survey.sites}
        if self.over == "all":
            parameters |= {other.name: other.parameter for other in survey.rest}
        if not parameters:
            raise OptionError("DropBack has nothing to rank: the model has no site.")
        self._parameters = parameters
        self.total = sum(parameter.numel() for parameter in parameters.values())
        self.count = max(1, round(self.keep * self.total))
        if (self.threshold or ("estimate" if self.total >= ESTIMATED_FROM else "sort")) == "estimate":
            self._estimate = QuantileEstimate(1 - self.count / self.total, self.count)
        self.initial = InitialWeights(parameters, self._regenerate, keep=self._keep_initial)

    def factor(self, step: int) -> float:
        """Return the factor of the initial weights at `step`: 1 in the first, then falling."""
        factor = self.decay ** max(0, step)
        return factor if factor > GONE else 0.0

    @torch.no_grad()
    def after_step(self, step: Step) -> None:
        """Rank all weights and put back those that are not kept."""
        before, now = self.factor(self._steps - 1), self.factor(self._steps)
        initial = self._bases(1.0) if before else {}
        accumulated = self.rule == "accumulated"
        changes = self._changes(initial, before if accumulated else now)
        masks = self._masks(changes)
        if masks is None:
            return  # a run that has diverged stays as it is: dropping the infinite weights would hide it
        decayed = accumulated and before != now
        for (name, weight), change, mask in zip(self._parameters.items(), changes, masks, strict=True):
            base = now * initial[name] if now else torch.zeros_like(weight)
            weight.copy_(torch.where(mask, base + change if decayed else weight, base))
        self._steps += 1
        if not now:
            self.initial.free()

    def _changes(self, initial: Mapping[str, Tensor], factor: float) -> list[Tensor]:
        return [
            weight - factor * initial[name] if factor else weight.detach() for name, weight in self._parameters.items()
        ]

    def _masks(self, changes: list[Tensor]) -> list[Tensor] | None:
        """Return masks of the weights to keep; None if a change is not finite."""
        sizes = [change.abs() for change in changes]
        if not isfinite(sum(float(size.sum(dtype=torch.float64)) for size in sizes)):
            return None
        return keep_largest(sizes, self.count) if self._estimate is None else self._estimate.masks(sizes)

    def figures(self) -> dict[str, float]:
        """Return the share of the ranked weights that are kept."""
        bases = self._bases(self._factor)
        changed = sum(int((weight != bases[name]).sum()) for name, weight in self._parameters.items())
        return {"kept": changed / self.total}

    def state_dict(self) -> dict[str, Any]:
        """Return the steps done, the estimate and, while they are needed and cannot be drawn again, the initial weights."""
        return {
            "steps": self._steps,
            "estimate": None if self._estimate is None else self._estimate.value,
            "initial": self.initial.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if (state["estimate"] is None) != (self._estimate is None):
            raise ValueError("the checkpoint was written with the other --keep-threshold")
        self._steps = int(state["steps"])
        if self._estimate is not None:
            self._estimate.value = float(state["estimate"])
        self.initial.load_state_dict(state["initial"])
        if not self._factor:
            self.initial.free()

    def compress(self, weights: dict[str, Any]) -> dict[str, Any]:
        """Return the state_dict with mask and kept values in place of each ranked weight, if that takes less memory."""
        factor = self._factor
        if factor and self.initial.regenerate is None:
            return weights  # the initial weights would have to be stored besides
        bases, compressed = self._bases(factor), dict(weights)
        for name in self._parameters.keys() & weights.keys():
            packed = pack(weights[name].detach(), bases[name])
            if sum(tensor.numel() * tensor.element_size() for tensor in packed.values()) < weights[name].nbytes:
                compressed[name] = packed | {"factor": factor}
        return compressed

    def expand(self, weights: dict[str, Any]) -> dict[str, Any]:
        """Return the state_dict that `compress` was given."""
        packed = {name: entry for name, entry in weights.items() if isinstance(entry, dict)}
        expanded = dict(weights)
        for factor in {entry["factor"] for entry in packed.values()}:
            bases = self._bases(factor)
            expanded |= {
                name: unpack(entry, bases[name]) for name, entry in packed.items() if entry["factor"] == factor
            }
        return expanded

    @property
    def _factor(self) -> float:
        return self.factor(self._steps - 1)

    def _bases(self, factor: float) -> dict[str, Tensor]:
        if not factor:
            return {name: torch.zeros_like(weight) for name, weight in self._parameters.items()}
        initial = self.initial.read()
        return initial if factor == 1 else {name: factor * weight for name, weight in initial.items()}


def pack(weight: Tensor, base: Tensor) -> dict[str, Tensor]:
    """Return a bit mask of the positions at which `weight` differs from `base`, and its values there."""
    mask = weight != base.to(weight.device)
    return {"mask": torch.from_numpy(np.packbits(mask.cpu().numpy())), "values": weight[mask].cpu()}


def unpack(packed: Mapping[str, Tensor], base: Tensor) -> Tensor:
    """Return the weight that `pack` was given."""
    bits = np.unpackbits(packed["mask"].numpy(), count=base.numel())
    weight = base.detach().cpu().clone()
    weight[torch.from_numpy(bits).bool().view(base.shape)] = packed["values"]
    return weight
