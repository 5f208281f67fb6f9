"""Sums of reals that several iterations of a parallel loop add to one element, made in the order of the iterations.

So their bits are the same on every run and for any number of threads, and no instruction is atomic. Where an iteration computes
little besides, the whole loop runs on the caller's thread: an addition takes 1 to 2 ns there, and an atomic one 5 to 25. A loop that
computes more runs on all threads. Each chunk of it writes its additions to a log, waits for its turn, and makes them then. A full log
is emptied early, at the chunk's turn.
"""

from __future__ import annotations

from collections.abc import Collection

from ...ir.alias import Aliases
from ...ir.nodes import Block, Kernel, Loop, Op, Place, Task
from ...ir.types import DType, f32, f64
from ...ir.walk import atomic_of, inner_blocks, operands, place_of, walk
from ..abi import CTX_POOL, LOG_CAME, LOG_ENTRIES, LOG_HEAD
from .cost import block_cost, trips
from .emitter import AtomicOrder, Emitter
from .function import LlvmModule

FRAME_TURN = 4
"""The word of a task's frame with the first iteration of the chunk whose turn it is."""

_WORTH = 60
"""What an iteration must cost for each of its additions, in quarters of a nanosecond, so that a log pays on two threads: 5 ns are those
of the atomic itself, as ``block_cost`` counts it.
"""


def order_of(kernel: Kernel, atomics: frozenset[Op]) -> AtomicOrder:
    """How the atomics of a kernel whose order decides bits are executed."""
    own = {task: [s for s in walk(task.body) if s in atomics] for task in kernel.tasks} if atomics else {}  # type: ignore[operator]
    read = {x for task, found in own.items() if found for s in walk(task.body) for x in operands(s)}
    sums = frozenset(s for s in atomics if atomic_of(s)[1] in ("add", "sub") and s not in read)
    deferred = frozenset(task for task, found in own.items() if found and sums.issuperset(found) and _is_deferred(task, sums))
    return AtomicOrder(atomics, sums, frozenset(task for task, found in own.items() if found) - deferred, deferred)


def _is_deferred(task: Task, sums: Collection[Op]) -> bool:
    """Whether a task writes its sums to logs: it pays, they have one type, and the task touches what they change in no other way."""
    targets = {atomic_of(s)[0] for s in walk(task.body) if s in sums}  # type: ignore[operator, arg-type]
    types = {p.dtype for p in targets}
    if len(types) > 1 or not types <= {f32, f64} or block_cost(task.body) < _WORTH * _additions(task.body, sums):
        return False
    others = {place_of(s) for s in walk(task.body) if s not in sums} | {r.place for r in task.reductions}  # type: ignore[operator]
    aliases = Aliases(p for p in others if p is not None)
    return not any(map(aliases.of, targets))


def _additions(block: Block, sums: Collection[Op]) -> int:
    """About how many of the sums a pass through a block executes."""
    total = 0
    for s in block:
        inner = sum(_additions(b, sums) for b in inner_blocks(s))
        total += (trips(s) if isinstance(s, Loop) else 1) * inner + (s in sums)  # type: ignore[operator]
    return total


def append(e: Emitter, code: str, place: Place, ptr: str, values: list[str]) -> str:
    """Write one addition to the chunk's log. It has no result."""
    ty = e.ty(place.dtype, False)
    value = e.t(f"fneg {ty} {values[0]}") if code == "sub" else values[0]
    turn = e.hoist("turn", f"getelementptr i64, ptr %frame, i64 {FRAME_TURN}")
    count = e.t("load i64, ptr %log")
    full, space = e.label("full"), e.label("space")
    e.branch(e.t(f"icmp eq i64 {count}, {LOG_ENTRIES}"), full, space, unlikely=True)
    e.at(full)
    e.put(f"call void @{_adder(e.module, place.dtype)}(ptr {e.context(CTX_POOL, 'ptr')}, ptr {turn}, i64 %begin, ptr %log)")
    e.jump(space)
    e.at(space)
    number = e.t("load i64, ptr %log")
    entry = e.t(f"getelementptr [2 x i64], ptr %log, i64 {e.t(f'add i64 {number}, {LOG_HEAD // 2}')}")
    e.put(f"store ptr {ptr}, ptr {entry}")
    e.put(f"store {ty} {value}, ptr {e.t(f'getelementptr i64, ptr {entry}, i64 1')}")
    e.put(f"store i64 {e.t(f'add i64 {number}, 1')}, ptr %log")
    return e.lit("0.0", place.dtype, False)


def _adder(module: LlvmModule, dtype: DType) -> str:
    """The function that waits for a chunk's turn, makes the additions of its log and empties it."""
    name = f"qd_add_in_order_{dtype.name}"
    module.declare(name, f"declare void @{name}(ptr, ptr, i64, ptr)")
    return name


def emit_turn(module: LlvmModule, task: Task, sums: Collection[Op], name: str, body: str) -> None:
    """The function of a deferred task: its body with an empty log, the additions, and then the turn of the next chunk."""
    dtype = next(s.dtype for s in walk(task.body) if isinstance(s, Op) and s in sums)
    words = LOG_HEAD + 2 * LOG_ENTRIES
    module.functions.append(
        f"""define internal void @{name}(ptr %frame, i64 %begin, i64 %end, i64 %worker) nounwind {{
entry:
  %log = alloca [{words} x i64]
  %came = getelementptr i64, ptr %log, i64 {LOG_CAME}
  store i64 0, ptr %log
  store i64 0, ptr %came
  call void @{body}(ptr %frame, i64 %begin, i64 %end, i64 %worker, ptr %log)
  %turn = getelementptr i64, ptr %frame, i64 {FRAME_TURN}
  %args = load ptr, ptr %frame
  %ctx = load ptr, ptr %args
  %pool_at = getelementptr i64, ptr %ctx, i64 {CTX_POOL}
  %pool = load ptr, ptr %pool_at
  call void @{_adder(module, dtype)}(ptr %pool, ptr %turn, i64 %begin, ptr %log)
  store atomic i64 %end, ptr %turn release, align 8
  ret void
}}"""
    )
