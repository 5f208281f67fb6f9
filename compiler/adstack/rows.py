"""How many adstack rows a task needs: one for each iteration that can be in flight."""

from __future__ import annotations

from dataclasses import dataclass

from .bounds import Host
from .machine import Machine
from .sizing import TaskSizing


@dataclass(frozen=True)
class Rows:
    """``count`` rows, claimed by at most ``workers`` threads; ``source`` says what limits them."""

    count: int
    workers: int
    source: str


def rows_of(task: TaskSizing, host: Host, machine: Machine) -> Rows:
    """The rows of a task that keeps something."""
    if not task.parallel:
        return Rows(1, 1, "serial task")
    return Rows(machine.rows, machine.workers, "workers")
