"""Reading the tree: iterate statements, operands, and what a block touches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from .nodes import (
    Assert,
    Block,
    Buffer,
    Const,
    GlobalStore,
    If,
    Kernel,
    Loc,
    Local,
    LocalStore,
    Loop,
    Op,
    Operand,
    Place,
    Print,
    StackPut,
    Stmt,
    Task,
)
from .ops import TABLE


def walk(block: Block) -> list[Stmt]:
    """Every statement of the block and of the blocks inside it, in program order. The cost of a step does not depend on the depth.

    A list, because passes walk every block many times and an iterator in Python costs a call for each statement.
    """
    found: list[Stmt] = []
    open_blocks = [iter(block)]
    while open_blocks:
        for s in open_blocks[-1]:
            found.append(s)
            if isinstance(s, If):
                open_blocks += (iter(s.orelse), iter(s.then))
                break
            if isinstance(s, Loop):
                open_blocks.append(iter(s.body))
                break
        else:
            open_blocks.pop()
    return found


def inner_blocks(s: Stmt) -> tuple[Block, ...]:
    """The blocks that a statement holds."""
    if isinstance(s, If):
        return s.then, s.orelse
    return (s.body,) if isinstance(s, Loop) else ()


def stored_value(s: Stmt) -> Operand:
    """What a store or an atomic stores, or combines with what is there."""
    return s.value if isinstance(s, GlobalStore) else s.args[-1]  # type: ignore[union-attr]


def operands(s: Stmt) -> tuple[Operand, ...]:
    """The values a statement reads itself (not those read inside its blocks)."""
    match s:
        case Op():
            return s.args
        case LocalStore():
            return (s.value,)
        case GlobalStore():
            return (*s.index, s.value)
        case If():
            return (s.cond,)
        case Loop():
            return (s.begin,) if s.end is None else (s.begin, s.end)
        case Assert():
            return (s.cond, *s.args)
        case Print():
            return tuple(p for p in s.parts if not isinstance(p, str))
        case StackPut():
            return (s.slot, *s.values)
    return ()


def task_blocks(task: Task) -> list[Stmt]:
    """Every statement of a task, its prologue first."""
    return walk(task.prologue) + walk(task.body)


def has_op(kernel: Kernel, *codes: str) -> bool:
    """Whether a kernel has an operation with one of these codes."""
    return any([isinstance(s, Op) and s.op in codes for task in kernel.tasks for s in task_blocks(task)])


def stored_locals(block: Block) -> set[Local]:
    """The locals that the block, or a block inside it, stores to."""
    return {s.local for s in walk(block) if isinstance(s, LocalStore)}


def place_of(s: Stmt) -> Place | None:
    """The memory that one statement touches."""
    if s.__class__ is Op:
        return s.attr if s.op == "gload" else s.attr[0] if s.op == "atomic" else None  # type: ignore[union-attr, return-value, index]
    return s.place if isinstance(s, GlobalStore) else None


def places_of(task: Task) -> list[Place]:
    """The places that a task touches, in order of first use."""
    return _places(task_blocks(task))


def _places(statements: Iterable[Stmt]) -> list[Place]:
    found: dict[Place, None] = {}
    for s in statements:
        if isinstance(s, Op):
            if s.op == "gload":
                found[s.attr] = None  # type: ignore[index]
            elif s.op == "atomic":
                found[atomic_of(s)[0]] = None
        elif isinstance(s, GlobalStore):
            found[s.place] = None
    return list(found)


def atomic_of(s: Op) -> tuple[Place, str]:
    """Place and code of an atomic."""
    assert isinstance(s.attr, tuple)
    return s.attr[0], s.attr[1]


def index_of(s: Stmt) -> tuple[Operand, ...]:
    """The index of the element that a store, a load or an atomic touches."""
    if isinstance(s, GlobalStore):
        return s.index
    assert isinstance(s, Op)
    return s.args[: atomic_of(s)[0].ndim] if s.op == "atomic" else s.args


def written_places(block: Block) -> set[Place]:
    """The places that a block stores to or updates atomically."""
    return set(_places([s for s in walk(block) if not (isinstance(s, Op) and s.op == "gload")]))


def meets(s: Stmt) -> bool:
    """Whether a statement waits for the other threads of its block, or of its wave."""
    return isinstance(s, Op) and s.op in _MEETINGS


_MEETINGS = frozenset(("barrier", "shuffle", "ballot"))


LANE_VALUES = "values of lanes"
"""How the names of arrays begin that lanes exchange values through."""


def holds_lanes(place: Place | None) -> bool:
    """Whether lanes exchange values through a place: each thread of a block has its own element, with an iteration or without."""
    return place is not None and place.buffer.kind == "block" and place.name.startswith(LANE_VALUES)


def meets_in_grid(task: Task) -> bool:
    """Whether all threads of a task wait for each other."""
    return any(isinstance(s, Op) and s.op == "barrier" and s.attr == "grid" for s in walk(task.body))


FENCES = frozenset(("barrier", "fence"))
"""Operations whose order among the accesses to memory is seen by other threads."""


def is_fence(s: Stmt) -> bool:
    """Whether the order of a statement and the accesses to memory before and after it is seen by other threads."""
    return isinstance(s, Op) and s.op in FENCES


def cooperates(task: Task) -> bool:
    """Whether the iterations of a task meet in blocks: it has a barrier, an operation of a wave, or memory that they share."""
    statements = walk(task.body)
    return any([isinstance(s, Op) and s.op in _MEETINGS for s in statements]) or any(
        [place.buffer.kind == "block" for place in _places(statements)]
    )


def fills_blocks(task: Task) -> bool:
    """Whether every thread of the last block has an iteration: the length of the loop is a literal and a multiple of the threads of a
    block, or a product with such a literal, as in ``range(tiles * 256)``.
    """
    n = 1
    for axis in task.axes:
        if not isinstance(axis.begin, Const):
            return False
        if not isinstance(axis.end, Const):
            power = task.block & (task.block - 1) == 0  # products that are too large for their type stay multiples
            return power and len(task.axes) == 1 and axis.begin.value == 0 and _is_multiple(axis.end, task.block)
        n *= max(0, int(axis.end.value) - int(axis.begin.value))
    return n % max(1, task.block) == 0


def _is_multiple(x: Operand, of: int) -> bool:
    if not isinstance(x, Op) or not x.dtype.is_int or x.dtype.bits < 32:
        return False
    if x.op == "cast":
        return _is_multiple(x.args[0], of)
    factors = [int(a.value) for a in x.args if isinstance(a, Const)]
    return bool(factors) and ((x.op == "mul" and factors[0] % of == 0) or (x.op == "shl" and 2 ** (factors[0] % 64) % of == 0))


def loop_names(loc: Loc | None, count: int = 1) -> list[str]:
    """The user's names of a loop's indices, by its first line."""
    found = re.match(r"\s*for\s+(.+?)\s+in\b", loc.text) if loc else None
    names = [n.strip(" ()") for n in found[1].split(",")] if found else []
    if len(names) == count:
        return names
    head = names[0] if len(names) == 1 else "while" if loc and loc.text.lstrip().startswith("while") else "loop"
    return [head] if count == 1 else [f"{head}[{k}]" for k in range(count)]


class Written:
    """The locals and places that a block, and each block inside it, may write: all found in one walk.

    It knows blocks by identity, so it is of use to one pass, which may remove statements that write nothing. At a barrier or a fence, other
    threads have written whatever there is.
    """

    def __init__(self, *blocks: Block) -> None:
        self._known: dict[int, set[Local | Place]] = {}
        self._blocks = blocks
        self._all: list[Place] = []
        for block in blocks:
            self._visit(block)

    def __call__(self, block: Block) -> set[Local | Place]:
        """The writes of a block; read-only."""
        return self._known[id(block)]

    def _visit(self, block: Block) -> set[Local | Place]:
        out: set[Local | Place] = set()
        for s in block:
            if isinstance(s, Op):
                if s.op == "atomic":
                    out.add(atomic_of(s)[0])
                elif s.op in FENCES:
                    out.update(self._everything())
            elif isinstance(s, LocalStore):
                out.add(s.local)
            elif isinstance(s, If):
                out |= self._visit(s.then)
                out |= self._visit(s.orelse)
            elif isinstance(s, Loop):
                out |= self._visit(s.body)
            elif isinstance(s, GlobalStore):
                out.add(s.place)
        self._known[id(block)] = out
        return out

    def _everything(self) -> list[Place]:
        if not self._all:
            self._all = _places(s for block in self._blocks for s in walk(block))
        return self._all


def kernel_places(kernel: Kernel) -> list[Place]:
    """The places of a kernel in order of first use: the order in which their buffers are numbered."""
    seen: dict[Place, None] = {}
    for task in kernel.tasks:
        for place in places_of(task):
            seen.setdefault(place)
            if place.pool is not None:
                seen.setdefault(place.pool.slots)
        for r in task.reductions:
            seen.setdefault(r.place)
    return list(seen)


def kernel_buffers(kernel: Kernel) -> list[Buffer]:
    """The distinct buffers behind ``kernel_places``, in order of first use."""
    return list(dict.fromkeys(p.buffer for p in kernel_places(kernel)))


def is_invariant(x: Operand, loads: Callable[[Op], bool] = lambda _: False) -> bool:
    """Whether a value is the same in every iteration of a task: made of what its launch knows, and of memory if ``loads`` says so of the
    load.
    """
    seen: set[Op] = set()
    todo = [x]
    while todo:
        value = todo.pop()
        if isinstance(value, Const) or value in seen or value.op in ("arg", "shape", "param", "seed"):
            continue
        seen.add(value)
        if not (TABLE[value.op].pure and value.args) and not (value.op == "gload" and loads(value)):
            return False
        todo += value.args
    return True


def any_order(s: Op) -> bool:
    """Whether atomics of a kind on one element leave the same bits in any order, whatever their values are."""
    place, code = atomic_of(s)
    return code in ("min", "max") or (not place.dtype.is_real and code in ("add", "sub", "mul", "and", "or", "xor"))


def conditional_locals(task: Task) -> list[Local]:
    """The locals whose first store is not certain to run: they start each iteration as 0."""
    sure: set[Local] = {r.local for r in task.reductions}
    unsure: dict[Local, None] = {}
    for s in task.body:
        if isinstance(s, LocalStore):
            sure.add(s.local)
        elif isinstance(s, (If, Loop)):
            inner = [*s.then, *s.orelse] if isinstance(s, If) else s.body
            for x in walk(inner):
                if isinstance(x, LocalStore) and x.local not in sure:
                    unsure.setdefault(x.local)
    return list(unsure)


def replace_place(s: Stmt, new: Callable[[Place], Place]) -> None:
    """Let a statement that reads or writes memory do so at another place."""
    if isinstance(s, GlobalStore):
        s.place = new(s.place)
    elif isinstance(s, Op) and s.op == "gload":
        assert isinstance(s.attr, Place)
        s.attr = new(s.attr)
    elif isinstance(s, Op) and s.op == "atomic":
        assert isinstance(s.attr, tuple)
        s.attr = (new(s.attr[0]), s.attr[1])
