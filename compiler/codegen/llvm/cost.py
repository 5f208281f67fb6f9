"""A static estimate of what one iteration of a task costs, to decide how many iterations make a chunk."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from math import prod

from ...ir.nodes import Block, Const, GlobalStore, If, Kernel, LocalStore, Loop, Op, Operand, Print, Stmt, Task
from ...ir.ops import TABLE, is_function
from ...ir.walk import any_order, atomic_of, index_of, operands, place_of, walk
from ..abi import WAYS
from .target import ONE_LANE, SimdWidth
from .uniform import Shapes, analyse, free_sums, windows_of

_CHUNK_COST = 20_000  # about 5 microseconds: ten times what handing a chunk to a waiting thread costs
_UNKNOWN_TRIPS = 16
_DIVISIONS = frozenset(("floordiv", "mod", "cdiv", "crem"))
_PLAIN = frozenset(("load", "gload", "arg", "stack_get", "cast", "select", "neg"))
"""Operations on reals that take no time to speak of."""
_FEW = 64
"""Iterations of a loop with states for which lanes are compiled, at least."""
_SHORT = 8
"""LLVM unrolls loops of fewer iterations, and vectorises the parallel loop around them. Fewer parallel iterations leave lanes empty."""
_FUNCTION, _STRIDED, _GATHER, _DIVISION, _ATOMIC = 8, 1, 3, 4, 8
"""What a function gains in lanes, and what is lost by accesses at a stride or at indices from memory, and by divisions of integers and
atomics, which lanes execute one after another; in arithmetic operations.
"""
_MOST_STATEMENTS = 1500
"""Statements of a task with states that is compiled for lanes, at most."""


def block_cost(block: Block) -> int:
    """About the number of quarter nanoseconds one pass through a block takes."""
    total = 0
    for s in block:
        if isinstance(s, Op):
            total += TABLE[s.op].cost
        elif isinstance(s, If):
            total += 1 + max(block_cost(s.then), block_cost(s.orelse))
        elif isinstance(s, Loop):
            total += trips(s) * (2 + block_cost(s.body))
        else:
            total += 4
    return total


def trips(s: Loop) -> int:
    """The estimated trip count of a loop; exact for literal bounds."""
    if isinstance(s.begin, Const) and isinstance(s.end, Const):
        return len(range(int(s.begin.value), int(s.end.value), s.step))
    return _UNKNOWN_TRIPS


def grain(task: Task, lanes: int) -> int:
    """The least number of iterations worth a chunk, a multiple of the lanes."""
    count = max(1, _CHUNK_COST * lanes // (1 + (task.cost or block_cost(task.body))))
    return -(-count // lanes) * lanes


def least_of_sums(task: Task, lanes: int) -> int:
    """The least number of iterations that share partial results: the same for all lanes, unless a few iterations are worth a chunk."""
    count = grain(task, 4)
    unit = WAYS if count >= WAYS else lanes
    return -(-count // unit) * unit


def gains_by_packing(tasks: Sequence[Task]) -> bool:
    """Whether LLVM should look for vectors in straight-line code (SLP).

    It takes most of LLVM's time where LLVM has made vectors of the loop before, and gains nothing there. In a stencil's adjoint it loses:
    an iteration reads what the one before has written, and a load of two elements waits for two stores (1.7 times the time of ``wave3d``).
    """
    return not all(map(_is_vectorised, tasks)) and not any(map(_adds_to_neighbours, tasks))


def _is_vectorised(task: Task) -> bool:
    """Whether LLVM makes vectors of a parallel loop: no branches, no loops, and no indices from memory."""
    statements = list(walk(task.body))
    branches = any(isinstance(s, (If, Loop, Print)) for s in statements)
    indices = [x for s in statements if place_of(s) is not None for x in index_of(s)]
    return task.parallel and not branches and not any(map(_is_read, indices))


def _adds_to_neighbours(task: Task) -> bool:
    """Whether an iteration adds to several elements of a place, at indices that do not come from memory."""
    first: dict[object, tuple[Operand, ...]] = {}
    for s in walk(task.body):
        if isinstance(s, Op) and s.op == "atomic" and s.dtype.is_real:
            place, _ = atomic_of(s)
            index = s.args[: place.ndim]
            known = first.setdefault((place.buffer, place.offset), index)
            if known != index and not any(map(_is_read, (*index, *known))):
                return True
    return False


def _is_read(x: Operand) -> bool:
    """Whether an index comes from memory or a variable."""
    return isinstance(x, Op) and (x.op in ("load", "gload", "stack_get") or any(map(_is_read, x.args)))


def suggested_lanes(
    kernel: Kernel, plain: Container[Op], triple: str, features: str, in_vectors: Container[Loop] = ()
) -> SimdWidth:
    """How many lanes are likely best: twice the native f32 vector, half of that for f64; and the tasks where lanes would not pay.

    Lanes pay in loops inside parallel tasks, where one iteration waits for the last: see ``_Gain``. They do not for prints, nor on a CPU
    without fused multiply-add, where our functions would call one. A body without loops is vectorised by LLVM.

    Args:
        kernel: without checks.
        plain: its atomics that no other iteration can disturb.
        triple: of the machine, as LLVM names it.
        features: of its processor.
        in_vectors: serial loops that are vectors in one lane, too.
    """
    flags = set(features.split(","))
    arm = triple.startswith(("aarch64", "arm64"))
    native = 16 if "+avx512f" in flags else 8 if {"+avx2", "+fma"} <= flags else 4 if arm else 0
    narrow = frozenset(k for k, task in enumerate(kernel.tasks) if not native or not _lanes_pay(task, plain, in_vectors))
    wide = [task for k, task in enumerate(kernel.tasks) if k not in narrow]
    if not wide:
        return ONE_LANE
    return SimdWidth(native if sum(map(_doubles, wide)) > 0 else 2 * native, narrow)


def _doubles(task: Task) -> int:
    """How much more arithmetic of a task is in f64 than in f32; a mathematical function in f64 decides."""
    sizes = [
        (s.dtype.bits, is_function(s.op))
        for s in walk(task.body)
        if isinstance(s, Op) and s.dtype.is_real and s.op not in _PLAIN
    ]
    return 1 if (64, True) in sizes else sum(1 if bits == 64 else -1 for bits, _ in sizes)


def _lanes_pay(task: Task, plain: Container[Op], in_vectors: Container[Loop]) -> bool:
    statements = list(walk(task.body))
    if not task.parallel or any(isinstance(s, Print) for s in statements):
        return False
    atomics = [s for s in statements if isinstance(s, Op) and s.op == "atomic" and s not in plain]
    own = windows_of(task, free_sums(task, atomics)) if atomics else {}
    atomics = [s for s in atomics if s not in own]  # each lane has a copy of the others' elements
    if task.stacks:
        return _states_pay(task, statements, atomics)
    loops = [s for s in task.body if isinstance(s, Loop)]
    if not loops or _iterations(task) < _SHORT:
        return False
    model = _Gain(task, frozenset(atomics), statements, in_vectors)
    outside: list[Stmt] = [s for s in task.body if not isinstance(s, Loop)]
    return sum(map(model.loop, loops)) > model.serial(outside)


class _Gain:
    """What lanes gain in the loops of a task, in operations: a scalar operation waits for the last one, those of the lanes do not.

    LLVM vectorises short loops and loops without carried values by itself; there only functions count, which it cannot vectorise. An
    access that differs between lanes is a gather, and what takes turns costs ``_TURNS`` operations.
    """

    def __init__(self, task: Task, turns: Container[Op], statements: list[Stmt], in_vectors: Container[Loop]) -> None:
        self._in_vectors = in_vectors
        self._varying, self._axes, self._turns = analyse(task).varying, {a.index for a in task.axes}, turns
        self._indices = _index_operations(statements)

    def loop(self, s: Loop) -> int:
        """The gain of all iterations of a loop."""
        body, count = list(walk(s.body)), trips(s)
        if s in self._in_vectors:
            return -count * self.serial(_without_loops(s.body))
        carried = count >= _SHORT and bool(_loaded(body) & {x.local for x in body if isinstance(x, LocalStore)})
        own = list(_own(s.body))
        each = sum(_FUNCTION if is_function(x.op) else carried and self._computes(x) for x in own if x in self._varying)
        if s in self._varying:  # lanes wait for the one that runs longest
            each //= 2
        inner = sum(map(self.loop, _loops_in(s.body)))
        return count * (each + inner - self.serial(_without_loops(s.body)))

    def serial(self, statements: list[Stmt]) -> int:
        """What lanes lose by gathers, scatters and operations that take turns."""
        lost = 0
        for s in statements:
            if isinstance(s, GlobalStore):
                lost += self._scattered(s.index)
            elif isinstance(s, Op) and s.op == "gload":
                lost += self._scattered(s.args)
            elif isinstance(s, Op) and s in self._varying:
                lost += _ATOMIC * (s in self._turns) + _DIVISION * (s.op in _DIVISIONS and s.dtype.is_int)
        return lost

    def _scattered(self, index: Sequence[Operand]) -> int:
        """What an access loses that does not touch elements side by side."""
        *outer, last = index or (None,)
        if any(self._from_memory(i) for i in index):
            return _GATHER
        return _STRIDED if any(i in self._varying for i in outer) or not self._side_by_side(last) else 0

    def _side_by_side(self, x: Operand | None) -> bool:
        """Whether an index is the same in all lanes, or grows by one from lane to lane."""
        if x not in self._varying or x in self._axes:
            return True
        return isinstance(x, Op) and x.op in ("add", "cast") and all(map(self._side_by_side, x.args))

    def _from_memory(self, x: Operand | None) -> bool:
        """Whether what differs between lanes comes from memory or a variable."""
        if not isinstance(x, Op) or x not in self._varying:
            return False
        return x.op in ("load", "gload", "stack_get") or any(map(self._from_memory, x.args))

    def _computes(self, s: Op) -> bool:
        return (
            s.op not in _PLAIN and s.op != "atomic" and s not in self._indices and not (s.op in _DIVISIONS and s.dtype.is_int)
        )


def _index_operations(statements: list[Stmt]) -> set[Operand]:
    """Operations whose results are indices of accesses, or parts of such."""
    waiting = [i for s in statements if isinstance(s, GlobalStore) for i in s.index]
    waiting += [i for s in statements if isinstance(s, Op) and s.op in ("gload", "atomic") for i in s.args if i.dtype.is_int]
    found: set[Operand] = set()
    while waiting:
        x = waiting.pop()
        if isinstance(x, Op) and x not in found and x.op not in ("load", "gload"):
            found.add(x)
            waiting += x.args
    return found


def _loaded(statements: list[Stmt]) -> set[object]:
    return {s.attr for s in statements if isinstance(s, Op) and s.op == "load"}


def _loops_in(block: Block) -> Iterator[Loop]:
    """The loops of a block and of its ``if``s, but for those in loops."""
    for s in block:
        if isinstance(s, Loop):
            yield s
        elif isinstance(s, If):
            yield from (*_loops_in(s.then), *_loops_in(s.orelse))


def _without_loops(block: Block) -> list[Stmt]:
    """The statements of a block and of its ``if``s, without loops."""
    out: list[Stmt] = []
    for s in block:
        if isinstance(s, If):
            out += [*_without_loops(s.then), *_without_loops(s.orelse)]
        elif not isinstance(s, Loop):
            out.append(s)
    return out


def _states_pay(task: Task, statements: list[Stmt], atomics: list[Op]) -> bool:
    """Whether lanes pay for a task with adstacks: each iteration of its loops waits for the last one and counts states, which all lanes
    do at once. A plan may choose fewer lanes, so they must not change any bits.
    """
    used = {id(x) for s in statements for x in operands(s)}
    orderless = all(any_order(s) and id(s) not in used for s in atomics)
    if not orderless or _iterations(task) < _FEW or len(statements) > _MOST_STATEMENTS:
        return False
    shapes, axes = analyse(task), {a.index for a in task.axes}
    gain = -4 * len(atomics)
    for s in statements:
        own = list(_own(s.body)) if isinstance(s, Loop) else []
        work = sum(8 if is_function(x.op) else 1 for x in own if x.dtype.is_real and x.op not in _PLAIN)
        if work:  # else it moves states, or runs segments of them
            gathers = sum(x.op == "gload" and any(i in shapes.varying and i not in axes for i in x.args) for x in own)
            assert isinstance(s, Loop)
            gain += work - gathers - 4 * _divisions(s.body, shapes)  # what an `if` does with states is rare
    return gain > 0


def _own(block: Block) -> Iterator[Op]:
    """The operations of a block and of its ``if``s, but for those in loops."""
    for s in block:
        if isinstance(s, Op):
            yield s
        elif isinstance(s, If):
            yield from (*_own(s.then), *_own(s.orelse))


def _divisions(statements: list[Stmt], shapes: Shapes) -> int:
    """Integer operations that lanes execute one after another."""
    divided = (s for s in statements if isinstance(s, Op) and s.op in _DIVISIONS and s.dtype.is_int)
    return sum(s in shapes.varying for s in divided)


def _iterations(task: Task) -> int:
    """The iterations of a parallel loop whose bounds are literals; of another one as many as pay."""
    known = [(x.begin, x.end) for x in task.axes]
    sizes = [int(b.value) - int(a.value) if isinstance(a, Const) and isinstance(b, Const) else _FEW for a, b in known]
    return prod(sizes)
