"""Feedback in several processes, each with a share of the batch: the fit and the predictions of the whole batch.

The model's call with one share, and the calls with the other shares at the same time, are one call of the whole batch. The mean
of its features is not that of a share. What was summed with deviations from a share's own mean is corrected once the global
mean is there, so that nothing is exchanged during the backward pass: with d_n the deviation from the local mean m, and M the
global mean,

    sum (e_n - M)' y_n  =  sum d_n' y_n  +  (m - M)' sum y_n

Weight gradients are linear in the mixed inputs. So either the mixed inputs are summed over the processes and one gradient is
taken of the sum, or each process takes the gradient of its own and these are summed: whichever has fewer numbers.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adagp.errors import UsageError
from adagp.layers.sites import Site
from adagp.layers.weights import from_shard, sharded_like
from adagp.papers.feedback.regression import (
    BiasCorrection,
    CrossSums,
    FeatureRows,
    GlobalRows,
    MixedInputs,
    SiteRegression,
    usable_correction,
)
from adagp.sources.base import Rounds
from adagp.sources.local import gives_rows


@dataclass(frozen=True)
class LocalCall:
    """A forward call of a site whose weight gradient is needed: its mixed inputs, and the features of its rows."""

    site: Site
    mixed: MixedInputs
    rows: FeatureRows


@dataclass(frozen=True)
class _Addition:
    """What one forward call of a site added to the sums of its fit or of its bias correction."""

    site: Site
    sums: CrossSums
    call: int

    @property
    def rows(self) -> FeatureRows:
        """The features of the call's rows in this process."""
        return self.sums.local_rows[self.call]


def join_calls(
    sites: Sequence[Site],
    fits: Mapping[int, SiteRegression],
    corrections: Mapping[int, BiasCorrection],
    calls: Sequence[LocalCall],
    gradients: dict[Site, Tensor],
) -> Rounds:
    """Sum over all processes what the fits and bias corrections of `sites` learn from, and put the mean weight gradients of
    `calls` into `gradients`.

    The tensors to be summed are yielded in three rounds: how often each site was called (which must agree), the features' sums
    and row counts, and everything else.
    """
    device = sites[0].weight.device
    learned = [(site, fits[site.index].regression.sums) for site in sites if site.index in fits]
    corrected = [(site, corrections[site.index].sums) for site in sites if site.index in corrections]
    additions = _additions([*learned, *corrected])
    counts = _call_counts(sites, additions, calls).to(device)
    yield [counts]
    processes = _check_counts(sites, counts)
    uses: list[_Addition | LocalCall] = [*additions, *calls]
    if not uses:
        return
    totals = torch.stack([_total(use.rows) for use in uses])
    yield [totals]
    means = totals[:, :-1] / totals[:, -1:]
    global_sums = _GlobalSums(additions, totals[: len(additions)], means)
    predictions = _Predictions(corrections, calls, means[len(additions) :], begun=gradients)
    yield [*global_sums.tensors(), *predictions.tensors()]
    global_sums.finish()
    for _, sums in corrected:
        # True gradients are means over the processes, so the inputs that explain them must be, too.
        sums.divide(processes)
    for site, gradient in predictions.gradients(processes):
        gradients[site] = gradients[site] + gradient if site in gradients else gradient


def _additions(sums_by_site: Sequence[tuple[Site, CrossSums]]) -> list[_Addition]:
    return [_Addition(site, sums, call) for site, sums in sums_by_site for call in range(len(sums.local_rows))]


def _total(rows: FeatureRows) -> Tensor:
    """Return the sum of the features over the rows, and the number of rows at the end."""
    return torch.cat([rows.exact_mean[0] * len(rows), rows.exact_mean.new_tensor([len(rows)])])


def _call_counts(sites: Sequence[Site], additions: Sequence[_Addition], calls: Sequence[LocalCall]) -> Tensor:
    """Return for each site the numbers of additions and of calls here, the squares of both, and a 1 at the end.

    Summed over P processes, equal counts c give P c and P c^2: `_check_counts` compares P * sum c^2 with (sum c)^2.
    """
    counts = torch.zeros(2, len(sites), dtype=torch.float64)
    positions = {site: position for position, site in enumerate(sites)}
    for addition in additions:
        counts[0, positions[addition.site]] += 1
    for call in calls:
        counts[1, positions[call.site]] += 1
    return torch.cat([counts.flatten(), counts.square().flatten(), torch.ones(1, dtype=torch.float64)])


def _check_counts(sites: Sequence[Site], counts: Tensor) -> int:
    """Return the number of processes; raise UsageError if a site was not called equally often in all of them."""
    *numbers, processes = counts.tolist()
    half = len(numbers) // 2
    for position, (total, squares) in enumerate(zip(numbers[:half], numbers[half:], strict=True)):
        if processes * squares != total * total:
            raise UsageError(
                f"layer '{sites[position % len(sites)].name}' was not called equally often in all processes: feedback joins "
                "each call with those of the other processes. Give all of them as many micro-batches, or exclude the layer."
            )
    return int(processes)


class _GlobalSums:
    """The sums of this batch. `totals` are the summed features of each addition, over all processes, and its row count."""

    def __init__(self, additions: Sequence[_Addition], totals: Tensor, means: Tensor) -> None:
        self._sums = list(dict.fromkeys(addition.sums for addition in additions))
        # Sites called with the same rows have equal totals: the bytes of these identify a call of the model.
        self._keys = [bytes(total.cpu().numpy().tobytes()) for total in totals]
        self._positions: dict[CrossSums, list[int]] = {}
        self._second: dict[bytes, Tensor] = {}
        self._means: dict[bytes, tuple[Tensor, float]] = {}
        for position, addition in enumerate(additions):
            self._positions.setdefault(addition.sums, []).append(position)
            rows, key, mean = addition.rows, self._keys[position], means[position : position + 1]
            self._means.setdefault(key, (mean, float(totals[position, -1])))
            self._second.setdefault(key, rows.second_around(mean))
            addition.sums.shift(addition.call, rows.exact_mean - mean)

    def tensors(self) -> list[Tensor]:
        """Return what is summed over the processes."""
        return [*self._second.values(), *(tensor for sums in self._sums for tensor in sums.tensors())]

    def finish(self) -> None:
        """Replace the features of each addition by those of all processes."""
        rows = {key: GlobalRows(mean, count, self._second[key]) for key, (mean, count) in self._means.items()}
        for sums in self._sums:
            sums.rows = [rows[self._keys[position]] for position in self._positions[sums]]


class _Predictions:
    """The weight gradients of the calls, before and after the sum over processes; `begun` sites have one already."""

    def __init__(
        self,
        corrections: Mapping[int, BiasCorrection],
        calls: Sequence[LocalCall],
        means: Tensor,
        begun: Collection[Site],
    ) -> None:
        around_mean: dict[tuple[FeatureRows, bytes], FeatureRows] = {}
        self._mixed: list[tuple[LocalCall, FeatureRows, BiasCorrection | None]] = []
        self._gradients: dict[Site, Tensor] = {}
        subtracted = set(begun)
        count = Counter(call.site for call in calls)
        for call, mean in zip(calls, means, strict=True):
            key = call.rows, mean.cpu().numpy().tobytes()
            if key not in around_mean:
                around_mean[key] = call.rows.around(mean[None])
            site, rows = call.site, around_mean[key]
            call.mixed.centre(mean[None])
            correction = None if site in subtracted else usable_correction(corrections, site)
            subtracted.add(site)  # once per batch, not once per call
            if count[site] * call.mixed.mixed.numel() < site.weight.numel():
                self._mixed.append((call, rows, correction))
                continue
            gradient = call.mixed.weight_gradient(rows, correction)
            self._gradients[site] = self._gradients[site] + gradient if site in self._gradients else gradient

    def tensors(self) -> list[Tensor]:
        """Return what is summed over the processes."""
        self._gradients = {site: gradient.float().contiguous() for site, gradient in self._gradients.items()}
        return [*(call.mixed.mixed for call, *_ in self._mixed), *self._gradients.values()]

    def gradients(self, processes: int) -> Iterator[tuple[Site, Tensor]]:
        """Yield the mean over the processes of each site's gradient, sharded like its weight."""
        for site, total in self._gradients.items():
            yield site, sharded_like((total / processes).to(site.weight.dtype), site.weight)
        for call, rows, correction in self._mixed:
            local_only, weight = gives_rows(call.site), call.site.weight
            call.mixed.mixed.div_(processes)
            gradient = call.mixed.weight_gradient(rows, correction, local_only=local_only)
            yield call.site, from_shard(gradient, weight) if local_only else sharded_like(gradient, weight)
