"""Sums of reals that several iterations of a parallel loop add to one element, made in the order of the iterations.

So their bits are the same on every run and for any number of threads, and no instruction is atomic. Where an iteration computes
little besides, the whole loop runs on the caller's thread: an addition takes 1 to 2 ns there, and an atomic one 5 to 25. A loop that
computes more runs on all threads. Each chunk of it writes its additions to a log, waits for its turn, and makes them then. A full log
is emptied early, at the chunk's turn.

In lanes the order is another one, which is fixed, too: a vector of iterations makes one addition after the other. Where all lanes add to
one element, each has a copy of it, and a chunk adds the copies when it ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from ...ir.nodes import Block, Const, Kernel, Loop, Op, Place, Task
from ...ir.types import DType, f32, f64, i64
from ...ir.walk import atomic_of, inner_blocks, walk
from ..abi import CTX_POOL, LOG_CAME, LOG_ENTRIES, LOG_HEAD
from . import arith
from .cost import block_cost, trips
from .emitter import AtomicOrder, Emitter
from .function import LlvmModule
from .target import Target, const_text
from .uniform import SharedElements, free_sums, windows_of

FRAME_TURN = 4
"""The word of a task's frame with the first iteration of the chunk whose turn it is."""

_WORTH = 60
"""What an iteration must cost for each of its additions, in quarters of a nanosecond, so that a log pays on two threads: 5 ns are those
of the atomic itself, as ``block_cost`` counts it.
"""


def order_of(kernel: Kernel, atomics: frozenset[Op], target: Target) -> AtomicOrder:
    """How the atomics of a kernel whose order decides bits are executed."""
    alone, deferred, windows = set[Task](), set[Task](), dict[Op, SharedElements]()
    for number, task in enumerate(kernel.tasks if atomics else ()):
        own = {s for s in walk(task.body) if isinstance(s, Op) and s in atomics}
        sums = free_sums(task, own)
        windows |= (shared := windows_of(task, sums) if target.lanes_of(number, task) > 1 else {})
        worth = block_cost(task.body) >= _WORTH * _additions(task.body, sums - shared.keys())
        has_log = {s.dtype for s in own} in ({f32}, {f64}) and sums == own
        if own:
            (deferred if has_log and worth else alone).add(task)
    return AtomicOrder(atomics, frozenset(alone), frozenset(deferred), windows)


def _additions(block: Block, sums: Collection[Op]) -> int:
    """About how many of the sums a pass through a block executes."""
    total = 0
    for s in block:
        inner = sum(_additions(b, sums) for b in inner_blocks(s))
        total += (trips(s) if isinstance(s, Loop) else 1) * inner + (s in sums)  # type: ignore[operator]
    return total


def least_chunk(task: Task, order: AtomicOrder, least: int) -> int:
    """The iterations of a chunk of a deferred task: short chunks have short logs, but each adds all elements of its windows."""
    elements = sum(w.elements for w in {order.windows[s] for s in walk(task.body) if s in order.windows})  # type: ignore[index]
    return least * (1 + elements // 64)


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


def accumulate(e: Emitter, s: Op, window: SharedElements) -> None:
    """Add to the chunk's copies of an element, one for each lane."""
    place, code = atomic_of(s)
    value, flat = e.operand(s.args[-1], True), "0"
    for x, fixed, n in zip(s.args, window.fixed, place.shape or ()):
        if fixed is None:
            at = e.convert(e.operand(x, False), x.dtype, i64, False)
            flat = at if flat == "0" else e.t(f"add i64 {e.t(f'mul i64 {flat}, {n}')}, {at}")
    e.module.declare("llvm.umin.i64", "declare i64 @llvm.umin.i64(i64, i64)")
    flat = e.t(f"call i64 @llvm.umin.i64(i64 {flat}, i64 {window.elements})")  # one more for indices that are out of bounds
    ty = e.ty(place.dtype, True)
    if code == "sub":
        value = e.t(f"fneg {ty} {value}")
    if e.mask:
        value = arith.select(e, place.dtype, True, e.mask, value, nothing(e, place.dtype, True))
    copy = e.t(f"getelementptr {ty}, ptr {e.window_sums[window]}, i64 {flat}")
    old = e.t(f"load {ty}, ptr {copy}")
    e.put(f"store {ty} {e.t(f'fadd {ty} {old}, {value}')}, ptr {copy}")


def nothing(e: Emitter, dtype: DType, wide: bool) -> str:
    """The number that changes no other one when it is added."""
    return e.lit(const_text(Const(-0.0, dtype)), dtype, wide)


def start_windows(e: Emitter) -> None:
    """Copies without a sum of the elements of a task's windows."""
    for s in walk(e.task.body):
        window = e.info.order.windows.get(s)  # type: ignore[arg-type]
        if window is None or window in e.window_sums:
            continue
        ty = e.ty(window.place.dtype, True)
        e.window_sums[window] = copies = e.slot(f"[{window.elements + 1} x {ty}]")
        with counting(e, window.elements) as k:
            copy = e.t(f"getelementptr {ty}, ptr {copies}, i64 {k}")
            e.put(f"store {ty} {nothing(e, window.place.dtype, True)}, ptr {copy}")


@contextmanager
def counting(e: Emitter, n: int | str, said: str = "") -> Iterator[str]:
    """A loop with the numbers below ``n``, which is 1 at least. ``said``: what LLVM is told of it."""
    number, body, out = e.slot("i64"), e.label("counting"), e.label("counted")
    e.put(f"store i64 0, ptr {number}")
    e.jump(body)
    e.at(body)
    k = e.t(f"load i64, ptr {number}")
    yield k
    following = e.t(f"add nuw nsw i64 {k}, 1")
    e.put(f"store i64 {following}, ptr {number}")
    e.again(e.t(f"icmp ult i64 {following}, {n}"), body, out, said)
    e.at(out)


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
