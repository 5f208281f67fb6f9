"""Atomics with backward code that reads the final content of the element: minima, maxima, and products with a varying factor.

- A minimum or a maximum *claims*: the iteration whose value is the final content takes the element's adjoint, all of it. Where no
  iteration claims, the earlier content won and keeps the adjoint. Nothing else may change the element after it.
- A product with a varying factor x gives ``g * content / x`` to x and multiplies the adjoint g by x. One product on an element of the
  iteration's own does both where it stands (``inline``). Where several may meet, all factors take their share first, and a second task
  multiplies the adjoint (``deferred``); then the task may do nothing else with the element.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...ir.alias import same_array
from ...ir.nodes import GlobalStore, Kernel, Local, Op, Operand, Place, Stmt, Task
from ...ir.walk import atomic_of, walk
from ..dependence.access import Access, LostValueError, WriteSet, line_of, loads_of, overlap, writes_of
from ..dependence.indexing import extents, never_same, own_element
from ..dependence.order import StatementOrder

CLAIMS = ("min", "max")
_ALONE = "do it in a kernel of its own"


@dataclass(frozen=True)
class Finals:
    """The findings in one task. ``varying``: the products of ``deferred`` with a factor that has an adjoint."""

    claims: frozenset[Op] = frozenset()
    inline: frozenset[Op] = frozenset()
    deferred: frozenset[Op] = frozenset()
    varying: frozenset[Op] = frozenset()

    def accesses(self) -> list[Access]:
        """The reads of final contents, in the order of the operations."""
        ops = sorted(self.claims | self.inline | self.varying, key=lambda s: s.id)
        return [(atomic_of(s)[0], s.args[:-1], s) for s in ops]


@dataclass
class _Around:
    """The other accesses of the task to the elements."""

    task: Task
    order: StatementOrder = field(init=False)
    writes: WriteSet = field(init=False)
    loads: list[Access] = field(init=False)

    def __post_init__(self) -> None:
        self.order, self.writes = StatementOrder([self.task]), WriteSet(self.task)
        self.loads = [a for a in loads_of(self.order.statements) if a[0].differentiable]
        self.ranges = extents(self.task)

    def others(self, s: Op) -> Iterator[Access]:
        """The other writes that may meet the element of ``s``."""
        return (a for a in self.writes.meeting(atomic_of(s)[0], s.args[:-1]) if a[2] is not s)

    def own(self, s: Op, place: Place, index: tuple[Operand, ...]) -> bool:
        """Whether only one iteration can name an element both by ``s`` and by ``place[index]``."""
        if not self.task.parallel:
            return True
        return same_array(atomic_of(s)[0], place) and own_element(s.args[:-1], index, self.writes, self.ranges)

    def reads(self, s: Op) -> Iterator[Op]:
        """The loads that may name the element of ``s``."""
        place = atomic_of(s)[0]
        for other, index, load in self.loads:
            if overlap(place, other):
                if not same_array(place, other) or not never_same(s.args[:-1], index, self.writes):
                    assert isinstance(load, Op)
                    yield load

    def check_in_order(self, s: Op) -> None:
        """A claim or an inline product: its element may not be summed into, multiplied or read after it, nor by other iterations.

        A store after it leaves no adjoint for it, and a claim after it takes the adjoint exactly when it won.
        """
        code = atomic_of(s)[1]
        for place, index, write in self.others(s):
            if code in CLAIMS and code_of(write) == code:
                continue  # the iteration with the final content claims, in any order
            harmless = code_of(write) in (*CLAIMS, "store") or not self.order.may_follow(write, s)
            if not (harmless and self.own(s, place, index)):
                raise _changed(s, write)
        for load in self.reads(s):
            if self.order.may_follow(load, s):
                raise _read(s, load)

    def check_deferred(self, s: Op) -> None:
        """A product that may meet others: its element may be multiplied only."""
        for _, _, write in self.others(s):
            if code_of(write) != "mul":
                raise _changed(s, write)
        for load in self.reads(s):
            raise _read(s, load)


def find_finals(task: Task, varied: set[Op | Local]) -> Finals:
    """The atomics of a task whose backward code reads final contents.

    Args:
        task: lowered; not changed.
        varied: the values that a gradient can flow through.

    Raises:
        DataAccessError: the task changes or reads the element in between, so that its final content does not suffice.
    """
    atomics = [s for _, _, s in writes_of(_statements(task)) if isinstance(s, Op) and atomic_of(s)[0].differentiable]
    claims = [s for s in atomics if atomic_of(s)[1] in CLAIMS]
    products = [s for s in atomics if atomic_of(s)[1] == "mul"]
    if not claims and not any(s.args[-1] in varied for s in products):
        return Finals()
    around = _Around(task)
    for s in claims:
        around.check_in_order(s)
    inline: set[Op] = set()
    deferred: set[Op] = set()
    for s in products:
        if s.args[-1] not in varied:
            continue
        mates = [w for _, _, w in around.others(s) if code_of(w) == "mul"]
        alone = not mates and not around.order.loops(s) and around.own(s, atomic_of(s)[0], s.args[:-1])
        if alone:
            around.check_in_order(s)
            inline.add(s)
        else:
            deferred.update([s, *(w for w in mates if isinstance(w, Op))])
    deferred = _with_mates(deferred, around)
    for s in deferred:
        around.check_deferred(s)
    varying = frozenset(s for s in deferred if s.args[-1] in varied)
    return Finals(frozenset(claims), frozenset(inline), frozenset(deferred), varying)


def _with_mates(deferred: set[Op], around: _Around) -> set[Op]:
    """Products that may meet a deferred one are deferred, too."""
    todo = list(deferred)
    while todo:
        for _, _, w in around.others(todo.pop()):
            if isinstance(w, Op) and code_of(w) == "mul" and w not in deferred:
                deferred.add(w)
                todo.append(w)
    return deferred


def _statements(task: Task) -> list[Stmt]:
    return StatementOrder([task]).statements


def code_of(s: Stmt) -> str:
    """The kind of a write: the atomic's code, or "store"."""
    return "store" if isinstance(s, GlobalStore) else atomic_of(s)[1] if isinstance(s, Op) else ""


def check_finals(accesses: list[Access], later: list[Task]) -> None:
    """``accesses`` read final contents; ``later`` are the tasks that come after, in order.

    Raises:
        DataAccessError: a later task changes such an element. The same minimum or maximum may continue there, as long as no task
            in between reads the element.
    """
    if not accesses or not later:
        return
    writes = WriteSet(*later)
    for place, index, s in accesses:
        assert isinstance(s, Op)
        last: Stmt | None = None
        for _, _, write in writes.meeting(place, index):
            if not (code_of(write) in CLAIMS and code_of(write) == code_of(s)):
                raise _changed(s, write)
            last = write
        if last is not None:
            _check_between(s, later, writes)


def _check_between(s: Op, later: list[Task], writes: WriteSet) -> None:
    """A minimum that continues in a later task: no task before that one may read the element."""
    place, _ = atomic_of(s)
    reading: Op | None = None
    for task in later:
        found = [a for a in loads_of(_statements(task)) if a[0].differentiable and overlap(a[0], place)]
        near = (a[2] for a in found if not same_array(a[0], place) or not never_same(s.args[:-1], a[1], writes))
        reading = reading or next((x for x in near if isinstance(x, Op)), None)
        if reading is not None and any(True for _ in WriteSet(task).meeting(place, s.args[:-1])):
            raise _read(s, reading)


def compares_contents(kernel: Kernel) -> bool:
    """Whether the gradient recognises values by their bits: then forward and reverse code must round alike."""
    ops = (s for t in kernel.tasks for s in walk(t.body) if isinstance(s, Op) and s.op == "atomic")
    return any(atomic_of(s)[0].differentiable and atomic_of(s)[1] in CLAIMS for s in ops)


def _name(s: Op) -> str:
    place, code = atomic_of(s)
    return f"`{place.name}[..] *= value`" if code == "mul" else f"atomic {code} on `{place.name}`"


def _changed(s: Op, write: Stmt) -> LostValueError:
    place = atomic_of(s)[0]
    what = f"the gradient of {_name(s)} needs what it leaves in `{place.name}`, but {line_of(write)} may change that"
    return LostValueError(place, what, s.loc, f"write to another field there, or {_ALONE}")


def _read(s: Op, load: Op) -> LostValueError:
    place = atomic_of(s)[0]
    what = f"the gradient of {_name(s)} is not known where {line_of(load)} reads `{place.name}` in the same kernel"
    return LostValueError(place, what, s.loc, f"read `{place.name}` in a kernel of its own")
