"""Thread-local reductions: ``loss[None] += v`` in a parallel loop adds to a register; one add per chunk of iterations is combined.

An atomic add, sub, min or max becomes a ``Reduction`` when its result is not used, its indices are the same for all iterations,
and the task touches the place in no other way. Several such atomics of one kind on one element share one reduction. Float sums
are included: their bits then depend on the chunks, which depend on the number of iterations alone.

A loop with iterations is combined even if none of them did an update, so the element must exist: either it provably does (no axes, or a
literal inside a field's shape), or every iteration updates it. Else the place is left alone where the values combine to the identity.
Run it after ``simplify`` and after the reverse pass.
"""

from __future__ import annotations

from typing import Literal, cast

from ...ir.alias import Aliases, array_of, base
from ...ir.builder import StatementBuilder
from ...ir.nodes import Assert, Block, Const, Exit, If, Kernel, Local, Loop, Op, Operand, Overflow, Place, Reduction, Stmt, Task
from ...ir.types import u1
from ...ir.verify import verified
from ...ir.walk import atomic_of, cooperates, is_invariant, operands, place_of, task_blocks, walk, written_places
from ..clone import clone_kernel
from ..simplify.cse import element_key

MOST = 64
"""A task has at most so many reductions: each costs one word per chunk of iterations."""

_CODES = {"add": "add", "sub": "add", "min": "min", "max": "max"}
Code = Literal["add", "min", "max"]


@verified()
def reduce_kernel(kernel: Kernel) -> Kernel:
    """The kernel with reductions instead of contended atomics in its parallel tasks."""
    out = clone_kernel(kernel)
    for task in out.tasks:
        reduce_in_place(task)
    return out


def reduce_in_place(task: Task) -> bool:
    """Find the reductions of one task; whether there are any."""
    if not task.parallel or cooperates(task) or not any([isinstance(s, Op) and s.op == "atomic" for s in walk(task.body)]):
        return False
    reducer = _ReductionPass(task)
    for group in _groups(task):
        reducer.group(group)
    if reducer.updates:
        _rewrite(task.body, reducer.updates)
    return bool(reducer.updates)


def _groups(task: Task) -> list[list[Stmt]]:
    """The accesses of the body by array; an array that overlaps another one in an unclear way is left out."""
    groups: dict[object, tuple[Place, list[Stmt]]] = {}
    for s in walk(task.body):
        place = place_of(s)
        if place is not None and place.pool is None:
            groups.setdefault(array_of(place), (place, []))[1].append(s)
    reduced = {array_of(r.place) for r in task.reductions}
    aliases = Aliases([*(p for p, _ in groups.values()), *(r.place for r in task.reductions)])

    def alone(place: Place) -> bool:
        # another argument that is the same array would be a race in the user's kernel, whatever is done here
        return sum(base(p.buffer) == base(place.buffer) for p in aliases.of(place)) == 1

    return [accesses for key, (place, accesses) in groups.items() if key not in reduced and alone(place)]


class _ReductionPass:
    def __init__(self, task: Task) -> None:
        self.task = task
        self.updates: dict[Op, Reduction] = {}
        self.used = {x for s in task_blocks(task) for x in operands(s) if isinstance(x, Op)}
        self.written = Aliases(written_places(task.body))
        self.hoisted: dict[Op, Operand] = {}
        self.always = set(_always(task.body))

    def group(self, accesses: list[Stmt]) -> None:
        """Reduce all accesses of one array, or none. Truth values have no partial results in the backends."""
        atomics: list[Op] = [s for s in accesses if isinstance(s, Op) and s.op == "atomic"]
        codes = {_CODES.get(atomic_of(s)[1], "") for s in atomics}
        if len(atomics) < len(accesses) or len(codes) != 1 or "" in codes or atomic_of(atomics[0])[0].dtype is u1:
            return
        elements = {element_key(s.args[:-1]) for s in atomics}
        if not all(self.fits(s) for s in atomics) or len(self.task.reductions) + len(elements) > MOST:
            return
        code = cast(Code, codes.pop())
        known: dict[tuple[object, ...], Reduction] = {}
        for s in atomics:
            place, key = atomic_of(s)[0], element_key(s.args[:-1])
            if key not in known:
                index = tuple(map(self.hoist, s.args[:-1]))
                known[key] = Reduction(Local(place.dtype, place.name), place, index, code, sure=False)
                self.task.reductions.append(known[key])
            known[key].sure |= s in self.always or inside(place, s.args[:-1])
            self.updates[s] = known[key]

    def fits(self, s: Op) -> bool:
        """Whether one atomic can be an update of a register."""
        return s not in self.used and all(map(self.same_for_all, s.args[:-1]))

    def same_for_all(self, x: Operand) -> bool:
        """Whether a value is the same in every iteration and can be computed before the loop, whatever the arguments are."""
        return is_invariant(x, self.exists_unwritten)

    def exists_unwritten(self, load: Op) -> bool:
        """Whether a load reads an element that exists, and that the task does not write."""
        place = place_of(load)
        assert place is not None
        return inside(place, load.args) and not self.written.of(place)

    def hoist(self, x: Operand) -> Operand:
        """The value computed in the prologue."""
        if isinstance(x, Const) or x.op == "param":
            return x
        if x not in self.hoisted:
            args = tuple(map(self.hoist, x.args))
            self.hoisted[x] = StatementBuilder(self.task.prologue).op(x.op, *args, dtype=x.dtype, attr=x.attr)
        return self.hoisted[x]


def inside(place: Place, index: tuple[Operand, ...]) -> bool:
    """Whether the element exists in every launch."""
    if place.ndim == 0:
        return True
    if place.shape is None:
        return False
    return all(isinstance(i, Const) and 0 <= i.value < n for i, n in zip(index, place.shape))


def _always(block: Block) -> list[Op]:
    """The operations that every run of a block executes: those in its loops of a fixed count, and what no exit can skip."""
    out: list[Op] = []
    for s in block:
        if any(isinstance(inner, (Assert, Exit, Overflow)) for inner in walk([s])):
            break  # what follows may not run; the index that a failed assert rejects must not be touched
        if isinstance(s, Op):
            out.append(s)
        elif isinstance(s, Loop) and isinstance(s.begin, Const) and isinstance(s.end, Const):
            if range(int(s.begin.value), int(s.end.value), s.step):
                out += _always(s.body)
    return out


def _rewrite(block: Block, updates: dict[Op, Reduction]) -> None:
    """Replace the atomics by updates of their reductions' locals."""
    out = StatementBuilder([])
    for s in block:
        if isinstance(s, If):
            _rewrite(s.then, updates)
            _rewrite(s.orelse, updates)
        elif isinstance(s, Loop):
            _rewrite(s.body, updates)
        if isinstance(s, Op) and s in updates:
            out.loc = s.loc
            local, value = updates[s].local, s.args[-1]
            if atomic_of(s)[1] == "sub":
                value = out.op("neg", value)
            out.store(local, out.op(updates[s].code, out.load(local), value))
        else:
            out.block.append(s)
    block[:] = out.block
