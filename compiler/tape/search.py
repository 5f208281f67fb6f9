"""The fastest plan that fits a budget: levels and segment lengths of every loop, and workers of every task.

The front of a kernel holds all choices that nothing beats in both bytes and predicted time. The budget picks the fastest that fits; what
is then left over goes into the segments of one two-level loop, the one where it saves the most time. More bytes are never predicted slower.
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
    """What the search knows of one task that keeps something.

    Attributes:
        task: its loops.
        trips: of each loop with stacks, by number.
        cost: its cost model.
        rows: by how many workers may run it, and how many lanes of each have rows.
        width: iterations that the code runs side by side.
        options: what the loops may choose from, given how many two-level plans; None: all that is useful.
        shared: the stacks that lie on chip.
    """

    task: TaskSizing
    trips: Mapping[int, Trips]
    cost: TaskCost
    rows: Mapping[tuple[int, int], Rows]
    width: int
    options: Callable[[int], dict[int, LoopOptions]] | None = None
    shared: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Choice:
    """The plans of a task's loops by number, the workers that run it, the stacks that lie on chip, and the lanes."""

    plans: Mapping[int, LoopPlan]
    workers: int
    shared: frozenset[str] = frozenset()
    lanes: int = 1


class TooSmall(Exception):
    """No plan fits. ``choices``: the smallest plan."""

    def __init__(self, choices: list[Choice]) -> None:
        super().__init__("no plan fits")
        self.choices = choices


def fit(asks: Sequence[Ask], budget: int, fixed_slots: int, size: Callable[[list[Choice]], int]) -> list[Choice]:
    """The choices of the fastest plan of at most ``budget`` bytes.

    Args:
        asks: the tasks.
        budget: bytes of the heap.
        fixed_slots: slots of loops without a bound; 0: thinning.
        size: the bytes of the heap under some choices, exactly.

    Raises:
        TooSmall: there is none.
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
    """The front of a kernel. Its picks are by (task, loop), ``_WORKERS`` for the workers."""

    def __init__(self, asks: Sequence[Ask], fixed_slots: int) -> None:
        self.asks = asks
        self.numbers: dict[int, tuple[int, int]] = {}  # key of a pick -> task, loop
        loops = sum(len(a.trips) for a in asks)
        planes = {plane for a in asks for plane in a.task.planes}
        # a plan is to take about a millisecond; where no segment is grown in the end, there are more to choose from
        many = {1: 40, 2: 30, 3: 10 if len(planes) == 1 else 20}.get(loops, 7)
        self.options: list[dict[int, LoopOptions]] = []
        self.crews: list[tuple[np.ndarray, np.ndarray]] = []  # of each task: rows and rounds by workers and lanes
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
        """The front of a task over the numbers of workers and lanes, its picks named for the kernel."""
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

    def choices(self, point: int, grown: tuple[int, int, int] | None = None) -> list[Choice]:
        """The choices of a point of the front. ``grown``: task, loop, and the segment length that it gets instead."""
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
        return [Choice(p, workers, a.shared, lanes) for p, (workers, lanes), a in zip(plans, crews, self.asks)]

    def grown(self, within: int, budget: int) -> list[Choice]:
        """The best of the first ``within`` points with one two-level loop grown into what is left of the budget."""
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
