"""The product that feedback's time goes into: a few weighted sums of all rows, each row a sample's whole map."""

import torch
from torch import Tensor

TOGETHER = 16
"""How many long rows are added up at a time."""
LONG_ALONE, LONG_SHARED = 2048, 8192
"""From how many numbers on a row is long, for one thread and for several: measured. Sharing the work takes time, too."""


def weighted_sums(weights: Tensor, rows: Tensor, out: Tensor | None = None) -> Tensor:
    """Return `weights @ rows`, in `out` if it is given.

    Maps have sizes that are powers of two, so a hundred of them begin at the same place of a CPU's cache, which holds about
    eight such lines: adding up long rows a few at a time takes half the time.
    """
    threads = torch.get_num_threads()
    long = rows.shape[1] >= (LONG_ALONE if threads == 1 else LONG_SHARED)
    if len(rows) <= TOGETHER or not long or rows.device.type != "cpu":
        return torch.mm(weights, rows, out=out)
    if threads > 1 and rows.shape[1] % threads == 0:
        found = _shared(weights, rows, threads)
        return found if out is None else out.copy_(found)
    found = torch.mm(weights[:, :TOGETHER], rows[:TOGETHER], out=out)
    for some in _later(rows):
        found.addmm_(weights[:, some], rows[some])
    return found


def _shared(weights: Tensor, rows: Tensor, threads: int) -> Tensor:
    """Return the product, each thread at its own part of all rows. Sharing every step, two are hardly quicker than one."""
    parts = rows.unflatten(1, (threads, -1)).transpose(0, 1)
    weights = weights.expand(threads, -1, -1)
    found = torch.bmm(weights[..., :TOGETHER], parts[:, :TOGETHER])
    for some in _later(rows):
        found.baddbmm_(weights[..., some], parts[:, some])
    return found.transpose(0, 1).flatten(1)


def _later(rows: Tensor) -> list[slice]:
    """Return which rows are added up together after the first ones."""
    return [slice(first, first + TOGETHER) for first in range(TOGETHER, len(rows), TOGETHER)]
