"""Finds out whether the iterations of a row, which differ in the last axis alone, may run in any order.

They may where no two of them touch an element that one writes: ``u[t + 1, i, j]`` and ``u[t, i, j + 1]`` differ in the first axis. Sums
such as ``g[i, j - 1] += a; g[i, j + 1] += b`` meet at elements, but they may wait until the row has run, if nothing else touches these
elements meanwhile. Run it after ``simplify``.
"""

from __future__ import annotations

from ...ir.alias import Aliases, same_array
from ...ir.nodes import (
    Axis,
    Block,
    Const,
    GlobalStore,
    LocalStore,
    LocalSum,
    Loop,
    LoopOrder,
    Op,
    Operand,
    RowOrder,
    RowSum,
    Stmt,
    Task,
)
from ...ir.ops import TABLE
from ...ir.threads import once
from ...ir.walk import atomic_of, cooperates, operands, walk
from .injective import Iterations, accesses_of, writes

_MOST_PAIRS = 600
"""Accesses are compared pair by pair up to this number of pairs."""
_SHORT, _WORTH = 8, 24
"""Iterations of a serial loop, and what one of them must cost."""
_DIVISIONS = frozenset(("floordiv", "mod", "cdiv", "crem"))
_BRANCHING = frozenset(("sin", "cos", "tan", "mark"))
"""Operations whose code has branches."""
_FARTHEST = 16
"""Two sums of a group are at most so many iterations apart."""


def row_order(task: Task) -> RowOrder | None:
    """The order of a task's rows; None: its iterations run one after the other, as far as is known."""
    if not task.axes or task.stacks or cooperates(task):
        return None
    rows = _RowAccesses(task)
    waiting = rows.meeting()
    if waiting is None:
        return None
    groups = rows.groups(waiting)
    if groups is not None:
        return RowOrder(groups)
    return RowOrder(adds=tuple(waiting)) if rows.may_wait(waiting) and _costs_enough(task.body) else None


def loop_orders(task: Task) -> dict[Loop, LoopOrder]:
    """The order of the serial loops of a task that compute enough, and whose iterations only add to variables one after the other."""
    out: dict[Loop, LoopOrder] = {}
    for s in walk(task.body):
        if not isinstance(s, Loop) or (sums := _local_sums(s)) is None or not _is_worth(s):
            continue
        adds = _adds(s)
        if adds is not None and (sums or adds):
            out[s] = LoopOrder(tuple(sums), tuple(adds))
    return out


def _is_worth(loop: Loop) -> bool:
    """Whether vectors gain more in a loop than the buffers of its sums cost; each of these takes about the time of 4 operations."""
    if (
        isinstance(loop.begin, Const)
        and isinstance(loop.end, Const)
        and abs(int(loop.end.value) - int(loop.begin.value)) < _SHORT
    ):
        return False
    return _costs_enough(loop.body)


def _costs_enough(block: Block) -> bool:
    return (
        sum(TABLE[s.op].cost for s in block if isinstance(s, Op) and s.dtype.is_real and s.op not in ("load", "atomic"))
        >= _WORTH
    )


def _adds(loop: Loop) -> list[Op] | None:
    """The sums in memory at whose elements iterations of a loop meet; None: something else does."""
    assert loop.end is not None
    ends = (loop.begin, loop.end) if loop.step == 1 else (loop.end, loop.begin)
    inside = frozenset(s for s in loop.body if isinstance(s, Op)) | {loop.index}
    rows = _RowAccesses(Task("", loop.body, [Axis(loop.index, *ends)]), inside)
    waiting = rows.meeting()
    return waiting if waiting is not None and rows.may_wait(waiting) else None


def _local_sums(loop: Loop) -> list[LocalSum] | None:
    """The sums of a loop without branches in variables that it does not use besides; None: a variable has another use that goes on from
    iteration to iteration, or something in the loop is not for vectors.
    """
    if loop.exit is not None or loop.end is None or abs(loop.step) != 1 or not all(map(_is_plain, loop.body)):
        return None
    uses: dict[Op, int] = {}
    for s in loop.body:
        for x in operands(s):
            if isinstance(x, Op):
                uses[x] = uses.get(x, 0) + 1
    found: list[LocalSum] = []
    stores = [s for s in loop.body if isinstance(s, LocalStore)]
    for local in dict.fromkeys(s.local for s in stores):
        own = [
            s for s in loop.body if (isinstance(s, LocalStore) and s.local is local) or (isinstance(s, Op) and s.attr is local)
        ]
        if isinstance(own[0], LocalStore):  # each iteration begins with a value of its own
            continue
        if all(isinstance(s, Op) or s.value in own for s in own):  # it keeps its value
            continue
        sums = [_local_sum(load, store, uses) for load, store in zip(own[::2], own[1::2])]
        if len(own) % 2 or None in sums:
            return None
        found += [x for x in sums if x]
    order = {id(s): k for k, s in enumerate(loop.body)}
    return sorted(found, key=lambda x: order[id(x.store)])


def _local_sum(load: Stmt, store: Stmt, uses: dict[Op, int]) -> LocalSum | None:
    if not (isinstance(load, Op) and isinstance(store, LocalStore) and uses.get(load) == 1):
        return None
    updates = _updates(load, store.value, uses)
    return LocalSum(load, tuple(updates), store) if updates else None


def _updates(load: Op, x: Operand, uses: dict[Op, int]) -> list[Op] | None:
    """The operations by which a value becomes another one, each of them read by the next alone."""
    if x is load:
        return []
    if not (isinstance(x, Op) and x.op in ("add", "sub", "min", "max") and x.dtype.is_real and uses.get(x) == 1):
        return None
    for before in x.args[: 1 if x.op == "sub" else 2]:
        found = _updates(load, before, uses)
        if found is not None:
            return [*found, x]
    return None


def _is_plain(s: Stmt) -> bool:
    """Whether vectors can execute a statement."""
    if isinstance(s, (LocalStore, GlobalStore)):
        return True
    if not isinstance(s, Op) or s.op in _BRANCHING or (s.op in _DIVISIONS and s.dtype.is_int):
        return False
    return (
        TABLE[s.op].pure
        or s.op in ("load", "gload")
        or (s.op == "atomic" and s.dtype.is_real and atomic_of(s)[1] in ("add", "sub"))
    )


class _RowAccesses:
    def __init__(self, task: Task, inside: frozenset[Op] | None = None) -> None:
        self.task, self._proof, self._accesses = task, Iterations(task, inside), accesses_of(task)
        self._aliases = Aliases(self._accesses)

    @once
    def _number(self) -> dict[int, int]:
        return {id(s): n for n, s in enumerate(walk(self.task.body))}

    @once
    def _used(self) -> set[Operand]:
        return {x for s in walk(self.task.body) for x in operands(s)}

    def meeting(self) -> list[Op] | None:
        """The sums at whose elements iterations of a row meet, in the order of the text; None: something else does."""
        found: dict[Op, None] = {}
        for place, own in self._accesses.items():
            written = [s for s in own if writes(s)]
            others = [(other, t) for other in self._aliases.of(place) for t in self._accesses[other]] if written else []
            if len(written) * len(others) > _MOST_PAIRS:
                return None
            for s in written:
                for other, t in others:
                    if not same_array(place, other):
                        return None
                    apart = self._proof.distance_in_row(s, t)
                    # Of one iteration, too: LLVM may move an access before an earlier write, once it is told that no iterations meet.
                    if apart is not None and (apart != 0 or self._order(t) > self._order(s)):
                        if not (self._is_sum(s) and self._is_sum(t)):
                            return None
                        found[s] = found[t] = None  # type: ignore[index]
        return sorted(found, key=self._order) if found else []

    def _order(self, s: Stmt) -> int:
        return self._number[id(s)]

    def _is_sum(self, s: Stmt) -> bool:
        """Whether a statement is a sum of reals that every iteration makes, and whose result nothing reads."""
        sums = isinstance(s, Op) and s.op == "atomic" and s.dtype.is_real and atomic_of(s)[1] in ("add", "sub")
        return sums and self._proof.is_certain(s) and s not in self._used and self.task.axes[-1].index.dtype.kind == "i"

    def groups(self, waiting: list[Op]) -> tuple[tuple[RowSum, ...], ...] | None:
        """The groups of sums that wait; None: they may not wait, or how far two of them are apart is not known."""
        groups: list[list[RowSum]] = []
        if not self.may_wait(waiting):
            return None
        for s in waiting:
            if self._proof.distance_in_row(s, s, exact=True) != 0:
                return None
            mates = [g for g in groups if any(self._meets(r.add, s) for r in g)]
            if len(mates) > 1:
                return None
            if not mates:
                groups.append([RowSum(s, 0)])
                continue
            apart = [self._proof.distance_in_row(r.add, s, exact=True) for r in mates[0]]
            lags = {r.lag + d if isinstance(d, int) else None for r, d in zip(mates[0], apart)}
            lag = lags.pop()
            if lags or lag is None:
                return None
            mates[0].append(RowSum(s, lag))
        if any(max(r.lag for r in g) - min(r.lag for r in g) > _FARTHEST for g in groups):
            return None
        return tuple(tuple(sorted(g, key=lambda r: (r.lag, self._order(r.add)))) for g in groups)

    def may_wait(self, waiting: list[Op]) -> bool:
        """Whether some sums may be made when a row has run, as far as other accesses matter."""
        return all(self._nothing_follows(s, waiting) for s in waiting)

    def _meets(self, s: Op, t: Op) -> bool:
        """Whether two sums may add to one element in a row."""
        place, other = atomic_of(s)[0], atomic_of(t)[0]
        return other in self._aliases.of(place) and self._proof.distance_in_row(s, t) is not None

    def _nothing_follows(self, s: Op, waiting: list[Op]) -> bool:
        """Whether no other access touches a sum's elements between it and the end of the row: of another iteration, none does."""
        for other in self._aliases.of(atomic_of(s)[0]):
            for t in self._accesses[other]:
                later = t not in waiting and self._order(t) > self._order(s)
                if later and self._proof.distance_in_row(s, t) is not None:
                    return False
        return True
