"""Which axis of a site's output counts the samples: known from sizes where they differ, found out by autograd where not.

A linear layer takes `(samples, positions, features)` as well as `(positions, samples, features)`. With as many positions as
samples the sizes do not tell which it is. But a sample's output depends on no other sample: the gradient of one sample of
the model's output with respect to the site's output is zero in all other samples. So in the first BP batch that needs it,
that gradient is taken once.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Size, Tensor

from adagp.errors import ModelError
from adagp.layers.sites import SAY_SAMPLE_AXIS, Site
from adagp.sources.support.taps import nobody_receives

TRIED = (1, 0, 2)
"""Samples whose gradient is looked at until one tells. With a first (or last) position that stands for the whole sequence,
sample 0 lies in the first row and in the first column alike."""


class SampleAxes:
    """Knows for each site the axis of its output that goes with the first axis of the model's output.

    `keep` the outputs of sites in a forward call; `settle` finds out what their sizes do not tell, once for a site.
    """

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._asked: set[int] = set()
        self._waiting: list[tuple[Site, Tensor]] = []

    def keep(self, site: Site, output: Tensor) -> None:
        """Keep the output of a site until the model's outputs are known, if nothing is known of the site yet."""
        if site.index in self._known or site.index in self._asked or site.rule.kind != "linear":
            return
        if output.dim() > 2 and output.requires_grad and not torch.compiler.is_compiling():
            self._waiting.append((site, output))

    def settle(self, outputs: Sequence[Tensor]) -> None:
        """Find out about the sites that were kept, given the model's outputs with their graph."""
        waiting, self._waiting = self._waiting, []
        for output in outputs:
            asked = [(site, one) for site, one in waiting if unclear(one.shape, output.shape)]
            if output.requires_grad:
                self._ask(asked, output)
                self._asked.update(site.index for site, _ in asked)

    def of(self, site: Site, shape: Size, output: Size) -> int:
        """Return the axis of a site's output of `shape` that goes with the first one of the model's `output`.

        Refuse where no axis has its size, and where several have and nothing tells which one it is.
        """
        axes = candidates(site, shape, output[0])
        known = self._known.get(site.index)
        if not axes or known not in (None, *axes):
            raise ModelError(
                f"site '{site.name}' was called with {shape[0]} samples, but the model's output has {output[0]}: "
                "the output's error cannot be assigned to them. Exclude the site."
            )
        if known is not None:
            return known
        if site.rule.kind != "linear" or not unclear(shape, output):
            if output[0] > 1 and len(shape) > 2:
                self._known[site.index] = axes[0]  # for a batch in which the sizes will not tell
            return axes[0]
        if site.sequence_first is not None and int(site.sequence_first) in axes:
            return int(site.sequence_first)
        raise ModelError(
            f"the output of site '{site.name}' has the sizes {tuple(shape)}, the model's {tuple(output)}: it cannot be told "
            f"which axis counts the samples. {SAY_SAMPLE_AXIS}"
        )

    def drop(self) -> None:
        """Forget what was kept of this batch."""
        self._waiting = []

    def state_dict(self) -> dict[int, int]:
        """Return what was found out."""
        return dict(self._known)

    def load_state_dict(self, state: Mapping[int, int]) -> None:
        """Take over what `state_dict` returned."""
        self._known = dict(state)

    def _ask(self, asked: Sequence[tuple[Site, Tensor]], output: Tensor) -> None:
        sequences = output.dim() == 3 and output.shape[0] == output.shape[1]
        for sample in TRIED:
            for axis in (0, 1) if sequences else (0,):  # samples may be second in the model's output as well
                open_ = [(site, one) for site, one in asked if site.index not in self._known]
                if not open_ or sample >= output.shape[axis]:
                    continue
                for (site, one), gradient in zip(open_, _gradients(output, axis, sample, open_), strict=True):
                    found = None if gradient is None else _axis(gradient, output.shape[axis], sample)
                    if found is not None and (axis == 0 or one.dim() == 3):
                        self._known[site.index] = found if axis == 0 else 1 - found


def candidates(site: Site, shape: Size, samples: int) -> list[int]:
    """Return the axes of a site's output that could count `samples`: of convolutions, the first one alone."""
    if site.rule.kind != "linear":
        return [0] if shape[0] == samples and len(shape) == site.weight.dim() else []
    return [axis for axis, size in enumerate(shape[:-1]) if size == samples]


def unclear(shape: Size, output: Size) -> bool:
    """Tell whether the sizes leave open which axis of a linear layer's output goes with the first one of the model's."""
    if len(shape) < 3 or output[0] == 1:
        return False
    return sum(size == output[0] for size in shape[:-1]) > 1 or (len(output) == 3 and output[0] == output[1])


def _gradients(output: Tensor, axis: int, sample: int, asked: Sequence[tuple[Site, Tensor]]) -> Sequence[Tensor | None]:
    """Return the gradients of one sample of `output`, weighted so that they do not add up to nothing behind a softmax."""
    part = output.select(axis, sample)
    weights = torch.arange(part.numel(), device=part.device).cos().to(part.dtype).view(part.shape)
    with nobody_receives():
        return torch.autograd.grad(part, [one for _, one in asked], weights, retain_graph=True, allow_unused=True)


def _axis(gradient: Tensor, samples: int, sample: int) -> int | None:
    """Return the axis along which `gradient` lies at index `sample`; None where it lies along several, or along none.

    Normalisation over the batch lets some of it lie elsewhere: little, where there are more than a few samples.
    """
    energy = gradient.detach().double().square()
    axes = [axis for axis in range(energy.dim() - 1) if energy.shape[axis] == samples]
    if not axes:
        return None
    shares = sorted(((float(energy.select(axis, sample).sum()), axis) for axis in axes), reverse=True)
    total, best = float(energy.sum()), shares[0]
    second = shares[1][0] if len(shares) > 1 else 0.0
    alone = best[0] > (1 - 1e-9) * total >= second
    nearly = samples > 3 and best[0] > 0.6 * total and second < 0.5 * best[0]
    return best[1] if alone or nearly else None
