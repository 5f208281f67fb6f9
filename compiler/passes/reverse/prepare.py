"""Prepares a task for reversal: serial loops are written out, atomics that return a value are split into loads and stores."""

from __future__ import annotations

from dataclasses import replace

from ...ir.builder import StatementBuilder, const_i64
from ...ir.nodes import Block, GlobalStore, Loop, Op, Operand, Task
from ...ir.types import i64
from ...ir.walk import atomic_of, inner_blocks, operands, walk
from ..clone import clone_task, replace_operands, substitute
from ..dependence.access import WriteSet
from ..dependence.indexing import extents, own_element


def prepared(task: Task) -> Task:
    """A task with the same effects, ready to be reversed. ``task`` itself is left as it is."""
    return _taken_apart(_in_order(task))


def _in_order(task: Task) -> Task:
    """A loop that the user made serial, or of one iteration, as a serial task: iterations that may depend on each other are reversed in
    order.
    """
    if not task.axes or not (task.serialize or not extents(task).several):
        return task
    if any(isinstance(s, Op) and s.op == "iter" for s in walk(task.body)):
        task = _with_number(clone_task(task))
    body: Block = list(task.body)
    for axis in reversed(task.axes):
        body = [Loop(axis.index, axis.begin, axis.end, body, loc=task.loc)]
    return replace(task, body=[*task.prologue, *body], axes=[], prologue=[], serialize=False)


def _with_number(task: Task) -> Task:
    """Replace the flat number of the iteration, which a serial task does not have, by what it is. Edits ``task``."""
    head: Block = []
    b = StatementBuilder(head)
    number: Operand = const_i64(0)
    for axis in task.axes:
        begin, end, index = (b.cast(x, i64) for x in (axis.begin, axis.end, axis.index))
        size = b.op("max", b.op("sub", end, begin), const_i64(0))
        number = b.op("add", b.op("mul", number, size), b.op("sub", index, begin))
    for s in walk(task.body):
        replace_operands(s, lambda x: number if isinstance(x, Op) and x.op == "iter" else x)
    task.body[:0] = head
    return task


def _taken_apart(task: Task) -> Task:
    """Atomics whose old value is used, on elements of the iteration's own, as a load and an update; exchanges as a load and a store.

    No other iteration accesses the element in between, so this is equivalent; and loads and stores have gradients.
    """
    read = {x for s in walk(task.body) for x in operands(s) if isinstance(x, Op)}
    if not any(s in read or atomic_of(s)[1] == "xchg" for s in _candidates(task)):
        return task
    new = clone_task(task)
    writes, ranges = WriteSet(new), extents(new)
    used = {x for s in walk(new.body) for x in operands(s) if isinstance(x, Op)}
    apart = {
        s
        for s in _candidates(new)
        if (s in used or atomic_of(s)[1] == "xchg")
        and (not new.parallel or own_element(s.args[:-1], s.args[:-1], writes, ranges))
    }
    _split(new.body, apart, {})
    return new


def _candidates(task: Task) -> list[Op]:
    return [s for s in walk(task.body) if isinstance(s, Op) and s.op == "atomic" and atomic_of(s)[0].differentiable]


def _split(block: Block, apart: set[Op], known: dict[Op, Op]) -> None:
    out: Block = []
    for s in block:
        substitute(s, known)
        for inner in inner_blocks(s):
            _split(inner, apart, known)
        if isinstance(s, Op) and s in apart:
            place, code = atomic_of(s)
            known[s] = Op("gload", s.args[:-1], place.dtype, place, s.loc)
            out.append(known[s])
            out.append(GlobalStore(place, s.args[:-1], s.args[-1], s.loc) if code == "xchg" else s)
        else:
            out.append(s)
    block[:] = out
