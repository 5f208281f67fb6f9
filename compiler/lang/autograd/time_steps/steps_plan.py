"""Checkpoints over time steps: how many states to keep, and in which order to run what again.

``n`` steps run in windows of ``window`` steps, aligned to the end, so that only the first may be shorter. The arrays of a program hold
one window; the state at the start of some windows is kept as a snapshot. To go back through a window it is run again from the snapshot
before it. With c snapshots, and r runs of every step beyond the first, at most C(c + r, r) windows can be reversed (Griewank and
Walther 2000); ``schedule`` reaches that bound and, below it, the smallest number of steps run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import comb
from typing import Literal, NamedTuple

from ....errors import OutOfMemory, QdrunRuntimeError

EXHAUSTIVE = 2048
"""Up to so many steps every window length is tried."""


class Action(NamedTuple):
    """One action on window ``window``. The *place* is the window at whose start the state stands.

    - ``advance``: run it and go to the next place.
    - ``store``, ``restore``: copy the state to, or from, snapshot ``slot``.
    - ``record``: run it, record its launches, and stay.
    - ``gradient``: run the gradients of the recorded launches.
    """

    kind: Literal["advance", "store", "restore", "record", "gradient"]
    window: int
    slot: int = -1


def _reach(snapshots: int, runs: int) -> int:
    """Windows that so many snapshots reverse with at most ``runs`` more runs of each."""
    return comb(snapshots + runs, runs) if runs >= 0 else 0


def extra_runs(windows: int, snapshots: int) -> int:
    """The minimal number of recomputations of the most recomputed window."""
    if windows == 1:
        return 0
    low, high = 1, 1  # smallest r with _reach(snapshots, r) >= windows
    while _reach(snapshots, high) < windows:
        low, high = high + 1, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _reach(snapshots, middle) >= windows else (middle + 1, high)
    return low


def split(windows: int, snapshots: int) -> int:
    """The number of windows to advance before the next snapshot; ``snapshots`` includes the one at the start."""
    if snapshots == 1:
        return windows - 1
    runs = extra_runs(windows, snapshots)
    return max(1, _reach(snapshots, runs - 2), windows - _reach(snapshots - 1, runs))


def schedule(windows: int, snapshots: int) -> Iterator[Action]:
    """The actions of one pass: all before the first ``gradient`` belong to the forward pass.

    Args:
        windows: at least 1.
        snapshots: at least 1 when there is more than one window.
    """
    free = list(range(snapshots))[::-1]
    if windows > 1:
        yield Action("store", 0, first := free.pop())
    else:
        first = -1
    place, segments = 0, [(0, windows, first)]  # [begin, end) with the snapshot of its start
    while segments:
        begin, end, at = segments.pop()
        if place != begin:
            yield Action("restore", begin, at)
            if end - begin == 1:
                free.append(at)
        while end - begin > 1:
            steps = split(end - begin, len(free) + 1)
            for window in range(begin, begin + steps):
                yield Action("advance", window)
            segments.append((begin, begin + steps, at))
            begin += steps
            if end - begin > 1:
                at = free.pop()
                yield Action("store", begin, at)
        yield Action("record", begin)
        yield Action("gradient", begin)
        place = -1


def advances(windows: int, snapshots: int) -> int:
    """Windows that ``schedule`` runs beyond once each."""
    if windows == 1:
        return 0
    runs = extra_runs(windows, snapshots)
    return runs * windows - comb(snapshots + runs, runs - 1)


@dataclass(frozen=True)
class StepsPlan:
    """The plan of ``n`` time steps within a budget.

    Attributes:
        n: time steps.
        window: steps that the arrays hold: state arrays have ``window + 1`` slots, scratch arrays ``window``.
        snapshots: states that are kept at starts of windows; 0 when one window holds all steps.
        state_bytes: bytes of one slot of all state arrays.
        slot_bytes: bytes that one more step in the window costs: state, scratch, and the gradients of both.
        fixed_bytes: bytes that do not depend on the window.
        made_bytes: after a run in a tape: what the steps of a window allocated at most, and the tape kept for their gradients, such as the
            solutions of sparse systems and the states of fixed points; 0 in a plan.
    """

    n: int
    window: int
    snapshots: int
    state_bytes: int
    slot_bytes: int
    fixed_bytes: int = 0
    made_bytes: int = 0

    @property
    def windows(self) -> int:
        """Windows; the first one may be shorter than the others."""
        return max(1, -(-self.n // self.window))

    @property
    def replays(self) -> int:
        """Steps that are run again on the way back, in all."""
        short = self.windows * self.window - self.n
        left, first = self.windows, 0  # how often the first window is advanced
        while left > 1:
            left, first = split(left, self.snapshots), first + 1
        return advances(self.windows, self.snapshots) * self.window - first * short

    @property
    def levels(self) -> int:
        """1 + the most often that one step is run again, as for loops in kernels."""
        return 1 + (extra_runs(self.windows, self.snapshots) if self.windows > 1 else 0)

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of the snapshots. With any, the final state is kept too, to be put back after the gradients."""
        return (self.snapshots + 1) * self.state_bytes if self.windows > 1 else 0

    @property
    def bytes(self) -> int:
        """All bytes."""
        return self.fixed_bytes + self.window * self.slot_bytes + self.snapshot_bytes + self.made_bytes

    def __str__(self) -> str:
        return (
            f"{self.n} steps in {self.windows} windows of {self.window}, {self.snapshots} snapshots, {self.replays} steps run again,"
            f" {self.bytes:,} bytes"
        )


def plan_steps(
    n: int,
    state_bytes: int,
    slot_bytes: int,
    budget: int | None = None,
    *,
    fixed_bytes: int = 0,
    levels: int | None = None,
) -> StepsPlan:
    """The plan with the fewest steps run again that fits ``budget``; of several, the one with the fewest bytes.

    Args:
        n: time steps.
        state_bytes: bytes of one slot of all state arrays, without gradients: one snapshot.
        slot_bytes: bytes that one more step in the window costs: state, scratch, and the gradients of both.
        budget: bytes for everything, ``fixed_bytes`` included; None: as many as one window of all steps needs.
        fixed_bytes: bytes that do not depend on the window, such as the one slot that state arrays have more than steps.
        levels: no step is run again more often than ``levels - 1`` times; None: as often as it takes.

    Raises:
        QdrunRuntimeError: a negative number, or no levels.
        OutOfMemory: no plan fits; names the smallest budget, which does.
    """
    if min(n, state_bytes, slot_bytes, fixed_bytes) < 0 or (levels is not None and levels < 1):
        raise QdrunRuntimeError("plan_steps: n, bytes and levels are not negative, and levels is at least 1")
    whole = StepsPlan(n, max(1, n), 0, state_bytes, slot_bytes, fixed_bytes)
    if budget is None or whole.bytes <= budget:
        return whole
    plans = [p for w in _lengths(whole, budget) if (p := _with_window(whole, w, budget, levels)) is not None]
    if not plans:
        smallest = smallest_plan(whole, levels)
        raise OutOfMemory(
            f"{n} time steps do not fit a budget of {budget:,} bytes: the smallest that is enough is {smallest.bytes:,}"
            f" ({fixed_bytes:,} in any case, {smallest.window} steps of {slot_bytes:,}, {smallest.snapshots} snapshots and the final"
            f" state of {state_bytes:,})\n  do: budget={smallest.bytes}"
            + ("" if levels is None else ", or more levels")
            + ", fewer steps, or a smaller state",
            smallest.bytes,
        )
    return min(plans, key=lambda p: (p.replays, p.bytes))


def _with_window(whole: StepsPlan, window: int, budget: int, levels: int | None) -> StepsPlan | None:
    """The best plan with windows of this length, if one fits: as many snapshots as there is room for."""
    windows = -(-whole.n // window)
    left = budget - whole.fixed_bytes - window * whole.slot_bytes
    if windows == 1 or left < 2 * whole.state_bytes:
        return None
    most = windows - 1 if whole.state_bytes == 0 else min(windows - 1, left // whole.state_bytes - 1)
    if levels is not None and _reach(most, levels - 1) < windows:
        return None
    return StepsPlan(whole.n, window, most, whole.state_bytes, whole.slot_bytes, whole.fixed_bytes)


def _lengths(whole: StepsPlan, budget: int) -> Iterator[int]:
    """Window lengths worth trying: all; of many steps, the longest for each number of windows and of snapshots near its most."""
    n, slot, state = whole.n, whole.slot_bytes, whole.state_bytes
    room = budget - whole.fixed_bytes
    longest = n - 1 if slot == 0 else min(n - 1, (room - 2 * state) // slot)
    if n <= EXHAUSTIVE:
        yield from range(1, longest + 1)
        return
    window = longest
    while window >= 1:
        windows = -(-n // window)
        shortest = -(-n // windows)
        yield window
        yield shortest
        if state and slot:
            most = min(windows - 1, (room - shortest * slot) // state - 1)
            for snapshots in range(most, max(0, most - 8), -1):
                fitting = (room - (snapshots + 1) * state) // slot
                if shortest <= fitting < window:
                    yield fitting
        window = shortest - 1


def smallest_plan(whole: StepsPlan, levels: int | None) -> StepsPlan:
    """The plan of fewest bytes: ``budget`` at its smallest."""
    best = whole
    if whole.n < 2 or levels == 1:
        return best
    for window in range(1, whole.n) if whole.n <= EXHAUSTIVE else _distinct(whole.n):
        windows = -(-whole.n // window)
        snapshots = 1 if levels is None else fewest(windows, levels - 1)
        found = StepsPlan(whole.n, window, snapshots, whole.state_bytes, whole.slot_bytes, whole.fixed_bytes)
        best = min(best, found, key=lambda p: p.bytes)
    return best


def _distinct(n: int) -> Iterator[int]:
    """The shortest window for each number of windows."""
    window = n - 1
    while window >= 1:
        window = -(-n // -(-n // window))
        yield window
        window -= 1


def fewest(windows: int, runs: int) -> int:
    """The fewest snapshots with which no window is run again more than ``runs`` times."""
    low, high = 1, max(1, windows - 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _reach(middle, runs) >= windows else (middle + 1, high)
    return low
