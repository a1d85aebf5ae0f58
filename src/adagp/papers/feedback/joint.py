"""Feedback in several processes, each with a share of the batch: the fit and the predictions of the whole batch.

A call of the model with a share, and the calls with the other shares at the same time, are one call of the whole batch. The
mean of its features is not that of a share. What was added up with differences from a share's own mean is put right once
the whole mean is known, so that nothing is exchanged during the backward pass.

Weight gradients are linear in the mixed inputs. So either these are added up and the gradient of all is taken from them, or
each process takes the gradient of its own and those are added up: whichever has fewer numbers.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Size, Tensor

from adagp.errors import UsageError
from adagp.layers.shards import laid_like, spread_out
from adagp.layers.sites import Site
from adagp.papers.feedback.reference import Reference, known
from adagp.papers.feedback.regression import CallSums, FeatureRows, JointRows
from adagp.papers.feedback.site_regression import SiteRegression
from adagp.sources.base import Rounds
from adagp.sources.support.local import gives_rows


@dataclass(frozen=True)
class Asked:
    """A forward call of a site whose weight gradient is asked for: its input, its output's shape, and the error's rows."""

    site: Site
    inputs: Tensor
    shape: Size
    rows: FeatureRows


def join_calls(
    sites: Sequence[Site],
    fits: Mapping[int, SiteRegression],
    references: Mapping[int, Reference],
    asked: Sequence[Asked],
    gradients: dict[Site, Tensor],
) -> Rounds:
    """Let the fits and references of `sites` take the other processes' samples in, and put the mean weight gradients into
    `gradients`.

    The fits and references hold what was added in this batch; of the `asked` calls, those of sites without a fit are left out.
    """
    device = sites[0].weight.device
    taught = [(site, fits[site.index].regression.sums) for site in sites if site.index in fits]
    noted = [(site, references[site.index].sums) for site in sites if site.index in references]
    learned = [(site, sums, place) for site, sums in (*taught, *noted) for place in range(len(sums.added))]
    asked = [one for one in asked if one.site.index in fits]
    counts = _counts(sites, [site for site, *_ in learned], asked).to(device)
    yield [counts]
    size = _refuse_differences(sites, counts)
    if not learned and not asked:
        return
    rows = [sums.added[place] for _, sums, place in learned] + [one.rows for one in asked]
    totals = torch.stack(
        [torch.cat([one.exact_mean[0] * len(one), one.exact_mean.new_tensor([len(one)])]) for one in rows]
    )
    yield [totals]
    means = totals[:, :-1] / totals[:, -1:]
    taken = _Learned([(sums, place) for _, sums, place in learned], totals[: len(learned)], means)
    mixed = _Asked(fits, references, asked, means[len(learned) :], begun=gradients)
    yield [*taken.tensors(), *mixed.tensors()]
    taken.finish()
    for one in (one for _, sums in noted for one in sums.waiting()):
        one /= size  # gradients are means over the processes, and so are the inputs that they are taken of
    for site, gradient in mixed.gradients(size):
        gradients[site] = gradients[site] + gradient if site in gradients else gradient


def _counts(sites: Sequence[Site], learned: Sequence[Site], asked: Sequence[Asked]) -> Tensor:
    """Return for each site how often it taught and how often it was asked here, the squares of that, and a 1 at the end."""
    found = torch.zeros(2, len(sites), dtype=torch.float64)
    places = {site: place for place, site in enumerate(sites)}
    for site in learned:
        found[0, places[site]] += 1
    for one in asked:
        found[1, places[one.site]] += 1
    return torch.cat([found.flatten(), found.square().flatten(), torch.ones(1, dtype=torch.float64)])


def _refuse_differences(sites: Sequence[Site], counts: Tensor) -> int:
    """Return the number of processes; refuse sites that were not called equally often in all of them."""
    *numbers, size = counts.tolist()
    half = len(numbers) // 2
    for place, (total, squares) in enumerate(zip(numbers[:half], numbers[half:], strict=True)):
        if size * squares != total * total:
            raise UsageError(
                f"layer '{sites[place % len(sites)].name}' was not called equally often in all processes: feedback joins each "
                "call with those of the other processes. Give all of them as many micro-batches, or exclude the layer."
            )
    return int(size)


class _Learned:
    """What was added in this batch. `totals` are the sums of the features of each addition, and its rows."""

    def __init__(self, added: Sequence[tuple[CallSums, int]], totals: Tensor, means: Tensor) -> None:
        self._sums = list(dict.fromkeys(sums for sums, _ in added))
        self._keys = [bytes(one.cpu().numpy().tobytes()) for one in totals]
        self._places: dict[CallSums, list[int]] = {}
        self._own: dict[bytes, Tensor] = {}
        self._means: dict[bytes, tuple[Tensor, float]] = {}
        for place, (sums, addition) in enumerate(added):
            self._places.setdefault(sums, []).append(place)
            rows, key, mean = sums.added[addition], self._keys[place], means[place : place + 1]
            self._means.setdefault(key, (mean, float(totals[place, -1])))
            self._own.setdefault(key, rows.second_around(mean))  # sites alike share theirs
            sums.move(addition, rows.exact_mean - mean)

    def tensors(self) -> list[Tensor]:
        """Return what is added up over the processes."""
        return [*self._own.values(), *(one for sums in self._sums for one in sums.waiting())]

    def finish(self) -> None:
        """Let the additions be those of the whole batch."""
        joint = {key: JointRows(mean, count, self._own[key]) for key, (mean, count) in self._means.items()}
        for sums in self._sums:
            sums.rows = [joint[self._keys[place]] for place in self._places[sums]]


class _Asked:
    """The weight gradients that are asked for, before and after they are added up."""

    def __init__(
        self,
        fits: Mapping[int, SiteRegression],
        references: Mapping[int, Reference],
        asked: Sequence[Asked],
        means: Tensor,
        begun: Collection[Site],
    ) -> None:
        around: dict[tuple[FeatureRows, bytes], FeatureRows] = {}
        self._mixed: list[tuple[Asked, SiteRegression, FeatureRows, Reference | None, Tensor]] = []
        self._sums: dict[Site, Tensor] = {}
        subtracted = set(begun)
        calls: dict[Site, int] = {}
        for one in asked:
            calls[one.site] = calls.get(one.site, 0) + 1
        for one, mean in zip(asked, means, strict=True):
            key = one.rows, mean.cpu().numpy().tobytes()
            if key not in around:
                around[key] = one.rows.around(mean[None])
            fit, rows = fits[one.site.index], around[key]
            reference = None if one.site in subtracted else known(references, one.site)
            subtracted.add(one.site)  # once a batch, not once a call
            if calls[one.site] * fit.mixed_size(one.inputs) < one.site.weight.numel():
                self._mixed.append((one, fit, rows, reference, fit.mix(one.inputs, rows, spare=reference is not None)))
                continue
            gradient = fit.weight_gradient(one.inputs, rows, one.shape, reference)
            self._sums[one.site] = self._sums[one.site] + gradient if one.site in self._sums else gradient

    def tensors(self) -> list[Tensor]:
        """Return what is added up over the processes."""
        self._sums = {site: one.float().contiguous() for site, one in self._sums.items()}
        return [*(mixed for *_, mixed in self._mixed), *self._sums.values()]

    def gradients(self, size: int) -> Iterator[tuple[Site, Tensor]]:
        """Yield the mean over the processes of each site's gradient, spread where its weight is."""
        for site, total in self._sums.items():
            yield site, laid_like((total / size).to(site.weight.dtype), site.weight)
        for one, fit, rows, reference, mixed in self._mixed:
            held = gives_rows(one.site)
            found = fit.gradient_of_mixed(mixed / size, one.inputs, rows, one.shape, reference=reference, held=held)
            yield one.site, spread_out(found, one.site.weight) if held else laid_like(found, one.site.weight)
