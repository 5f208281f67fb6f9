"""Scatter to gather: each element sums up what iterations add to it, and no add is atomic.

The adjoint of ``u[t + 1, i] = f(u[t, i - 1], u[t, i])`` adds to ``u.grad[t, i - 1]`` and ``u.grad[t, i]``: several iterations add to one
element. Where the index of each add is an axis plus a constant (or periodic, or clamped), the iterations that add to an element are known.
A loop over the elements adds their values in the order of the iterations: the sums have the bits of a serial loop, for any number of
threads.

A task becomes a loop over the *interior*, the box of elements for which no iteration is missing, without conditions; for each axis a loop
over the *rim*, the elements before and behind it, where each value has its condition; and the *rest*, whatever else the task does. Values
are computed anew where they are read, so they must not read what the task writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from ...ir.nodes import Block, Const, GlobalStore, If, Kernel, Loop, Op, Task
from ...ir.ops import TABLE, is_function
from ...ir.verify import verified
from ...ir.walk import atomic_of, cooperates, walk
from ..clone import clone_task
from ..parallel.injective import race_free
from ..parallel.reduce import reduce_in_place
from ..simplify.simplify import simplify_in_place
from .boxes import Boxes
from .contributions import MOST, Scatters
from .prepare import prepared

_VECTOR = 3
"""How much faster LLVM's vectors make a loop without branches."""
_PLAIN_ADD = 8
"""The cost of an add that stays where it is, without the atomic."""
_MOST_STATEMENTS = 6000
"""Statements of all loops of a task, at most."""


@verified()
def gather_kernel(kernel: Kernel, cost: Callable[[Block], int], stays: Callable[[Task], bool], on_gpu: bool = False) -> Kernel:
    """The kernel with gathers instead of scatters, where that pays.

    Args:
        kernel: simplified, before reductions are found; not changed.
        cost: estimates the cost of one pass through a block.
        stays: whether a task must stay as it is.
        on_gpu: no vectors run gathers, and what stays adds by atomics.
    """
    if any(task.params for task in kernel.tasks):  # launch parameters go by the numbers of the tasks
        return kernel
    tasks: list[Task] = []
    for task in kernel.tasks:
        tasks += [task] if stays(task) else _gathered(task, cost, on_gpu)
    return kernel if len(tasks) == len(kernel.tasks) else replace(kernel, tasks=tasks)


def _gathered(task: Task, cost: Callable[[Block], int], on_gpu: bool) -> list[Task]:
    """The tasks that do what a task does."""
    if not task.parallel or task.reductions or cooperates(task) or not _may_meet(task):
        return [task]
    work = prepared(task)
    scatters = Scatters(work)
    found = scatters.contributions()
    if not found:
        return [task]
    boxes = Boxes(work, scatters.pieces, found)
    interior, rest = boxes.interior(), _rest(work, {c.root for c in found})
    if len(walk(interior.body)) * (1 + len(work.axes)) > _MOST_STATEMENTS:
        return [task]
    rims = boxes.rims()
    if not _pays(work, interior, rims, rest, cost, on_gpu):
        return [task]
    if not _has_effects(rest.body):
        return [interior, *rims]
    plain = clone_task(task)
    if reduce_in_place(plain):
        rest.cost = cost(plain.body)  # decides which iterations share a partial sum
    return [interior, *rims, rest]


def _may_meet(task: Task) -> bool:
    """Whether iterations may add to one element, as far as the codes of the statements tell; not asked of a large task."""
    statements = walk(task.body)
    atomics = {s for s in statements if isinstance(s, Op) and s.op == "atomic" and atomic_of(s)[1] in ("add", "sub")}
    if len(atomics) > MOST or len(statements) > _MOST_STATEMENTS // 3:  # the pass compares each add with all accesses
        return False
    return any(atomic_of(s)[0].ndim for s in atomics) and not atomics <= race_free(task)


def _rest(work: Task, gathered: set[Op]) -> Task:
    """The task without its gathered adds."""
    rest = clone_task(replace(work, body=_without(work.body, gathered)))
    simplify_in_place(rest)
    return rest


def _without(block: Block, gathered: set[Op]) -> Block:
    out: Block = []
    for s in block:
        if isinstance(s, If):
            out.append(replace(s, then=_without(s.then, gathered), orelse=_without(s.orelse, gathered)))
        elif not (isinstance(s, Op) and s in gathered):
            out.append(s)
    return out


def _has_effects(block: Block) -> bool:
    return any(isinstance(s, GlobalStore) or (isinstance(s, Op) and s.op == "atomic") for s in walk(block))


def _pays(work: Task, interior: Task, rims: list[Task], rest: Task, cost: Callable[[Block], int], on_gpu: bool) -> bool:
    """Whether gathers and the rest take less time than scatters would. Vectors help neither functions, loops nor rims. Where the bounds are
    not known, rims are taken for a small part.
    """
    statements = walk(interior.body)
    calls = sum(
        TABLE[s.op].cost for s in statements if isinstance(s, Op) and (is_function(s.op) or s.op in ("mod", "floordiv"))
    )
    gathers = cost(interior.body)
    if not on_gpu and not any(isinstance(s, Loop) for s in statements):
        gathers = calls + (gathers - calls) // _VECTOR
    add = TABLE["atomic"].cost if on_gpu else _PLAIN_ADD
    left = _scatters(work, cost, add) - (_scatters(rest, cost, add) if _has_effects(rest.body) else 0)
    counts = [_iterations(task) for task in (work, interior, *rims)]
    if None in counts:
        return gathers <= left
    all_, inside, *outside = [n or 0 for n in counts]
    return inside * gathers + sum(n * cost(rim.body) for n, rim in zip(outside, rims)) <= all_ * left


def _iterations(task: Task) -> int | None:
    """The iterations of a task whose bounds are literals."""
    bounds = [(x.begin, x.end) for x in task.axes]
    known = [int(b.value) - int(a.value) for a, b in bounds if isinstance(a, Const) and isinstance(b, Const)]
    return prod(max(0, n) for n in known) if len(known) == len(bounds) else None


def _scatters(task: Task, cost: Callable[[Block], int], add: int) -> int:
    """The cost of an iteration, if an atomic costs so much."""
    atomics = sum(isinstance(s, Op) and s.op == "atomic" for s in walk(task.body))
    return cost(task.body) - (TABLE["atomic"].cost - add) * atomics
