"""Lanes of a trial that run one iteration together, its *team*: they divide the loops inside of the iteration, and fold what these sum up.

A trial may have more lanes than its parallel loop has iterations: a network's policy is one iteration with loops over hidden units, the
forces on a body are a loop over all others. All lanes of a team hold the same values and take the same branches. In a loop that is divided
each of them runs every n-th iteration; sums in locals, and in elements that do not depend on the iteration, are folded by shuffles
afterwards, in an order that depends on the number of lanes alone. Memory that the iteration writes outside of such loops is written by the
first lane, between two barriers of the team.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ....ir.alias import Aliases
from ....ir.nodes import (
    Block,
    ClaimRow,
    GlobalStore,
    If,
    Local,
    LocalStore,
    Loop,
    Op,
    Operand,
    StackPut,
    Stmt,
    Task,
)
from ....ir.ops import TABLE
from ....ir.types import DType
from ....ir.walk import atomic_of, operands, place_of, walk, written_places
from ...llvm import arith, memory
from ...llvm.cost import trips
from ..grid.task import GridTaskEmitter
from ..lanes import from_lane
from ..prologue import literal_count

UNKNOWN = 16
"""Iterations of a loop whose bounds are known on the device only."""
LARGEST = 32
"""Lanes of a team, at most: all of them are in one wave."""
_READS = frozenset(("load", "gload", "stack_get", "arg", "shape", "param"))


@dataclass(frozen=True, slots=True, eq=False)
class Team:
    """How an iteration of a task is divided.

    Attributes:
        size: lanes, a power of two; 1: the iteration is not divided.
        loops: that are divided, and the locals that each of them sums up.
    """

    size: int = 1
    loops: dict[Loop, tuple[Local, ...]] = field(default_factory=dict)


ALONE = Team()


def useful_lanes(task: Task) -> int:
    """The most lanes that have something to do in a task: its iterations by what a team divides well."""
    count = (literal_count(task) or UNKNOWN) if task.axes else 1
    return _floor(count if task.parallel else 1) * _most(task, _divided(task))


def team_of(task: Task, lanes: int) -> Team:
    """The team of each iteration, if a trial has so many lanes."""
    count = (literal_count(task) or UNKNOWN) if task.parallel and task.axes else 1
    spare = lanes >> max(0, count - 1).bit_length()
    if spare < 2:
        return ALONE
    loops = _divided(task)
    size = min(spare, _most(task, loops))
    return Team(size, loops) if size > 1 else ALONE


def _floor(n: int) -> int:
    """The largest power of two that is not above ``n``, which is positive."""
    return 1 << n.bit_length() - 1


# ---- which loops
def _most(task: Task, loops: dict[Loop, tuple[Local, ...]]) -> int:
    """The largest team whose lanes do at least as much in the loops as beside them, where each does the same."""
    if not loops:
        return 1
    inside = {s: trips(s) * _cost(s.body) for s in loops}
    divided, whole = _sums(task.body, inside)
    longest = max(trips(s) for s in loops)
    return min(LARGEST, _floor(max(1, longest)), _floor(max(1, divided // max(1, whole))))


def _sums(block: Block, inside: dict[Loop, int]) -> tuple[int, int]:
    """The cost of the loops that are divided, and of the rest."""
    divided, whole = 0, 0
    for s in block:
        if isinstance(s, Loop) and s in inside:
            divided += inside[s]
            continue
        parts = (s.then, s.orelse) if isinstance(s, If) else (s.body,) if isinstance(s, Loop) else ()
        times = trips(s) if isinstance(s, Loop) else 1
        found = [_sums(part, inside) for part in parts]
        divided += times * sum(d for d, _ in found)
        whole += times * sum(w for _, w in found) + (0 if parts else _cost([s]))
    return divided, whole


def _cost(block: Block) -> int:
    """See ``OpInfo.cost``."""
    total = 0
    for s in block:
        match s:
            case Op():
                total += TABLE[s.op].cost
            case If():
                total += _cost(s.then) + _cost(s.orelse)
            case Loop():
                total += trips(s) * _cost(s.body)
            case _:
                total += 1
    return total


def _divided(task: Task) -> dict[Loop, tuple[Local, ...]]:
    """The outermost loops of a task that a team can divide; none, if the task does what each of its lanes would do again."""
    used = {x for s in walk(task.body) for x in operands(s) if isinstance(x, Op)}
    if not all(_repeats(s, used) for s in walk(task.body)):
        return {}
    uses = _Uses(task)
    return {s: sums for s in _outermost(task.body, uses) if (sums := uses.sums(s)) is not None}


def _outermost(block: Block, uses: _Uses) -> Iterator[Loop]:
    for s in block:
        if isinstance(s, If):
            yield from _outermost(s.then, uses)
            yield from _outermost(s.orelse, uses)
        elif isinstance(s, Loop):
            if uses.sums(s) is not None:
                yield s
            else:
                yield from _outermost(s.body, uses)


def _repeats(s: Stmt, used: Iterable[Op]) -> bool:
    """Whether all lanes of a team may do what a statement says; what is written to memory, one does for all."""
    if isinstance(s, Op):
        return (
            _is_sum(s, used) if s.op == "atomic" else s.op in _READS or (TABLE[s.op].pure and s.op not in ("shuffle", "ballot"))
        )
    return isinstance(s, (LocalStore, GlobalStore, If, Loop, StackPut, ClaimRow))


def _is_sum(s: Op, used: Iterable[Op]) -> bool:
    """Whether an atomic is a sum by one instruction, and its old value is not used."""
    place, code = atomic_of(s)
    return code in ("add", "sub") and s not in used and place.dtype.size >= 4 and memory.alignment(place) == place.dtype.size


class _Uses:
    """Where a task uses its locals and values."""

    def __init__(self, task: Task) -> None:
        self.users: dict[Op, list[Stmt]] = {}
        self.of_local: dict[Local, list[Stmt]] = {}
        for s in walk(task.body):
            for x in operands(s):
                if isinstance(x, Op):
                    self.users.setdefault(x, []).append(s)
            if isinstance(s, LocalStore):
                self.of_local.setdefault(s.local, []).append(s)
            elif isinstance(s, Op) and s.op == "load":
                assert isinstance(s.attr, Local)
                self.of_local.setdefault(s.attr, []).append(s)
            elif isinstance(s, Loop) and s.exit is not None:
                self.of_local.setdefault(s.exit, []).append(s)
        self._found: dict[Loop, tuple[Local, ...] | None] = {}

    def sums(self, s: Loop) -> tuple[Local, ...] | None:
        """The locals that a loop sums up; None: its iterations do not run in any order."""
        if s not in self._found:
            self._found[s] = self._sums(s)
        return self._found[s]

    def _sums(self, s: Loop) -> tuple[Local, ...] | None:
        inside = set(walk(s.body))
        if s.exit is not None or s.end is None or any(isinstance(x, (GlobalStore, StackPut, ClaimRow)) for x in inside):
            return None
        written = Aliases(written_places(s.body))
        for x in inside:
            place = place_of(x) if isinstance(x, Op) and x.op == "gload" else None
            if place is not None and written.of(place):
                return None
        sums = list[Local]()
        for local in {x.local for x in inside if isinstance(x, LocalStore)}:
            here = [x for x in self.of_local[local] if x in inside]
            stores = [x for x in here if isinstance(x, LocalStore)]
            if all(_is_load(x.value, local) for x in stores):
                continue  # it keeps its value
            if all(self._adds(x, local) for x in here):
                sums.append(local)
            elif len(here) < len(self.of_local[local]) or not _begins_with_a_store(s.body, local):
                return None
        return tuple(sorted(sums, key=lambda local: local.id))

    def _adds(self, x: Stmt, local: Local) -> bool:
        """Whether a store adds to the local, or a load is what a store adds to, and nothing else."""
        if isinstance(x, LocalStore):
            new = x.value
            if not isinstance(new, Op) or new.op not in ("add", "sub") or len(self.users[new]) > 1 or new.dtype != local.dtype:
                return False
            return _is_load(new.args[0], local) != (new.op == "add" and _is_load(new.args[1], local))
        if not isinstance(x, Op) or len(self.users.get(x, ())) != 1:
            return False
        (user,) = self.users[x]
        if not isinstance(user, Op) or user.op not in ("add", "sub"):
            return False
        after = self.users.get(user, [])
        return len(after) == 1 and isinstance(after[0], LocalStore) and after[0].local is local


def _is_load(x: Operand, local: Local) -> bool:
    return isinstance(x, Op) and x.op == "load" and x.attr is local


def _begins_with_a_store(block: Block, local: Local) -> bool:
    """Whether the first use of a local in a block is a store that always happens."""
    for s in block:
        if isinstance(s, LocalStore) and s.local is local:
            return True
        if any((isinstance(x, LocalStore) and x.local is local) or _is_load_of(x, local) for x in walk([s])):
            return False
    return False


def _is_load_of(x: Stmt, local: Local) -> bool:
    return (isinstance(x, Op) and x.op == "load" and x.attr is local) or (isinstance(x, Loop) and x.exit is local)


# ---- their code
class TeamLanes:
    """Emits what the lanes of a team do together.

    Attributes:
        e: the emitter of the task.
        size: lanes of the team.
        loops: see ``Team``.
        inside: the emitter is in a divided loop.
        sums: slots of the atomics of such a loop whose sums are added after it.
    """

    def __init__(self, e: GridTaskEmitter, team: Team, lanes: int, block: int) -> None:
        """``lanes``: of a trial; ``block``: threads of a block."""
        self.e, self.size, self.loops = e, team.size, team.loops
        self.inside = False
        self.sums: dict[Op, str] = {}
        # Neighbours of a team in the wave: trials with fewer lanes than a wave lie side by side.
        self._stride = max(1, min(e.target.wave, block) // lanes)

    def mine(self) -> str:
        """The number of the lane in its team, i32."""
        return self.e.hoist("in team", f"and i32 %lane, {self.size - 1}")

    def is_first(self) -> str:
        """Whether the lane is the first one of its team (i1)."""
        return self.e.hoist("first of team", f"icmp eq i32 {self.mine()}, 0")

    def sync(self) -> None:
        """The lanes of a team wait for each other, and see what they have written."""
        self.e.hardware.wave_barrier(self.e, self._mask())

    def by_first(self, lines: list[str]) -> None:
        """What is written to memory outside of divided loops: all lanes have read, the first one writes, all go on."""
        e, write, wrote = self.e, self.e.label("write"), self.e.label("wrote")
        self.sync()
        e.branch(self.is_first(), write, wrote)
        e.at(write)
        e.lines += lines
        e.jump(wrote)
        e.at(wrote)
        self.sync()

    def run(self, s: Loop, flush: Callable[[], None], add: Callable[[Op, str], None]) -> None:
        """A divided loop: every lane of the team runs each ``size``-th iteration, and all of them have the sums afterwards.

        Args:
            s: one of ``loops``.
            flush: writes the stores that wait.
            add: adds the sum of an atomic of the loop to its element, once.
        """
        e, inner = self.e, set(walk(s.body))
        fixed = [x for x in inner if isinstance(x, Op) and x.op == "atomic" and _is_fixed(x, s, inner)]
        sums = {x: e.slot(e.ty(atomic_of(x)[0].dtype, False)) for x in sorted(fixed, key=lambda x: x.id)}
        for x, slot in sums.items():
            d = atomic_of(x)[0].dtype
            e.put(f"store {e.ty(d, False)} {_nothing(d)}, ptr {slot}")
        for local in self.loops[s]:
            ty, slot = e.ty(local.dtype, False), e.local(local)
            before = e.t(f"load {ty}, ptr {slot}")
            begin = e.t(f"select i1 {self.is_first()}, {ty} {before}, {ty} {_nothing(local.dtype)}")
            e.put(f"store {ty} {begin}, ptr {slot}")
        self.inside, self.sums = True, sums
        e.loop(Loop(s.index, self._begin(s), s.end, s.body, None, s.step * self.size, s.loc))
        flush()
        self.inside, self.sums = False, {}
        for local in self.loops[s]:
            self._fold(local.dtype, e.local(local))
        for x, slot in sums.items():
            d = atomic_of(x)[0].dtype
            self._fold(d, slot)
            add(x, e.t(f"load {e.ty(d, False)}, ptr {slot}"))
        if any(isinstance(x, Op) and x.op == "atomic" for x in inner):
            self.sync()

    def _begin(self, s: Loop) -> Op:
        """The first iteration of the lane."""
        e, d, number = self.e, s.index.dtype, self.mine()
        ty = e.ty(d, False)
        if ty != "i32":
            number = e.t(f"{'zext' if d.bits > 32 else 'trunc'} i32 {number} to {ty}")
        first = Op("add", (s.begin,), d)
        e.values[first] = (e.t(f"add {ty} {e.operand(s.begin, False)}, {e.t(f'mul {ty} {number}, {s.step}')}"), False)
        return first

    def sum_up(self, s: Op) -> None:
        """An atomic of a divided loop, on an element that is the same in all iterations."""
        e, (place, code), slot = self.e, atomic_of(s), self.sums[s]
        ty = e.ty(place.dtype, False)
        total = arith.binary(e, code, place.dtype, False, e.t(f"load {ty}, ptr {slot}"), e.operand(s.args[-1], False))
        e.put(f"store {ty} {total}, ptr {slot}")

    def _fold(self, d: DType, slot: str) -> None:
        """Add up a variable of all lanes of a team; each has the sum."""
        e, ty, own, by = self.e, self.e.ty(d, False), self._in_wave(), 1
        while by < self.size:
            now = e.t(f"load {ty}, ptr {slot}")
            theirs = from_lane(e, d, now, e.t(f"xor i32 {own}, {by * self._stride}"), self._mask())
            e.put(f"store {ty} {arith.binary(e, 'add', d, False, now, theirs)}, ptr {slot}")
            by *= 2

    def _in_wave(self) -> str:
        e = self.e
        return e.hoist("in wave", f"and i32 {e.hardware.thread_in_block(e)}, {e.target.wave - 1}")

    def _mask(self) -> str:
        """A bit for each lane of the team."""
        e, stride, bits = self.e, self._stride, self.e.ty(self.e.target.mask, False)
        outside = e.target.wave - 1 & ~((self.size - 1) * stride)
        first = e.hoist("team in wave", f"and i32 {self._in_wave()}, {outside}")
        first = first if bits == "i32" else e.hoist("team in wave 64", f"zext i32 {first} to i64")
        pattern = sum(1 << k * stride for k in range(self.size))
        return e.hoist(
            "team mask", f"shl {bits} {pattern - (1 << 32) if bits == 'i32' and pattern >> 31 else pattern}, {first}"
        )


def _is_fixed(x: Op, s: Loop, inner: set[Stmt]) -> bool:
    """Whether an atomic of a loop adds to one element in all its iterations. ``inner``: its statements."""
    place, _ = atomic_of(x)
    indices = {s.index, *(loop.index for loop in inner if isinstance(loop, Loop))}
    return all(i not in inner and i not in indices for i in x.args[: place.ndim] if isinstance(i, Op))


def _nothing(d: DType) -> str:
    """What a sum begins with: it changes no number that it is added to."""
    return "-0.0" if d.is_real else "0"
