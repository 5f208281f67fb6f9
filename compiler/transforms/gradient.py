"""Reverse mode of a kernel: recompute the temporaries, then the reverse of each task, last to first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..adstack.sizing import TaskSizing, size_task
from ..errors import DifferentiationError
from ..ir.builder import Builder
from ..ir.nodes import Axis, Block, Const, GlobalStore, Kernel, Loop, Op, Place, Stmt, Task
from ..ir.walk import place_of, walk
from .access import Access, check_cross_iteration, check_replayed_loads, loads_of, prologue_loads
from .activity import Activity
from .copies import Env, at, copy_plain
from .paths import check_paths
from .reverse import Reverse
from .scopes import export_values
from .slices import PlainSlicer


@dataclass(frozen=True)
class Gradient:
    """A reverse kernel, what its heap plan is computed from, and the loads of the primal that it repeats."""

    kernel: Kernel
    sizing: tuple[TaskSizing, ...]
    replayed: tuple[Access, ...] = ()


def reverse_kernel(kernel: Kernel) -> Gradient:
    """The kernel that accumulates the adjoints of everything ``kernel`` reads, given the adjoints of everything it writes.

    ``kernel`` must be lowered (no ``Exit``) and simplified. The primal is not changed; locals and axis indices are shared.

    Raises:
        DifferentiationError: something has no correct gradient, by name and line.
        DataAccessError: the backward pass would read a value that the kernel overwrites.
    """
    kernel = replace(kernel, tasks=[_in_order(t) for t in kernel.tasks])
    reversed_tasks: list[tuple[Task, Task, Reverse]] = []
    activities: list[Activity] = []
    needed: set[Place] = set()
    recomputed: list[Task] = []
    repeated: list[Access] = []
    for number in reversed(range(len(kernel.tasks))):
        task, later = kernel.tasks[number], kernel.tasks[number:]
        rev = Reverse(task)
        activities.append(rev.activity)
        if any(map(rev.activity.is_active, task.body)):
            check_cross_iteration(task)
            kept = rev.slices.kept()
            replayed = [*prologue_loads(task), *loads_of(s for s in walk(task.body) if id(s) in kept)]
            check_replayed_loads(replayed, later)
            _refuse_random([*task.prologue, *(s for s in walk(task.body) if id(s) in kept)])
            needed |= _temporaries(replayed)
            repeated += replayed
            reversed_tasks.append((task, _assemble(task, rev), rev))
        again = _recompute(task, needed)
        if again is not None:
            loads = [*prologue_loads(again), *loads_of(walk(again.body))]
            check_replayed_loads(loads, later)
            _refuse_random([*again.prologue, *walk(again.body)])
            needed |= _temporaries(loads)
            repeated += loads
            recomputed.insert(0, again)
    check_paths(kernel.tasks, activities)
    first = [*_clear_adjoints(kernel), *recomputed]
    sizing = tuple(
        size_task(
            kernel, task, len(first) + k, new.name, {d.loop: (d.number, tuple(d.stacks.values())) for d in rev.drivers.values()}
        )
        for k, (task, new, rev) in enumerate(reversed_tasks)
    )
    tasks = [*first, *(new for _, new, _ in reversed_tasks)]
    return Gradient(Kernel(f"{kernel.name}_grad", kernel.args, tasks, [], kernel.tmps, kernel.loc), sizing, tuple(repeated))


def _in_order(task: Task) -> Task:
    """A loop that the user made serial, as a serial task: its iterations may depend on each other, so they are reversed in order."""
    if not task.serialize or not task.axes:
        return task
    body: Block = list(task.body)
    for axis in reversed(task.axes):
        body = [Loop(axis.index, axis.begin, axis.end, body, loc=task.loc)]
    return replace(task, body=[*task.prologue, *body], axes=[], prologue=[], serialize=False)


def _refuse_random(replayed: Iterable[Stmt]) -> None:
    for s in replayed:
        if isinstance(s, Op) and s.op == "seed":
            raise DifferentiationError(
                "the gradient needs a random number drawn here, and every launch draws others",
                s.loc,
                "draw into a field in a kernel of its own, and read the field here",
            )


def _temporaries(loads: list[Access]) -> set[Place]:
    return {place for place, _, _ in loads if place.buffer.kind == "tmp"}


def _clear_adjoints(kernel: Kernel) -> list[Task]:
    """A failed launch may have left adjoints of temporaries behind: start from zero."""
    body: Block = [GlobalStore(p.grad, (), Const(0.0, p.grad.dtype)) for p in kernel.tmps if p.grad is not None]
    return [Task(f"{kernel.name}_clear", body)] if body else []


def _copy_extent(task: Task) -> tuple[Block, list[Axis]]:
    """A private copy of prologue and axes, so that passes on one kernel do not touch the other. The indices stay."""
    prologue: Block = []
    env: Env = {}
    copy_plain(Builder(prologue), task.prologue, env, {id(s) for s in walk(task.prologue)})
    return prologue, [Axis(a.index, at(env, a.begin), at(env, a.end)) for a in task.axes]


def _assemble(task: Task, rev: Reverse) -> Task:
    export_values(rev.body, {a.index for a in task.axes})
    prologue, axes = _copy_extent(task)
    stacks = [stack for d in rev.drivers.values() for stack in d.stacks.values()]
    params = [p for d in rev.drivers.values() for p in d.params()]
    params += [f"{stack.name}.{plane}" for stack in stacks for plane in sorted({v.dtype.plane for v in stack.locals})]
    name = f"{task.name}_grad"
    return replace(task, name=name, body=rev.body, axes=axes, prologue=prologue, stacks=stacks, params=params, reductions=[])


def _recompute(task: Task, needed: set[Place]) -> Task | None:
    """The part of a task that sets the temporaries which the backward pass reads."""
    roots = frozenset(id(s) for s in walk(task.body) if _sets(s, needed))
    if not roots:
        return None
    keep: set[int] = set()
    PlainSlicer(roots).slice_plain(task.body, set(), set(), keep)
    body: Block = []
    copy_plain(Builder(body), task.body, {}, keep)
    prologue, axes = _copy_extent(task)
    return replace(
        task, name=f"{task.name}_again", body=body, axes=axes, prologue=prologue, stacks=[], params=[], reductions=[]
    )


def _sets(s: Stmt, needed: set[Place]) -> bool:
    place = place_of(s)
    return place in needed and not (isinstance(s, Op) and s.op == "gload")
