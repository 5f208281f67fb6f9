"""Scalar replacement: an element of memory that a block reads and writes several times becomes a local for the length of the block.

A backward pass may read memory as a launch found it, or as the launch left it. A value in between is in memory no longer; in a local it is
state of a loop, which adstacks keep. The element is read once before its first access in the block and written once after its last.
A sweep (``x[i] = f(x[i], x[i - 1])`` in order) reads what the iteration before has written: another local carries that on.
See Callahan, Carr and Kennedy, "Improving register allocation for subscripted variables" (PLDI 1990).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import combinations

from ..ir.alias import same_array
from ..ir.builder import StatementBuilder, convert
from ..ir.nodes import Block, Const, GlobalStore, Kernel, Local, Loop, Op, Operand, Place, Stmt, Task
from ..ir.types import u1
from ..ir.walk import atomic_of, index_of, inner_blocks, is_fence, place_of, walk
from .clone import clone_task, substitute
from .dependence.access import WriteSet, overlap
from .dependence.indexing import Linear, extents, held_axes, linear
from .simplify.simplify import simplify_in_place

CODES = ("add", "mul", "min", "max")
"""Updates that are operations, too."""

MOST = 100
"""Elements of one block that are compared with each other."""

Forms = tuple[Linear, ...]


def replace_elements(kernel: Kernel, place: Place) -> Kernel | None:
    """The kernel with elements of ``place`` in locals; None where no element can be.

    ``kernel`` is lowered, and each loop of it that runs in order is a loop of a task without axes. It is not changed.
    """
    tasks = [_replaced(task, place) for task in kernel.tasks]
    if not any(tasks):
        return None
    return replace(kernel, tasks=[new or task for new, task in zip(tasks, kernel.tasks)])


def _replaced(task: Task, place: Place) -> Task | None:
    if not any(place_of(s) is place for s in walk(task.body)):
        return None
    new = clone_task(task)
    if not _TaskRewriter(new).block(new.body, place):
        return None
    simplify_in_place(new)
    return new


@dataclass
class _Element:
    """The accesses of a block to one element.

    Attributes:
        index: as one of them has it.
        always: whether the block makes one of them whatever happens, so that the element exists.
    """

    index: tuple[Operand, ...]
    accesses: list[Stmt]
    always: bool


class _TaskRewriter:
    def __init__(self, task: Task) -> None:
        self._task = task
        self._written, self._ranges = WriteSet(task), extents(task)

    def block(self, block: Block, place: Place) -> bool:
        """Replace elements in a block as a whole, or else in the blocks in it; whether any was."""
        if any(map(is_fence, walk(block))):
            return False
        found = [e for e in _elements(block, place) if self._is_own(e)]
        for element in found:
            _replace(block, place, element)
        if found:
            return True
        if any([self._sweep(block, loop, place) for loop in list(block) if isinstance(loop, Loop)]):
            return True
        return any([self.block(inner, place) for s in block for inner in inner_blocks(s)])  # a list: each of them

    def _sweep(self, block: Block, loop: Loop, place: Place) -> bool:
        """Replace the element that each iteration of a loop writes and the next one reads; whether the loop is such a sweep."""
        read, found = _carried(loop, place), _elements(loop.body, place)
        if not read or len(found) != 1 or not self._is_own(found[0]):
            return False
        always = any(s is t for s in read for t in loop.body)
        if not (always or place.shape is not None) or not self._is_own(_Element(read[0].args, list(read), always)):
            return False
        carried = Local(place.dtype, "before")
        before: Block = []
        b = StatementBuilder(before)
        b.loc = read[0].loc
        b.store(carried, Const(convert(0, place.dtype), place.dtype))
        assert loop.end is not None
        with b.if_(b.op("lt" if loop.step > 0 else "gt", loop.begin, loop.end)):
            index = tuple(_at_begin(b, x, loop) for x in read[0].args)
            with nullcontext() if always else b.if_(_is_valid(b, place, index)):
                b.store(carried, b.gload(place, index))
        at = next(k for k, s in enumerate(block) if s is loop)
        block[at:at] = before
        values: dict[Op, Op] = {}
        loop.body[:] = _rewritten(loop.body, set(map(id, read)), carried, values)
        for s in walk(loop.body):
            substitute(s, values)
        local = _replace(loop.body, place, found[0])
        end = StatementBuilder(loop.body)
        end.store(carried, end.load(local))
        return True

    def _is_own(self, element: _Element) -> bool:
        """Whether no other iteration has the element."""
        if not self._task.parallel:
            return True
        index = element.index
        return held_axes(index, index, self._written, self._ranges, gaps=not element.always) >= self._ranges.several


def _elements(block: Block, place: Place) -> list[_Element]:
    """The elements of a place that a block reads and writes, each with an index that is known before. Empty where two may be the same."""
    accesses = [s for s in walk(block) if (p := place_of(s)) is not None and overlap(p, place)]
    if not all(_is_simple(s, place) for s in accesses):
        return []
    here = {s: k for k, s in enumerate(block) if isinstance(s, Op)}
    inside = {x for s in walk(block) for x in ([s] if isinstance(s, Op) else [s.index] if isinstance(s, Loop) else [])}
    inside -= here.keys()
    groups: dict[Forms, list[Stmt]] = {}
    for s in accesses:
        groups.setdefault(tuple(map(linear, index_of(s))), []).append(s)
    if len(groups) > MOST or not all(_differ(a, b, inside) for a, b in combinations(groups, 2)):
        return []
    out: list[_Element] = []
    for group in groups.values():
        if all(map(_is_load, group)):
            continue
        first = _span(block, group)[0]
        index = next((i for i in map(index_of, group) if all(_is_before(x, first, here, inside) for x in i)), None)
        if index is None:
            return []
        always = not {id(t) for t in _certain(block)}.isdisjoint(map(id, group))
        reachable = always or place.shape is not None  # else it could leave the array
        if reachable:
            out.append(_Element(index, group, always))
    return out


def _certain(block: Block) -> Iterator[Stmt]:
    """The statements that a block runs whatever happens, those of loops with a literal number of iterations among them."""
    for s in block:
        yield s
        if isinstance(s, Loop) and s.exit is None and isinstance(s.begin, Const) and isinstance(s.end, Const):
            if range(int(s.begin.value), int(s.end.value), s.step):
                yield from _certain(s.body)


def _is_simple(s: Stmt, place: Place) -> bool:
    """Whether a local can take the access."""
    own = place_of(s)
    assert own is not None
    known = not (isinstance(s, Op) and s.op == "atomic") or atomic_of(s)[1] in CODES
    return known and own.pool is None and same_array(own, place)


def _differ(a: Forms, b: Forms, inside: Collection[object]) -> bool:
    """Whether two elements are certainly not the same in one run of a block."""
    for x, y in zip(a, b):
        apart = x.minus(y)
        if not apart.leaves and apart.constant and not any(leaf in inside for leaf, _ in (*x.leaves, *y.leaves)):
            return True
    return False


def _is_before(x: Operand, first: int, here: dict[Op, int], inside: Collection[object]) -> bool:
    """Whether a value is known before statement number ``first`` of a block."""
    return isinstance(x, Const) or (x not in inside and here.get(x, -1) < first)


def _span(block: Block, accesses: Sequence[Stmt]) -> tuple[int, int]:
    """The numbers of the first and the last statement of a block that hold one of the accesses."""
    wanted = set(map(id, accesses))
    held = [k for k, s in enumerate(block) if id(s) in wanted or any(id(x) in wanted for i in inner_blocks(s) for x in walk(i))]
    return held[0], held[-1]


def _carried(loop: Loop, place: Place) -> list[Op]:
    """The loads of a loop that read what the iteration before has written; none: it is no sweep, or one that reads further back."""
    accesses = [s for s in walk(loop.body) if (p := place_of(s)) is not None and overlap(p, place)]
    written = next((s for s in accesses if not _is_load(s)), None)
    if written is None or loop.end is None or abs(loop.step) != 1 or not all(_is_simple(s, place) for s in accesses):
        return []
    forms = tuple(map(linear, index_of(written)))
    inside = {x for s in walk(loop.body) for x in ([s] if isinstance(s, Op) else [s.index] if isinstance(s, Loop) else [])}
    axes = [k for k, form in enumerate(forms) if loop.index in dict(form.leaves)]
    if len(axes) != 1 or any(x in inside for f in forms for x, _ in f.leaves):
        return []
    factor = dict(forms[axes[0]].leaves)[loop.index] * loop.step
    if abs(factor) != 1:
        return []
    found: list[Op] = []
    for s in accesses:
        apart = [linear(x).minus(form) for x, form in zip(index_of(s), forms, strict=True)]
        ahead = apart[axes[0]].constant * factor  # iterations until the element is written
        if (
            any(f.leaves or (f.constant and k != axes[0]) for k, f in enumerate(apart))
            or ahead < -1
            or (ahead and not _is_load(s))
        ):
            return []
        if ahead == -1:
            assert isinstance(s, Op)
            found.append(s)
    return found


def _at_begin(b: StatementBuilder, x: Operand, loop: Loop) -> Operand:
    """A sum of a loop's index and values from outside, in its first iteration."""
    if x is loop.index:
        return b.cast(loop.begin, loop.index.dtype)
    if not isinstance(x, Op) or not any(x is s for s in walk(loop.body)):
        return x
    return b.op(x.op, *(_at_begin(b, a, loop) for a in x.args), dtype=x.dtype, attr=x.attr)


def _replace(block: Block, place: Place, element: _Element) -> Local:
    """Put an element into a local. Edits the block."""
    first, last = _span(block, element.accesses)
    local, index = Local(place.dtype, place.name.rpartition(".")[2] or "v"), element.index
    before: Block = []
    b = StatementBuilder(before)
    b.loc = getattr(element.accesses[0], "loc", None)
    b.store(local, Const(convert(0, place.dtype), place.dtype))
    valid = None if element.always else _is_valid(b, place, index)
    with b.into(before) if valid is None else b.if_(valid):
        b.store(local, b.gload(place, index))
    after: Block = []
    end = StatementBuilder(after)
    end.loc = next(getattr(s, "loc", None) for s in reversed(element.accesses) if not _is_load(s))
    with end.into(after) if valid is None else end.if_(valid):
        end.gstore(place, index, end.load(local))
    values: dict[Op, Op] = {}
    middle = _rewritten(block[first : last + 1], set(map(id, element.accesses)), local, values)
    block[first : last + 1] = [*before, *middle, *after]
    for s in walk(block):
        substitute(s, values)
    return local


def _is_valid(b: StatementBuilder, place: Place, index: tuple[Operand, ...]) -> Operand:
    """Whether an index is within its array: a block may reach it although the program never does."""
    assert place.shape is not None
    found: Operand = Const(True, u1)
    for x, extent in zip(index, place.shape):
        for test in (b.op("ge", x, Const(0, x.dtype)), b.op("lt", x, Const(extent, x.dtype))):
            found = test if isinstance(found, Const) else b.op("and", found, test)
    return found


def _rewritten(block: Block, accesses: Collection[int], local: Local, values: dict[Op, Op]) -> Block:
    """The statements with the accesses, given by identity, as accesses to a local. ``values`` gets what replaces the loads."""
    out: Block = []
    b = StatementBuilder(out)
    for s in block:
        for inner in inner_blocks(s):
            inner[:] = _rewritten(inner, accesses, local, values)
        b.loc = getattr(s, "loc", None)
        if id(s) not in accesses:
            out.append(s)
        elif isinstance(s, GlobalStore):
            b.store(local, s.value)
        else:
            assert isinstance(s, Op)
            values[s] = b.load(local)
            if not _is_load(s):
                b.store(local, b.op(atomic_of(s)[1], values[s], s.args[-1]))
    return out


def _is_load(s: Stmt) -> bool:
    return isinstance(s, Op) and s.op == "gload"
