"""The product that feedback's time goes into: a few weighted sums of all rows, each row a sample's whole map."""

import torch
from torch import Tensor

TOGETHER = 16
"""Rows that are added up at a time."""
LONG = 2048
"""Numbers from which on a row is long."""


def weighted_sums(weights: Tensor, rows: Tensor, out: Tensor | None = None) -> Tensor:
    """Return `weights @ rows`, in `out` if it is given.

    Maps have sizes that are powers of two, so a hundred of them begin at the same place of a CPU's cache, which holds about
    eight such lines: adding up long rows a few at a time takes half the time.
    """
    if len(rows) <= TOGETHER or rows.shape[1] < LONG or rows.device.type != "cpu":
        return torch.mm(weights, rows, out=out)
    found = torch.mm(weights[:, :TOGETHER], rows[:TOGETHER], out=out)
    for first in range(TOGETHER, len(rows), TOGETHER):
        some = slice(first, first + TOGETHER)
        found.addmm_(weights[:, some], rows[some])
    return found
