"""Statements and control flow: the structured IR becomes basic blocks, scalar or masked, by one set of methods.

With one lane every value is uniform and no mask exists. With more, control that depends on the lane becomes a mask: both sides of
an ``If`` run (a side that no lane takes is skipped), a loop runs until its last lane is done, and stores keep what inactive lanes had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir.nodes import (
    Assert,
    Block,
    ClaimRow,
    Exit,
    GlobalStore,
    If,
    Local,
    LocalStore,
    Loop,
    Op,
    Operand,
    Overflow,
    Print,
    Stack,
    StackPut,
    Stmt,
    Task,
)
from ...ir.types import DType, i64, u1
from ...ir.walk import atomic_of, inner_blocks
from ..abi import CTX_SEED, Message
from . import arith, memory, report, rows
from .emitter import Emitter, KernelInfo
from .function import ROLLED, LlvmModule
from .target import Unsupported, memory_type
from .uniform import Shapes


class TaskEmitter(Emitter):
    """Emits blocks of one task into one function."""

    def __init__(self, module: LlvmModule, info: KernelInfo, task: Task, shapes: Shapes, lanes: int, serial: bool) -> None:
        super().__init__(module, info, task, shapes, lanes, serial)
        self.in_vectors: dict[Loop, Callable[[Loop], None]] = {}  # loops that are written in another way, see ``sums.loops``
        self.rolled = _over_stacks(task.body)[0] if task.stacks else set()
        self.kept = {self.local(r.local) for r in task.reductions} if lanes > 1 else set()  # all lanes are summed in the end

    def block(self, block: Block) -> None:
        """Every statement of a block, in order. A failure narrows the mask for the rest of it."""
        mask = self.mask
        for s in block:
            self.statement(s)
        self.mask = mask

    def statement(self, s: Stmt) -> None:
        """Emit one statement."""
        if type(s) is Op:
            self.op(s)
        else:
            _STATEMENTS[type(s)](self, s)

    def op(self, s: Op) -> None:
        """Emit one value."""
        leaf = _LEAVES.get(s.op)
        if leaf is not None:
            leaf(self, s)
            return
        if s.op == "pow" and arith.is_literal(s.args[1], 2):  # what LLVM would do, and only where it sees the literal
            v = self.varying(s.args[0])
            x = self.operand(s.args[0], v)
            self.values[s] = (arith.pure(self, Op("mul", (s.args[0], s.args[0]), s.dtype), [x, x], v), v)
            return
        v = self.lanes > 1 and any(map(self.varying, s.args))
        self.values[s] = (arith.pure(self, s, [self.operand(x, v) for x in s.args], v), v)
        if v:
            memory.follow_linear(self, s)
        else:
            memory.follow_exact(self, s)

    def load(self, s: Op) -> None:
        """Read a local."""
        assert isinstance(s.attr, Local)
        v = s.attr in self.shapes.varying
        self.values[s] = (self.t(f"load {self.ty(s.dtype, v)}, ptr {self.local(s.attr)}"), v)

    def arg(self, s: Op) -> None:
        """A scalar argument."""
        decl = self.info.kernel.args[s.attr.index]  # type: ignore[union-attr]
        reg = self.argument(self.info.arg_words[decl.index], memory_type(s.dtype))
        self.values[s] = (self.hoist(("truth", reg), f"icmp ne i8 {reg}, 0") if s.dtype is u1 else reg, False)

    def shape(self, s: Op) -> None:
        """An extent of an ndarray argument."""
        assert isinstance(s.attr, tuple)
        decl, axis = s.attr
        self.values[s] = (self.convert(memory.extent(self, decl, axis), i64, s.dtype, False), False)

    def iter_(self, s: Op) -> None:
        """The flat iteration number."""
        self.values[s] = self.iteration

    def seed(self, s: Op) -> None:
        """The seed of this launch."""
        self.values[s] = (self.context(CTX_SEED), False)

    def meet(self, s: Op) -> None:
        """Refused: only a GPU has threads that wait for each other."""
        raise Unsupported(f"a {s.op}: the threads of a block meet on GPUs only")

    def fence(self, s: Op) -> None:
        """Earlier writes of this thread are seen before its later ones."""
        self.put("fence seq_cst")

    def local_store(self, s: LocalStore) -> None:
        """Write a local."""
        v = s.local in self.shapes.varying
        self.assign(self.local(s.local), s.local.dtype, self.operand(s.value, v), v)

    def assign(self, slot: str, dtype: DType, value: str, v: bool) -> None:
        """Write a slot; inactive lanes keep what they had, but for those without an iteration."""
        ty = self.ty(dtype, v)
        if v and self.mask and (self.mask != self.there or slot in self.kept):
            value = arith.select(self, dtype, v, self.mask, value, self.t(f"load {ty}, ptr {slot}"))
        self.put(f"store {ty} {value}, ptr {slot}")

    def if_(self, s: If) -> None:
        """A branch, or both sides under masks."""
        v = self.varying(s.cond)
        cond = self.operand(s.cond, v)
        if v:
            self._masked_if(s, cond)
            return
        then, end = self.label("then"), self.label("end")
        other = self.label("else") if s.orelse else end
        self.branch(cond, then, other)
        self.at(then)
        self.block(s.then)
        self.jump(end)
        if s.orelse:
            self.at(other)
            self.block(s.orelse)
            self.jump(end)
        self.at(end)

    def _masked_if(self, s: If, cond: str) -> None:
        outer = self.mask
        sides = [(s.then, self.narrow(cond))]
        if s.orelse:
            sides.append((s.orelse, self.narrow(self.t(f"xor <{self.lanes} x i1> {cond}, splat (i1 true)"))))
        for block, mask in sides:
            then, end = self.label("then"), self.label("end")
            self.branch(self.any(mask), then, end)
            self.at(then)
            self.mask = mask
            self.block(block)
            self.mask = outer
            self.jump(end)
            self.at(end)

    def loop(self, s: Loop) -> None:
        """Tested before the first iteration and at the bottom; the last step is never taken, so the index cannot overflow."""
        if s in self.in_vectors:
            self.in_vectors[s](s)
            return
        d = s.index.dtype
        vi, v = s.index in self.shapes.varying, s in self.shapes.varying
        index = self.slot(self.ty(d, vi))
        self.put(f"store {self.ty(d, vi)} {self.operand(s.begin, vi)}, ptr {index}")
        body, out = self.label("body"), self.label("out")
        outer, live = self.mask, ""
        down = "gt" if s.step < 0 else "lt"
        enter = ""
        if s.end is not None:
            ve = v and (vi or self.varying(s.end))
            enter = arith.compare(self, down, d, ve, self.operand(s.begin, ve), self.operand(s.end, ve))
            enter = self.broadcast(enter, "i1") if v and not ve else enter
        trips = "" if v or s.end is None or abs(s.step) == 1 else self._trips(s, s.end)
        if v:
            live = self.slot(f"<{self.lanes} x i1>")
            mask = self.narrow(enter) if enter else self.active()
            self.put(f"store <{self.lanes} x i1> {mask}, ptr {live}")
            enter = self.any(mask)
        times = 1 if v or s.end is None or s.step != 1 else self.copies_of(s)
        if times > 1:
            self._several(s, index, times, enter, body, out)
        else:
            self.branch(enter or "true", body, out)
        self.at(body)
        if v:
            self.mask = self.t(f"load <{self.lanes} x i1>, ptr {live}")
        self.values[s.index] = (self.t(f"load {self.ty(d, vi)}, ptr {index}"), vi)
        self.block(s.body)
        if v:
            self._masked_latch(s, index, live, body, out)
        else:
            self._latch(s, index, trips, body, out)
        self.mask = outer
        self.at(out)

    def copies_of(self, s: Loop) -> int:
        """Iterations of a loop that are written one after the other; 1: the compiler of the text unrolls loops itself."""
        return 1

    def _several(self, s: Loop, index: str, times: int, enter: str, body: str, out: str) -> None:
        """So many iterations at a time, as long as there are as many. Then to ``body`` if some are left."""
        ty = self.ty(s.index.dtype, False)
        assert s.end is not None
        end, first, several, rest = self.operand(s.end, False), self.label("first"), self.label("several"), self.label("rest")
        self.branch(enter, first, out)
        self.at(first)
        left = self.t(f"sub {ty} {end}, {self.operand(s.begin, False)}")
        self.branch(self.t(f"icmp uge {ty} {left}, {times}"), several, rest)
        self.at(several)
        begin = self.t(f"load {ty}, ptr {index}")
        for k in range(times):
            self.values[s.index] = (self.t(f"add {ty} {begin}, {k}"), False)
            self.block(s.body)
        begin = self.t(f"add {ty} {begin}, {times}")
        self.put(f"store {ty} {begin}, ptr {index}")
        left = self.t(f"sub {ty} {end}, {begin}")
        self.branch(self.t(f"icmp uge {ty} {left}, {times}"), several, rest)
        self.at(rest)
        left = self.t(f"load {ty}, ptr {index}")
        self.branch(self.t(f"icmp ne {ty} {left}, {end}"), body, out)

    def _step(self, s: Loop, index: str, vi: bool, vc: bool) -> str:
        """Advance the index. Returns the condition to continue ("" if only an exit ends the loop)."""
        d = s.index.dtype
        ty, old = self.ty(d, vi), self.values[s.index][0]
        step = self.lit(str(s.step), d, vi)
        # lanes that have left the loop go on counting, past the end of the type perhaps
        flag = "" if s.end is None or abs(s.step) != 1 or d.kind != "i" or vi else "nsw "
        new = self.t(f"add {flag}{ty} {old}, {step}")
        self.put(f"store {ty} {new}, ptr {index}")
        if s.end is None:
            return ""
        widen = vc and not vi
        end = self.operand(s.end, vc)
        if abs(s.step) == 1:
            new = self.broadcast(new, self.ty(d, False)) if widen else new
            return arith.compare(self, "gt" if s.step < 0 else "lt", d, vc, new, end)
        old = self.broadcast(old, self.ty(d, False)) if widen else old
        a, b = (old, end) if s.step < 0 else (end, old)
        left = self.t(f"sub {self.ty(d, vc)} {a}, {b}")
        return self.t(f"icmp ugt {self.ty(d, vc)} {left}, {self.lit(str(abs(s.step)), d, vc)}")

    def _trips(self, s: Loop, end: Operand) -> str:
        """A slot that holds how many iterations follow the first one, where one lane runs the loop and the step is not 1 or -1.

        Such a loop is left by a count, not by its index. LLVM makes one unsigned comparison of ``old - end > 2`` (``new < -3``), for
        which one GPU's assembler unrolls too far.
        """
        d, ty = s.index.dtype, self.ty(s.index.dtype, False)
        a, b = (self.operand(x, False) for x in ((s.begin, end) if s.step < 0 else (end, s.begin)))
        left = self.t(f"sub {ty} {self.t(f'sub {ty} {a}, {b}')}, 1")
        trips = self.slot(ty)
        self.put(f"store {ty} {self.t(f'udiv {ty} {left}, {self.lit(str(abs(s.step)), d, False)}')}, ptr {trips}")
        return trips

    def _counted(self, s: Loop, index: str, trips: str) -> str:
        """Advance the index and the count. Returns the condition to continue."""
        d, ty = s.index.dtype, self.ty(s.index.dtype, False)
        new = self.t(f"add {ty} {self.values[s.index][0]}, {self.lit(str(s.step), d, False)}")
        self.put(f"store {ty} {new}, ptr {index}")
        left = self.t(f"load {ty}, ptr {trips}")
        self.put(f"store {ty} {self.t(f'sub {ty} {left}, 1')}, ptr {trips}")
        return self.t(f"icmp ne {ty} {left}, 0")

    def _latch(self, s: Loop, index: str, trips: str, body: str, out: str) -> None:
        if s.exit is not None:
            ty = self.ty(s.exit.dtype, False)
            leave = self.t(f"icmp sgt {ty} {self.t(f'load {ty}, ptr {self.local(s.exit)}')}, 0")
            stay = self.label("stay")
            self.branch(leave, out, stay)
            self.at(stay)
        more = self._counted(s, index, trips) if trips else self._step(s, index, s.index in self.shapes.varying, False)
        self.again(more or "true", body, out, self.said_of(s))

    def _masked_latch(self, s: Loop, index: str, live: str, body: str, out: str) -> None:
        flags = f"<{self.lanes} x i1>"
        mask = self.mask
        if s.exit is not None:
            v = s.exit in self.shapes.varying
            ty = self.ty(s.exit.dtype, v)
            stay = self.t(f"icmp sle {ty} {self.t(f'load {ty}, ptr {self.local(s.exit)}')}, {self.lit('0', s.exit.dtype, v)}")
            mask = self.t(f"and {flags} {mask}, {stay if v else self.broadcast(stay, 'i1')}")
        vi = s.index in self.shapes.varying
        vc = vi or (s.end is not None and self.varying(s.end))
        more = self._step(s, index, vi, vc)
        if more:
            mask = self.t(f"and {flags} {mask}, {more if vc else self.broadcast(more, 'i1')}")
        mask = self.living(mask)
        self.put(f"store {flags} {mask}, ptr {live}")
        self.again(self.any(mask), body, out, self.said_of(s))

    def living(self, mask: str) -> str:
        """The lanes of a mask that have not failed."""
        return mask

    def said_of(self, s: Loop) -> str:
        """The LLVM metadata of a loop."""
        return ROLLED if s in self.rolled else ""

    def atomic(self, s: Op, ptr: str, values: list[str]) -> str:
        """An atomic that other threads may disturb, of one value; what the place held."""
        place, code = atomic_of(s)
        return memory.exchange(self, code, place, ptr, values)

    def claim_row(self, s: ClaimRow) -> None:
        """Give the worker a row of the adstack heap, if it has none."""
        rows.claim(self, s)

    def report_failure(self, s: Message, args: tuple[Operand, ...], lanes: str) -> None:
        """Record a failure in the launch's status record."""
        report.record(self, s, args, lanes)

    def stack_word(self, stack: Stack, field: int, slot: Operand) -> tuple[str, str]:
        return memory.stack_word(self, stack, field, slot)

    def printed(self, s: Print, values: list[str]) -> None:
        report.call_printer(self, s, values)

    def exit_(self, s: Exit) -> None:
        """Refused: control must be structured by now."""
        raise Unsupported(f"{s.kind}: exits must be lowered before code is generated")

    def reset(self, local: Local) -> None:
        """Give a local a value before an iteration, so that a path that never stores to it reads 0."""
        self.put(f"store {self.ty(local.dtype, local in self.shapes.varying)} zeroinitializer, ptr {self.local(local)}")


def _over_stacks(block: Block) -> tuple[set[Loop], bool]:
    """The loops of a block in which an adstack is read or written, and whether the block does so. They go from iteration to iteration,
    so that unrolling them gains nothing, and takes LLVM a quarter of its time.
    """
    loops: set[Loop] = set()
    found = False
    for s in block:
        for inner in inner_blocks(s):
            deeper, here = _over_stacks(inner)
            loops |= deeper
            found |= here
            if here and isinstance(s, Loop):
                loops.add(s)
        found |= isinstance(s, StackPut) or (isinstance(s, Op) and s.op == "stack_get")
    return loops, found


_LEAVES: dict[str, Callable[[TaskEmitter, Op], None]] = {
    "load": TaskEmitter.load,
    "arg": TaskEmitter.arg,
    "shape": TaskEmitter.shape,
    "iter": TaskEmitter.iter_,
    "seed": TaskEmitter.seed,
    **dict.fromkeys(("barrier", "shuffle", "ballot"), lambda e, s: e.meet(s)),
    "fence": lambda e, s: e.fence(s),
    "gload": memory.load,
    "atomic": memory.atomic,
    "stack_get": memory.stack_get,
}
_STATEMENTS: dict[type, Callable[[TaskEmitter, Any], None]] = {
    LocalStore: TaskEmitter.local_store,
    GlobalStore: memory.store,
    If: TaskEmitter.if_,
    Loop: TaskEmitter.loop,
    Exit: TaskEmitter.exit_,
    Assert: report.check,
    Print: report.print_,
    StackPut: memory.stack_put,
    Overflow: report.overflow,
    ClaimRow: lambda e, s: e.claim_row(s),
}
