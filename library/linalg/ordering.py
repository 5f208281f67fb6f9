"""The order of the unknowns for direct solvers: nested dissection, which keeps factors sparse, and reverse Cuthill-McKee, which brings
entries near to the diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...compiler.extend import make_ndarray
from ...compiler.face import Tensor, i32, kernel
from .pattern import Pattern

LEAF = 8
"""Parts of so many unknowns are not dissected."""
SIDE = 0.2
"""The part of the unknowns that each side of a separator has at least, where there is a choice."""


@kernel
def _levels(
    begins: Tensor, neighbours: Tensor, part: Tensor, seeds: Tensor, ends: Tensor, level: Tensor, queue: Tensor
) -> None:
    """How many edges each unknown is away from the seed of its part, within the part; -1: no path leads there. ``ends``: the farthest."""
    for _ in range(1):
        for v in range(level.shape[0]):
            level[v] = -1
        for s in range(seeds.shape[0]):
            queue[0] = seeds[s]
            level[seeds[s]] = 0
            head, tail = 0, 1
            while head < tail:
                v = queue[head]
                head += 1
                for p in range(begins[v], begins[v + 1]):
                    w = neighbours[p]
                    if level[w] < 0 and part[w] == part[v]:
                        level[w] = level[v] + 1
                        queue[tail] = w
                        tail += 1
            ends[s] = queue[tail - 1]


@dataclass(frozen=True)
class _Adjacency:
    """Which unknowns share an entry: both directions of each edge, by the first end, on the host and for kernels."""

    first: np.ndarray
    then: np.ndarray
    begins: Any
    neighbours: Any

    @staticmethod
    def of(n: int, rows: np.ndarray, columns: np.ndarray) -> _Adjacency:
        off = rows != columns
        keys = np.sort(np.concatenate([rows[off] * n + columns[off], columns[off] * n + rows[off]]))
        keys = keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys
        first, then = np.divmod(keys, n)
        begins = np.searchsorted(first, np.arange(n + 1))
        return _Adjacency(first, then, _kernel_array(begins), _kernel_array(np.append(then, 0)))

    def within(self, part: np.ndarray) -> _Adjacency:
        """The edges that do not leave a part."""
        inside = (part[self.first] == part[self.then]) & (part[self.first] >= 0)
        return replace(self, first=self.first[inside], then=self.then[inside])

    def levels(self, part: np.ndarray, parts: int) -> np.ndarray:
        """How many edges each unknown is away from an end of its part; -1: no path leads there."""
        seeds, of_kernel = np.empty(parts, int), _kernel_array(part)
        nodes = np.flatnonzero(part >= 0)
        seeds[part[nodes]] = nodes
        level, queue = make_ndarray(i32, len(part), ()), make_ndarray(i32, len(part), ())
        first, ends, other = _kernel_array(seeds), make_ndarray(i32, parts, ()), make_ndarray(i32, parts, ())
        _levels(self.begins, self.neighbours, of_kernel, first, ends, level, queue)
        _levels(self.begins, self.neighbours, of_kernel, ends, other, level, queue)
        return level.to_numpy().astype(int)


def _kernel_array(numbers: np.ndarray) -> Any:
    made = make_ndarray(i32, len(numbers), ())
    made.from_numpy(numbers.astype(np.int32))
    return made


def nested_dissection(n: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """An order of the unknowns of a symmetric matrix: a separator comes after the two sides that it separates, and so on in these.

    Separators are levels of a breadth-first search that begins far out (George and Liu, An automatic nested dissection algorithm for
    irregular finite element problems, 1978). Unknowns with very many neighbours come last.

    Args:
        n: unknowns.
        rows: of each entry.
        columns: as many.

    Returns:
        The old number of each new unknown.
    """
    graph = _Adjacency.of(n, rows, columns)
    degree = np.bincount(graph.first, minlength=n)
    position = np.full(n, -1)
    part = np.where(degree > max(16, 10 * np.sqrt(n)), -1, 0)
    last = np.flatnonzero(part < 0)
    position[last[np.argsort(degree[last], kind="stable")]] = np.arange(n - len(last), n)
    begins = np.zeros(1, int)  # the first position of each part
    while (part >= 0).any():
        graph = graph.within(part)
        part, begins = _dissected(graph, degree, part, begins, position)
    return np.argsort(position)


def _dissected(
    graph: _Adjacency, degree: np.ndarray, part: np.ndarray, begins: np.ndarray, position: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Give their positions to the separators of all parts, and to the parts that have none.

    Returns:
        The parts that are left, -1 for unknowns that have a position, and the first position of each part.
    """
    level = graph.levels(part, len(begins))
    reached = np.flatnonzero(level >= 0)
    cut = _cuts(part[reached], level[reached], len(begins))
    at = np.where(part >= 0, cut[part], -1)
    near = level[graph.first]
    separator = np.zeros(len(part), bool)
    separator[graph.first[(near == at[graph.first]) & (near >= 0) & (level[graph.then] == near + 1)]] = True
    # of each part in this order: the near side, the far side, the separator, what the search did not reach; a part that is left whole
    # is a separator
    kind = np.where(separator, 2, np.where(level <= at, 0, 1))
    kind = np.where(level < 0, 3, np.where(at < 0, 2, kind))
    active = np.flatnonzero(part >= 0)
    code = 4 * part[active] + kind[active]
    sizes = np.bincount(code, minlength=4 * len(begins)).reshape(-1, 4)
    starts = (begins[:, None] + np.cumsum(sizes, 1) - sizes).ravel()
    placed = active[kind[active] == 2]
    placed = placed[np.lexsort((level[placed], degree[placed], part[placed]))]
    counts = sizes[:, 2]
    within = np.arange(len(placed)) - np.repeat(np.cumsum(counts) - counts, counts)
    position[placed] = starts[4 * part[placed] + 2] + within
    sizes[:, 2] = 0
    names = np.flatnonzero(sizes)  # of the parts that are left
    numbers = np.full(sizes.size, -1)
    numbers[names] = np.arange(len(names))
    left = np.full(len(part), -1)
    left[active] = numbers[code]
    return left, starts[names]


def _cuts(part: np.ndarray, level: np.ndarray, parts: int) -> np.ndarray:
    """The level that separates each part best; -1: none does, or the part is small."""
    longest = np.full(parts, -1)
    np.maximum.at(longest, part, level)
    offset = np.concatenate([[0], np.cumsum(longest + 1)])
    counts = np.bincount(offset[part] + level, minlength=offset[-1])
    owner = np.repeat(np.arange(parts), longest + 1)
    total = np.bincount(part, minlength=parts)
    through = np.cumsum(counts)
    before = through - counts - (np.concatenate([[0], through])[offset[:-1]])[owner]
    after = total[owner] - before - counts
    side = np.minimum(before, after)
    score = np.where(side >= SIDE * total[owner], counts, 2 * total[owner] - side)
    usable = np.flatnonzero((side > 0) & (total[owner] > LEAF))
    best = usable[np.lexsort((score[usable], owner[usable]))]
    found, where = np.unique(owner[best], return_index=True)
    cut = np.full(parts, -1)
    cut[found] = (np.arange(len(owner)) - offset[owner])[best[where]]
    return cut


def reverse_cuthill_mckee(pattern: Pattern) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An order of the unknowns of a square matrix (Cuthill and McKee, Reducing the bandwidth of sparse symmetric matrices, 1969).

    Returns:
        The old number of each new unknown, and the new row and column of each entry.
    """
    n, (rows, columns) = pattern.shape[0], pattern.entries()
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
