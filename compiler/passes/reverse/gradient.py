"""Reverse mode of a kernel: recompute the temporaries, then the reverse of each task, last to first."""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import dataclass, replace

from ...errors import DataAccessError, DifferentiationError
from ...ir.builder import StatementBuilder
from ...ir.nodes import Assert, Axis, Block, Const, GlobalStore, Kernel, Op, Place, Stmt, Task
from ...ir.verify import verified
from ...ir.walk import atomic_of, place_of, walk
from ...tape.sizing import TaskSizing, size_task
from ..clone import clone_task
from ..dependence.access import (
    IN_A_LOOP,
    IN_A_TAPE,
    SPLIT,
    Access,
    LostValueError,
    WriteSet,
    check_cross_iteration,
    line_of,
    loads_of,
    overlap,
    overwritten,
    overwritten_loads,
    prologue_loads,
    writes_of,
)
from ..dependence.blocks import refuse_blocks, refuse_tapes
from ..dependence.collisions import check_stores
from ..dependence.ordering import AccessOrder
from ..dependence.paths import Broken, broken_paths
from ..dependence.store_maps import WritePair
from ..parts import has_parts, pieces_of
from ..scalar_replacement import replace_elements
from ..scopes import export_values
from .activity import Activity
from .copies import Env, at, copy_plain
from .costs import Costs
from .final_values import check_finals
from .prepare import prepared
from .slices import PlainSlicer, Slicer
from .states import with_fewer_states
from .task import Reverse
from .unroll import MOST_TRIPS


@dataclass(frozen=True)
class Gradient:
    """A reverse kernel, and the facts about the launch that it reverses.

    Attributes:
        kernel: the reverse kernel; without tasks if the kernel writes nothing that has a gradient.
        sizing: the input of its heap plan, for each task with adstacks.
        replayed: the reads of the primal that the reverse kernel repeats.
        broken: reads of arrays without a gradient in which a gradient is lost; they count as constants.
        meetings: the writes of parallel loops that a launch proves apart.
        before: reads of an element that the kernel overwrites afterwards, as numbers in ``replayed``, each with what overwrites it. The
            reverse kernel is right where memory holds what it held before the launch, see ``lang.autograd.kept``.
    """

    kernel: Kernel
    sizing: tuple[TaskSizing, ...]
    replayed: tuple[Access, ...] = ()
    broken: tuple[Broken, ...] = ()
    meetings: tuple[WritePair, ...] = ()
    before: tuple[tuple[int, str], ...] = ()


@verified()
def reverse_kernel(kernel: Kernel, unroll: int = MOST_TRIPS, segmented: bool = False, marks: bool = False) -> Gradient:
    """The kernel that accumulates the adjoints of everything ``kernel`` reads, given the adjoints of everything it writes.

    ``kernel`` must be lowered (no ``Exit``) and simplified. The primal is not changed; locals are shared.

    Args:
        kernel: see above.
        unroll: the most iterations of a loop that is written out where it would keep states.
        segmented: loops over segments, as a GPU likes them, see ``segments.py``. The same stacks, parameters and bits.
        marks: say at which indices the user's loops are, for the messages of checks.

    Raises:
        DifferentiationError: something has no correct gradient, by name and line.
        DataAccessError: the backward pass would read a value that the kernel overwrites, and other values that it has written.
    """
    work = _Reversal(replace(kernel, tasks=[prepared(t) for t in kernel.tasks]), unroll, segmented, marks)
    kernel, broken = work.kernel, ()
    if any(p.differentiable and p.buffer.kind != "tmp" for t in kernel.tasks for p, _, _ in writes_of(walk(t.body))):
        refuse_blocks(kernel, "gradient")
        if kernel.frees:
            raise DifferentiationError(
                f"the kernel deactivates cells of `{kernel.frees}`, whose level has a budget: their gradients have no memory then",
                kernel.loc,
                "deactivate in a kernel of its own, before or after the tape; or leave out budget=",
            )
        work = work.all_tasks()
        kernel, broken = work.kernel, broken_paths(work.kernel.tasks, work.activities)
    first = [*_clear_adjoints(kernel), *work.recomputed] if work.reversed else []
    sizing = tuple(
        size_task(
            *(kernel, task, len(first) + k, new.name),
            {d.loop: (d.number, tuple(d.stacks.values())) for d in rev.drivers.values()},
            functools.partial(Costs, rev),
        )
        for k, (new, task, rev) in enumerate(work.reversed)
        if rev is not None
    )
    tasks = [*first, *(new for new, _, _ in work.reversed)]
    return Gradient(
        Kernel(f"{kernel.name}_grad", kernel.args, tasks, [], kernel.tmps, kernel.loc),
        sizing,
        tuple(work.repeated),
        broken,
        tuple(work.meetings),
        work.before,
    )


def without_divisions(kernel: Kernel) -> Kernel | None:
    """A kernel with the same effects, whose gradient divides by fewer factors of products; None: there is none.

    The gradient of such a kernel may need what memory held before the launch.

    Raises:
        DifferentiationError: the kernel has no gradient.
    """
    products = (s for t in kernel.tasks for s in walk(t.body) if isinstance(s, Op) and s.op == "atomic")
    if not any(atomic_of(s)[1] == "mul" and atomic_of(s)[0].differentiable for s in products):
        return None
    found: Kernel | None = None
    work = _Reversal(
        replace(kernel, tasks=[prepared(clone_task(t)) for t in kernel.tasks]), MOST_TRIPS, False, False
    ).all_tasks()
    for place in work.divided:
        new = replace_elements(work.kernel if found is None else found, place)
        if new is not None:
            with suppress(DataAccessError):
                reverse_kernel(new)
                found = new
    return None if found is None else replace(found, tasks=[clone_task(t) for t in found.tasks])


class _Reversal:
    """Takes the tasks of a kernel, last to first."""

    def __init__(self, kernel: Kernel, unroll: int, segmented: bool, marks: bool) -> None:
        self.kernel, self._unroll, self._segmented, self._marks = kernel, unroll, segmented, marks
        self.activities: list[Activity] = []
        self.reversed: list[tuple[Task, Task, Reverse | None]] = []  # reverse task, primal, None: it has no adstacks
        self.recomputed: list[Task] = []
        self.repeated: list[Access] = []
        self.meetings: list[WritePair] = []
        self._orders: list[tuple[Task, AccessOrder]] = []  # of each of these: the task that it belongs to
        self._overwritten: list[tuple[Access, Access]] = []  # loads whose element is changed afterwards, and the write
        self._needed: set[Place] = set()  # temporaries that the backward pass reads
        self._after: list[Task] = []  # the tasks after the one that is being reversed
        self._later = WriteSet()
        self._reversed_last = False  # whether the task after the one that is being reversed was reversed, too
        self.before: tuple[tuple[int, str], ...] = ()  # see ``Gradient.before``

    def all_tasks(self, replaced: frozenset[Place] = frozenset()) -> _Reversal:
        """The reversal of all tasks, of a kernel with elements in locals where memory lacks their values.

        Raises:
            DataAccessError: memory lacks a value that no local can keep.
        """
        try:
            for task in reversed(self.kernel.tasks):
                self.task(task)
            self._find_before()
        except LostValueError as error:
            place = error.place
            kernel = None if place in replaced else replace_elements(self.kernel, place)
            if kernel is None:
                raise error.final() from None
        else:
            return self._without_divisions(replaced)
        return self._of(kernel).all_tasks(replaced | {place})

    def _of(self, kernel: Kernel) -> _Reversal:
        return _Reversal(kernel, self._unroll, self._segmented, self._marks)

    def _without_divisions(self, replaced: frozenset[Place]) -> _Reversal:
        """The reversal with products in locals, which divides by no factor, where it needs nothing more from before the launch."""
        for place in self.divided - replaced:
            kernel = replace_elements(self.kernel, place)
            if kernel is not None:
                try:
                    found = self._of(kernel).all_tasks(replaced | {place})
                except DataAccessError:
                    continue
                if len(found.before) <= len(self.before):
                    return found
        return self

    @property
    def divided(self) -> frozenset[Place]:
        """The places with products whose gradient divides by a factor."""
        finals = [activity.finals for activity in self.activities]
        return frozenset(atomic_of(s)[0] for f in finals for s in f.inline | f.varying)

    def task(self, task: Task) -> None:
        """Reverse one task, and see what it needs."""
        slices = Slicer(task)
        self.activities.append(slices.activity)
        finals = slices.activity.finals
        check_finals(finals.accesses(), self._after)
        self._after.insert(0, task)
        self._later.add(task)
        order = AccessOrder(task)
        if any(map(slices.activity.is_active, task.body)):
            check_cross_iteration(task)
            self.meetings += check_stores(self.kernel, task, slices.activity.varied)
            kept = slices.kept()
            self._replay([*prologue_loads(task), *loads_of(s for s in walk(task.body) if id(s) in kept)], task, order)
            self._note(finals.accesses(), task, order)
            lean, lean_slices = with_fewer_states(task, slices, self._unroll)
            rev = Reverse(lean, lean_slices, self._segmented, self._marks)
            new = _assemble(lean, rev)
            refuse_tapes(new)
            self.reversed.append((new, lean, rev))
            if finals.deferred:
                self._multiply(task, finals.deferred)
        wanted = frozenset(id(s) for s in walk(task.body) if _sets(s, self._needed))
        if self._reversed_last and not task.axes:  # the checks of what the bounds of the loop behind it read
            wanted |= frozenset(id(s) for s in walk(task.body) if isinstance(s, Assert) and s.kind == "bounds")
        self._reversed_last = any(map(slices.activity.is_active, task.body))
        again = _repeat(task, f"{task.name}_again", wanted)
        if again is not None:
            self._replay([*prologue_loads(again), *loads_of(walk(again.body))], task, order)
            self.recomputed.insert(0, again)

    def _replay(self, loads: list[Access], task: Task, order: AccessOrder) -> None:
        self._overwritten += overwritten_loads(loads, self._later, order.final)
        self._note(loads, task, order)

    def _note(self, reads: list[Access], task: Task, order: AccessOrder) -> None:
        self._needed |= {place for place, _, _ in reads if place.buffer.kind == "tmp"}
        self.repeated += reads
        self._orders += [(task, order)] * len(reads)

    def _find_before(self) -> None:
        """Find the reads of what a launch found in memory.

        Raises:
            LostValueError: other reads of the same array need what the launch left there.
        """
        if not self._overwritten:
            return
        writes, number = WriteSet(*self.kernel.tasks), {id(t): k for k, t in enumerate(self.kernel.tasks)}
        owner = {id(s): number[id(t)] for t in self.kernel.tasks for s in walk(t.body)}
        for load, write in self._overwritten:
            too_late = [  # tasks that read what the launch left
                owner[id(w[2])] == number[id(task)] and len(pieces_of(task)) == 1
                for access, (task, order) in zip(self.repeated, self._orders)
                if overlap(access[0], load[0])
                for w in writes.meeting(access[0], access[1])
                if owner[id(w[2])] < number[id(task)] or (owner[id(w[2])] == number[id(task)] and not order.initial(access, w))
            ]
            if too_late or load[0].buffer.kind == "tmp":
                split = IN_A_TAPE if has_parts(self.kernel) else SPLIT
                raise overwritten(load, line_of(write[2]), IN_A_LOOP if any(too_late) else split)
        by = {id(load[2]): line_of(write[2]) for load, write in self._overwritten}
        self.before = tuple((k, by[id(access[2])]) for k, access in enumerate(self.repeated) if id(access[2]) in by)

    def _multiply(self, task: Task, products: frozenset[Op]) -> None:
        """A task that multiplies the adjoints by the factors, when every factor has had its share."""
        new = _repeat(task, f"{task.name}_factors", frozenset(map(id, products)))
        assert new is not None
        for s in walk(new.body):
            if isinstance(s, Op) and s.op == "atomic":
                s.attr = (atomic_of(s)[0].grad, "mul")
        self._replay([*prologue_loads(new), *loads_of(walk(new.body))], task, AccessOrder(new))
        self.reversed.append((new, task, None))


def _clear_adjoints(kernel: Kernel) -> list[Task]:
    """A failed launch may have left adjoints of temporaries behind: start from zero."""
    body: Block = [GlobalStore(p.grad, (), Const(0.0, p.grad.dtype)) for p in kernel.tmps if p.grad is not None]
    return [Task(f"{kernel.name}_clear", body)] if body else []


def _copy_extent(task: Task) -> tuple[Block, list[Axis]]:
    """A private copy of prologue and axes, so that passes on one kernel do not touch the other. The indices stay."""
    prologue: Block = []
    env: Env = {}
    copy_plain(StatementBuilder(prologue), task.prologue, env, {id(s) for s in walk(task.prologue)})
    return prologue, [Axis(a.index, at(env, a.begin), at(env, a.end)) for a in task.axes]


def _assemble(task: Task, rev: Reverse) -> Task:
    export_values(rev.body, {a.index for a in task.axes})
    prologue, axes = _copy_extent(task)
    stacks = [stack for d in rev.drivers.values() for stack in d.stacks.values()]
    params = [p for d in rev.drivers.values() for p in d.params()]
    params += [f"{stack.name}.{plane}" for stack in stacks for plane in sorted({v.dtype.plane for v in stack.locals})]
    if stacks:
        params += ["rows", "threads", "lanes"]
        params += [f"stride.{plane}" for plane in sorted({v.dtype.plane for stack in stacks for v in stack.locals})]
    name = f"{task.name}_grad"
    return replace(task, name=name, body=rev.body, axes=axes, prologue=prologue, stacks=stacks, params=params, reductions=[])


def _repeat(task: Task, name: str, roots: frozenset[int]) -> Task | None:
    """The part of a task that the statements ``roots`` (by identity) need, and them; None when there are none."""
    if not roots:
        return None
    keep: set[int] = set()
    PlainSlicer(roots).slice_plain(task.body, set(), set(), keep)
    body: Block = []
    copy_plain(StatementBuilder(body), task.body, {}, keep)
    prologue, axes = _copy_extent(task)
    return replace(task, name=name, body=body, axes=axes, prologue=prologue, stacks=[], params=[], reductions=[])


def _sets(s: Stmt, needed: set[Place]) -> bool:
    place = place_of(s)
    return place in needed and not (isinstance(s, Op) and s.op == "gload")
