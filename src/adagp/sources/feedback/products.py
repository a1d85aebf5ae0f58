"""The product that feedback's time goes into: a few weighted sums of all rows, each row a sample's whole map."""

from typing import NamedTuple

import torch
from torch import Tensor


class Steps(NamedTuple):
    """How many rows are added up at a time, and from how many numbers on a row is so long that this is quicker."""

    together: int
    long: int


ONE_THREAD, SEVERAL_THREADS = Steps(16, 2048), Steps(32, 8192)
"""Measured. Several threads share each step, so steps are longer there, or sharing would take longer than the work."""


def weighted_sums(weights: Tensor, rows: Tensor, out: Tensor | None = None) -> Tensor:
    """Return `weights @ rows`, in `out` if it is given.

    Maps have sizes that are powers of two, so a hundred of them begin at the same place of a CPU's cache, which holds about
    eight such lines: adding up long rows a few at a time takes half the time.
    """
    together, long = ONE_THREAD if torch.get_num_threads() == 1 else SEVERAL_THREADS
    if len(rows) <= together or rows.shape[1] < long or rows.device.type != "cpu":
        return torch.mm(weights, rows, out=out)
    found = torch.mm(weights[:, :together], rows[:together], out=out)
    for first in range(together, len(rows), together):
        some = slice(first, first + together)
        found.addmm_(weights[:, some], rows[some])
    return found
