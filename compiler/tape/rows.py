"""The number of adstack rows of a task: one for each iteration that can be in flight and passes the row predicate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..ir.trials import stack_rows
from .bounds.bounds import max_tuples
from .bounds.queries import HostInputs
from .bounds.row_count import count_passing, extent_of
from .machine import Machine
from .sizing import TaskSizing

TINY_STAKE = 1 << 10
"""Predicates are not evaluated to save less than this many bytes: a plan that reads no data can be launched without Python."""
SMALL_STAKE = 1 << 16
"""To save less than this many bytes, at most ``LOOKS_A_BYTE`` iterations per byte are evaluated: every launch with new data repeats it."""
LOOKS_A_BYTE = 4
CHEAP_COUNT = 1 << 20
"""Iterations that are evaluated in about a millisecond. More are evaluated only to save as many bytes."""


@dataclass(frozen=True)
class Rows:
    """``count`` rows, claimed by at most ``workers`` threads. ``source``: what limits them, as text."""

    count: int
    workers: int
    source: str

    def params(self, machine: Machine) -> dict[str, int]:
        """The launch parameters of a task: the number of workers, and the number of rows that they may claim."""
        return {"rows": -(-self.count // machine.lanes), "threads": self.workers, "lanes": machine.lanes}


@dataclass(frozen=True)
class RowDemand:
    """The number of rows that a launch of a task can use.

    Attributes:
        parallel: several workers run the task.
        iterations: maximum number of iterations; None: unknown.
        passing: iterations that pass the predicate, or a lower bound that suffices; None: not evaluated.
        note: why a predicate, or a part of it, was not evaluated.
    """

    parallel: bool
    iterations: int | None = None
    passing: int | None = None
    note: str = ""

    def rows(self, machine: Machine) -> Rows:
        """The rows on a machine, which has at most as many workers as the one of the demand."""
        if not self.parallel:
            return Rows(0, 1, self._gate()) if self.passing == 0 else Rows(1, 1, f"serial task{self.note}")
        workers, source = machine.workers, "workers"
        if self.iterations is not None and -(-self.iterations // machine.side_by_side) < workers:
            workers, source = -(-self.iterations // machine.side_by_side), f"{self.iterations} iterations"
        claims = workers
        if self.passing is not None and self.passing < workers:
            claims, source = self.passing, self._gate()
        return Rows(claims * machine.lanes, max(1, workers), source + self.note)

    def _gate(self) -> str:
        return f"gate: {self.passing} of {self.iterations} iterations pass" if self.parallel else "gate: it is closed"


def demand_of(task: TaskSizing, host: HostInputs, machine: Machine, stake: int | None = None) -> RowDemand:
    """The number of rows that a launch of a task can use.

    Args:
        task: a task with adstacks.
        host: the launch.
        machine: the machine with the maximum number of workers.
        stake: bytes of the rows of all workers. A predicate is evaluated if it can save enough of them; None: always.
    """
    iterations = iterations_of(task, host, machine)
    gate = task.gate
    if gate is None or iterations == 0:
        return RowDemand(task.parallel, iterations)
    note = f"; not counted: {', '.join(gate.dropped)}" if gate.dropped else ""
    if not gate.tests:
        return RowDemand(task.parallel, iterations, note=note)
    if machine.approximate and gate.approximable:
        return RowDemand(task.parallel, iterations, note="; gate not counted: the GPU approximates a division or a root in it")
    if stake is not None and stake < TINY_STAKE:
        return RowDemand(task.parallel, iterations, note=f"; gate not counted: all rows take {stake:,} bytes")
    extent = extent_of(gate, host)
    if extent is None:
        return RowDemand(task.parallel, iterations, note="; gate not counted: how many iterations there are is unknown")
    if stake is not None and stake < SMALL_STAKE and extent.looked_at > LOOKS_A_BYTE * stake:
        looked = f"{extent.looked_at:,} iterations to look at"
        return RowDemand(task.parallel, iterations, note=f"; gate not counted: all rows take {stake:,} bytes, {looked}")
    if extent.looked_at > max(CHEAP_COUNT, math.inf if stake is None else stake):
        return RowDemand(task.parallel, iterations, note=f"; gate not counted: {extent.looked_at:,} iterations to look at")
    passing = count_passing(gate, extent, host, machine.rows if task.parallel else 1)
    return RowDemand(task.parallel, extent.iterations, passing, note=note)


def iterations_of(task: TaskSizing, host: HostInputs, machine: Machine) -> int | None:
    """Maximum iterations of a task's parallel loop; in a batch, maximum threads of its trials. None: unknown."""
    count = max_tuples(task.axes, host)
    if count is None or not task.trials:
        return count
    return count * machine.trial_lanes if machine.trial_lanes else stack_rows(count)
