"""The Pareto front: what no other point beats in every objective."""

from collections.abc import Sequence

import numpy as np


def pareto_front(values: Sequence[Sequence[float]]) -> list[bool]:
    """Tell of each row whether it is on the front; less is better in every column.

    A row is off the front if another is at most as large everywhere and smaller somewhere; equal rows stay together.
    Rows come in lexicographic order, so none can beat one that came before.
    """
    table = np.asarray(values, dtype=float)
    if table.size == 0:
        return []
    rows, places = np.unique(table, axis=0, return_inverse=True)
    kept = np.zeros(len(rows), dtype=bool)
    front = np.empty_like(rows)
    size = 0
    for number, row in enumerate(rows):
        if not (front[:size] <= row).all(axis=1).any():
            front[size] = row
            size += 1
            kept[number] = True
    return [bool(on) for on in kept[places.reshape(-1)]]
