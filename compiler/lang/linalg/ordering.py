"""The order of the unknowns for direct solvers: reverse Cuthill-McKee, which brings entries near to the diagonal."""

from __future__ import annotations

import numpy as np

from .pattern import Pattern


def reverse_cuthill_mckee(pattern: Pattern) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An order of the unknowns of a square matrix (Cuthill and McKee, Reducing the bandwidth of sparse symmetric matrices, 1969).

    Returns:
        The old number of each new unknown, and the new row and column of each entry.
    """
    n, nnz = pattern.shape[0], pattern.nnz
    rows, columns = pattern.rows.to_numpy()[:nnz].astype(int), pattern.columns.to_numpy()[:nnz].astype(int)
    ends = np.concatenate([rows, columns]), np.concatenate([columns, rows])
    by_row = np.lexsort((ends[1], ends[0]))
    neighbours = ends[1][by_row]
    begins = np.searchsorted(ends[0][by_row], np.arange(n + 1))
    degrees = np.diff(begins)
    order: list[int] = []
    seen = np.zeros(n, bool)
    for start in np.argsort(degrees, kind="stable"):
        if not seen[start]:
            _visit(int(start), neighbours, begins, degrees, seen, order)
    old = np.array(order[::-1])
    new = np.empty(n, int)
    new[old] = np.arange(n)
    return old, new[rows], new[columns]


def _visit(
    start: int, neighbours: np.ndarray, begins: np.ndarray, degrees: np.ndarray, seen: np.ndarray, order: list[int]
) -> None:
    """Add what is connected with ``start``: level by level, and of each unknown the neighbours of few neighbours first."""
    at = len(order)
    order.append(start)
    seen[start] = True
    while at < len(order):
        k = order[at]
        at += 1
        found = np.unique(neighbours[begins[k] : begins[k + 1]])
        found = found[~seen[found]]
        seen[found] = True
        order.extend(found[np.argsort(degrees[found], kind="stable")].tolist())
