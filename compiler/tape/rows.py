"""How many adstack rows a task needs: one for each iteration that can be in flight and passes the gate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .bounds.bounds import max_tuples
from .bounds.queries import Host
from .bounds.row_count import count_passing, extent_of
from .machine import Machine
from .sizing import TaskSizing

TINY_STAKE = 1 << 10
"""Rows of fewer bytes in all are never counted: a launch that reads no data to be planned can be made without Python."""
SMALL_STAKE = 1 << 16
"""Rows of fewer bytes in all are worth ``LOOKS_A_BYTE`` iterations for each byte: every launch with new data repeats the count."""
LOOKS_A_BYTE = 4
CHEAP_COUNT = 1 << 20
"""Iterations that are counted in about a millisecond. More are looked at only to save as many bytes."""


@dataclass(frozen=True)
class Rows:
    """``count`` rows, claimed by at most ``workers`` threads; ``source`` says what limits them."""

    count: int
    workers: int
    source: str

    def params(self, machine: Machine) -> dict[str, int]:
        """The launch parameters of a task: how many workers may run it, and how many of them may claim a row."""
        return {"rows": -(-self.count // machine.lanes), "threads": self.workers, "lanes": machine.lanes}


@dataclass(frozen=True)
class RowDemand:
    """What a launch of a task can use.

    Attributes:
        parallel: several workers run it.
        iterations: at most; None: unknown.
        passing: those that pass the gate, or that many and more; None: not counted.
        note: why a gate, or a condition of it, was not counted.
    """

    parallel: bool
    iterations: int | None = None
    passing: int | None = None
    note: str = ""

    def rows(self, machine: Machine) -> Rows:
        """The rows on a machine with no more workers than the one that the demand was found for."""
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


def rows_of(task: TaskSizing, host: Host, machine: Machine, stake: int | None = None) -> Rows:
    """The rows of a task that keeps something; the arguments are those of ``demand_of``."""
    return demand_of(task, host, machine, stake).rows(machine)


def demand_of(task: TaskSizing, host: Host, machine: Machine, stake: int | None = None) -> RowDemand:
    """What a launch of a task can use.

    Args:
        task: it keeps something.
        host: the launch.
        machine: its workers are the most that will be asked for.
        stake: bytes of the rows of all workers. A gate is counted if there is enough to save; None: there is.
    """
    iterations = iterations_of(task, host, machine)
    gate = task.gate
    if gate is None or iterations == 0:
        return RowDemand(task.parallel, iterations)
    note = f"; not counted: {', '.join(gate.dropped)}" if gate.dropped else ""
    if not gate.tests:
        return RowDemand(task.parallel, iterations, note=note)
    if machine.approximate and gate.approximable:
        return RowDemand(
            task.parallel, iterations, note="; gate not counted: fast_math approximates a division or a root in it"
        )
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


def iterations_of(task: TaskSizing, host: Host, machine: Machine) -> int | None:
    """Iterations of a task's parallel loop, at most; in a batch, the threads that its trials can have. None: unknown."""
    count = max_tuples(task.axes, host)
    return count if count is None or not task.trials else count * machine.trial_lanes
