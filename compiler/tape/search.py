"""Searches the fastest plan that fits a budget: levels and segment lengths of every loop, and workers of every task.

The front of a kernel contains all Pareto-optimal choices of bytes and predicted time. The search takes the fastest that fits the budget.
Unused bytes lengthen the segments of one two-level loop, the one that gains most. A larger budget never has a slower prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .bounds.bounds import Trips
from .cost import TaskCost
from .levels import LoopPlan, two_levels
from .options import LoopOptions, options_of, pareto
from .pareto import NOTHING, Front, region_front, shared, thinned
from .rows import Rows
from .sizing import TaskSizing


@dataclass(frozen=True)
class Ask:
    """The inputs of the search for one task with adstacks.

    Attributes:
        task: its loops.
        trips: of each loop with stacks, by number.
        cost: its cost model.
        rows: number of rows by number of workers and lanes per worker.
        width: iterations that the code runs in SIMD lanes.
        options: returns the options of the loops, given the number of two-level plans; None: all useful ones.
        shared: the names of the on-chip stacks.
    """

    task: TaskSizing
    trips: Mapping[int, Trips]
    cost: TaskCost
    rows: Mapping[tuple[int, int], Rows]
    width: int
    options: Callable[[int], dict[int, LoopOptions]] | None = None
    shared: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TaskChoice:
    """The plans of a task's loops by number, its workers, its on-chip stacks, and its lanes."""

    plans: Mapping[int, LoopPlan]
    workers: int
    shared: frozenset[str] = frozenset()
    lanes: int = 1


class TooSmall(Exception):
    """No plan fits. ``choices``: the smallest plan."""

    def __init__(self, choices: list[TaskChoice]) -> None:
        super().__init__("no plan fits")
        self.choices = choices


def fit(asks: Sequence[Ask], budget: int, fixed_slots: int, size: Callable[[list[TaskChoice]], int]) -> list[TaskChoice]:
    """The choices of the fastest plan of at most ``budget`` bytes.

    Args:
        asks: the tasks.
        budget: bytes of the heap.
        fixed_slots: slots of loops without a bound; 0: thinning.
        size: returns the exact bytes of the heap under some choices.

    Raises:
        TooSmall: no plan fits.
    """
    work = _Search(asks, fixed_slots)
    if work.front.exact:
        within = int(np.searchsorted(work.front.bytes, budget, side="right"))
        if not within:
            raise TooSmall(work.choices(0))
        return work.grown(within, budget)
    count = len(work.front.bytes)
    for k in reversed(range(int(np.searchsorted(work.front.bytes, budget, side="right")))):
        if size(work.choices(k)) <= budget:
            return work.choices(k)
    raise TooSmall(min((work.choices(k) for k in range(count)), key=size))


_WORKERS = -1


class _Search:
    """Compute the front of a kernel. The key of a pick is (task, loop), with ``_WORKERS`` as the loop for the workers."""

    def __init__(self, asks: Sequence[Ask], fixed_slots: int) -> None:
        self.asks = asks
        self.numbers: dict[int, tuple[int, int]] = {}  # key of a pick -> task, loop
        loops = sum(len(a.trips) for a in asks)
        planes = {plane for a in asks for plane in a.task.planes}
        # a plan should take about a millisecond; without a final growth of segments it can afford more options
        many = {1: 40, 2: 30, 3: 10 if len(planes) == 1 else 20}.get(loops, 7)
        self.options: list[dict[int, LoopOptions]] = []
        self.crews: list[tuple[np.ndarray, np.ndarray]] = []  # rows and rounds of each task, by workers and lanes
        self.front = NOTHING
        for k, ask in enumerate(asks):
            if ask.options:
                options = ask.options(many)
            else:
                options = {
                    n: options_of(ask.cost.loops[n], t.count, t.source, fixed_slots, many) for n, t in sorted(ask.trips.items())
                }
            self.options.append(options)
            self.front = shared(self.front, self._task_front(k, ask, options, len(planes) == 1), len(planes) == 1)

    def _task_front(self, k: int, ask: Ask, options: dict[int, LoopOptions], one_plane: bool) -> Front:
        """The front of a task over the numbers of workers and lanes, with the keys of the kernel's picks."""
        one = region_front(ask.task.region, options, one_plane)
        rows = np.array([r.count for r in ask.rows.values()], np.int64)
        rounds = np.array([ask.cost.rounds(r.workers, lanes, ask.width) for (_, lanes), r in ask.rows.items()], np.float64)
        self.crews.append((rows, rounds))
        size = np.multiply.outer(rows, one.bytes).ravel()
        time = np.multiply.outer(rounds, ask.cost.rest + one.nanoseconds).ravel()
        keep = thinned(pareto(size, time))
        crew, at = np.divmod(keep, len(one.bytes))
        picks = {self._key(k, n): p[at] for n, p in one.picks.items()}
        picks[self._key(k, _WORKERS)] = crew
        return Front(size[keep], time[keep], picks, one.exact)

    def _key(self, task: int, loop: int) -> int:
        self.numbers[len(self.numbers)] = task, loop
        return len(self.numbers) - 1

    def choices(self, point: int, grown: tuple[int, int, int] | None = None) -> list[TaskChoice]:
        """The choices of a point of the front. ``grown``: a task, a loop of it, and the new segment length of that loop."""
        plans: list[dict[int, LoopPlan]] = [{} for _ in self.asks]
        crews = [(1, 1)] * len(self.asks)
        for key, picks in self.front.picks.items():
            task, loop = self.numbers[key]
            if loop == _WORKERS:
                crews[task] = list(self.asks[task].rows)[int(picks[point])]
            else:
                plans[task][loop] = self.options[task][loop].plan(int(picks[point]))
        if grown:
            task, loop, segment = grown
            old = plans[task][loop]
            assert old.bound is not None
            plans[task][loop] = two_levels(old.bound, segment, old.source)
        return [TaskChoice(p, workers, a.shared, lanes) for p, (workers, lanes), a in zip(plans, crews, self.asks)]

    def grown(self, within: int, budget: int) -> list[TaskChoice]:
        """The best of the first ``within`` points after one two-level loop has grown into the unused bytes of the budget."""
        front = self.front
        left = budget - front.bytes[:within]
        best, found = float(front.nanoseconds[within - 1]), (within - 1, None)
        for key, picks in front.picks.items():
            task, loop = self.numbers[key]
            if loop == _WORKERS:
                continue
            options = self.options[task][loop]
            at = np.flatnonzero(options.two_levels[picks[:within]])
            if not len(at):
                continue
            pick = picks[at]
            crew = front.picks[next(q for q, name in self.numbers.items() if name == (task, _WORKERS))][at]
            rows, rounds = self.crews[task]
            segment, time = options.grown(options.bytes[pick] + left[at] // np.maximum(1, rows[crew]))
            total = front.nanoseconds[at] + rounds[crew] * (time - options.nanoseconds[pick])
            total[segment == 0] = np.inf
            k = int(np.argmin(total))
            if total[k] < best:
                best, found = float(total[k]), (int(at[k]), (task, loop, int(segment[k])))
        return self.choices(*found)
