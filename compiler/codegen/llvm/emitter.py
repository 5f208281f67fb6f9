"""Values, locals and control flow: the structured IR becomes basic blocks, scalar or masked, by one set of methods.

With one lane every value is uniform and no mask exists. With more, control that depends on the lane becomes a mask: both sides of
an ``If`` run (a side that no lane takes is skipped), a loop runs until its last lane is done, and stores keep what inactive lanes had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...ir.nodes import (
    Assert,
    Block,
    Buffer,
    ClaimRow,
    Const,
    Exit,
    GlobalStore,
    If,
    Kernel,
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
from ...ir.walk import atomic_of
from ..abi import CTX_SEED, ContextLayout, Message
from . import arith, memory, report, rows
from .function import ROLLED, Fn, Module
from .target import Unsupported, const_text, memory_type
from .uniform import Shapes


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """What every function of a kernel needs to know of it."""

    kernel: Kernel
    layout: ContextLayout
    arg_words: list[int]
    codes: dict[Message, int]
    sites: dict[Print, int]
    plain: frozenset[Op]
    far: frozenset[str] = frozenset()  # on a GPU, the tapes that do not lie on chip, see ``grid_rows.name_of``


class Emitter(Fn):
    """Emits blocks of one task into one function. ``serial``: nothing else runs, so an atomic is a load and a store."""

    gpu = False
    scope = ""  # of atomics, as LLVM writes it

    def __init__(self, module: Module, info: KernelInfo, task: Task, shapes: Shapes, lanes: int, serial: bool) -> None:
        super().__init__(module, lanes)
        self.info, self.task, self.shapes, self.serial = info, task, shapes, serial
        self.number = info.kernel.tasks.index(task)
        self.values: dict[Op, tuple[str, bool]] = {}
        self.wide: dict[Op, str] = {}  # i64 form of indices; of lane 0 when the index grows by one from lane to lane
        self.locals: dict[Local, str] = {}
        self.mask = ""
        self.iteration: tuple[str, bool] = ("0", False)
        self.stacks: dict[tuple[str, str], str] = {}  # address of slot 0 of this worker's row, by stack and plane
        self.claimed = False  # before the first iteration
        self.rolled = _over_stacks(task.body)[0] if task.stacks else set()

    # -- operands
    def varying(self, x: Operand) -> bool:
        """Whether the value differs between lanes."""
        return isinstance(x, Op) and x.op != "param" and self.values[x][1]

    def operand(self, x: Operand, v: bool) -> str:
        """The register or literal of an operand at a shape."""
        if isinstance(x, Const):
            return self.lit(const_text(x), x.dtype, v)
        if x.op == "param":
            reg, vary = self.param(str(x.attr)), False
        else:
            reg, vary = self.values[x]
        if vary and not v:
            raise AssertionError(f"a value that differs between lanes ({x.op}) is used as one value")
        return self.broadcast(reg, self.ty(x.dtype, False)) if v and not vary else reg

    def context(self, word: int, ty: str = "i64") -> str:
        """A word of the launch context."""
        p = self.hoist(("ctx*", word), f"getelementptr i64, ptr %ctx, i64 {word}")
        return self.hoist(("ctx", word, ty), f"load {ty}, ptr {p}, !invariant.load !0")

    def argument(self, word: int, ty: str) -> str:
        """A word of the argument buffer."""
        p = self.hoist(("arg*", word), f"getelementptr i64, ptr %args, i64 {word}")
        return self.hoist(("arg", word, ty), f"load {ty}, ptr {p}, !invariant.load !0")

    def param(self, name: str) -> str:
        """A launch parameter of this task."""
        return self.context(self.info.layout.params[self.number, name])

    def base(self, buffer: Buffer) -> str:
        """The address that a launch supplies for a buffer."""
        return memory.buffer_base(self, buffer)

    # -- masks
    def active(self) -> str:
        """The mask as a vector, all lanes when nothing is masked."""
        return self.mask or "splat (i1 true)"

    def any(self, mask: str) -> str:
        """Whether some lane of a mask is active."""
        bits = self.t(f"bitcast <{self.lanes} x i1> {mask} to i{self.lanes}")
        return self.t(f"icmp ne i{self.lanes} {bits}, 0")

    def narrow(self, cond: str) -> str:
        """The mask where a varying condition also holds."""
        return self.t(f"and <{self.lanes} x i1> {self.mask}, {cond}") if self.mask else cond

    # -- statements
    def block(self, block: Block) -> None:
        """Every statement of a block, in order."""
        for s in block:
            self.statement(s)

    def statement(self, s: Stmt) -> None:
        """One statement."""
        if type(s) is Op:
            self.op(s)
        else:
            _STATEMENTS[type(s)](self, s)

    def op(self, s: Op) -> None:
        """One value."""
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

    def barrier(self, s: Op) -> None:
        """Refused: only a GPU has threads that wait for each other."""
        raise Unsupported("a barrier: the threads of a block meet on GPUs only")

    def block_memory(self, buffer: Buffer) -> str:
        """The address of memory of a block; refused, see ``barrier``."""
        raise Unsupported("a shared array: the threads of a block meet on GPUs only")

    def local(self, x: Local) -> str:
        """The slot of a local."""
        slot = self.locals.get(x)
        if slot is None:
            slot = self.locals[x] = self.slot(self.ty(x.dtype, x in self.shapes.varying))
        return slot

    def local_store(self, s: LocalStore) -> None:
        """Write a local."""
        v = s.local in self.shapes.varying
        self.assign(self.local(s.local), s.local.dtype, self.operand(s.value, v), v)

    def assign(self, slot: str, dtype: DType, value: str, v: bool) -> None:
        """Write a slot; inactive lanes keep what they had."""
        ty = self.ty(dtype, v)
        if v and self.mask:
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
        if v:
            live = self.slot(f"<{self.lanes} x i1>")
            mask = self.narrow(enter) if enter else self.active()
            self.put(f"store <{self.lanes} x i1> {mask}, ptr {live}")
            enter = self.any(mask)
        self.branch(enter or "true", body, out)
        self.at(body)
        if v:
            self.mask = self.t(f"load <{self.lanes} x i1>, ptr {live}")
        self.values[s.index] = (self.t(f"load {self.ty(d, vi)}, ptr {index}"), vi)
        self.block(s.body)
        if v:
            self._masked_latch(s, index, live, body, out)
        else:
            self._latch(s, index, body, out)
        self.mask = outer
        self.at(out)

    def _step(self, s: Loop, index: str, vi: bool, vc: bool) -> str:
        """Advance the index; whether the loop goes on ("" if only an exit ends it)."""
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

    def _latch(self, s: Loop, index: str, body: str, out: str) -> None:
        if s.exit is not None:
            ty = self.ty(s.exit.dtype, False)
            leave = self.t(f"icmp sgt {ty} {self.t(f'load {ty}, ptr {self.local(s.exit)}')}, 0")
            stay = self.label("stay")
            self.branch(leave, out, stay)
            self.at(stay)
        self.again(self._step(s, index, s.index in self.shapes.varying, False) or "true", body, out, self.said_of(s))

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
        self.put(f"store {flags} {mask}, ptr {live}")
        self.again(self.any(mask), body, out, self.said_of(s))

    def leave(self) -> None:
        """End the task for this worker: an iteration has failed."""
        self.put("ret void")

    def said_of(self, s: Loop) -> str:
        """What LLVM is told of a loop."""
        return ROLLED if s in self.rolled else ""

    def atomic(self, s: Op, ptr: str, values: list[str]) -> str:
        """An atomic that other threads may disturb, of one value; what the place held."""
        place, code = atomic_of(s)
        return memory.exchange(self, code, place, ptr, values)

    def claim_row(self, s: ClaimRow) -> None:
        """Give the worker a row of the adstack heap, if it has none."""
        rows.claim(self, s)

    def stack_word(self, stack: Stack, field: int, slot: Operand) -> tuple[str, str]:
        """The address of a state word, and its kind."""
        return memory.stack_word(self, stack, field, slot)

    def printed(self, s: Print, values: list[str]) -> None:
        """Hand over what a print statement prints, as i64 words."""
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
        for inner in (s.then, s.orelse) if isinstance(s, If) else (s.body,) if isinstance(s, Loop) else ():
            deeper, here = _over_stacks(inner)
            loops |= deeper
            found |= here
            if here and isinstance(s, Loop):
                loops.add(s)
        found |= isinstance(s, StackPut) or (isinstance(s, Op) and s.op == "stack_get")
    return loops, found


_LEAVES: dict[str, Callable[[Emitter, Op], None]] = {
    "load": Emitter.load,
    "arg": Emitter.arg,
    "shape": Emitter.shape,
    "iter": Emitter.iter_,
    "seed": Emitter.seed,
    "barrier": lambda e, s: e.barrier(s),
    "gload": memory.load,
    "atomic": memory.atomic,
    "stack_get": memory.stack_get,
}
_STATEMENTS: dict[type, Callable[[Emitter, Any], None]] = {
    LocalStore: Emitter.local_store,
    GlobalStore: memory.store,
    If: Emitter.if_,
    Loop: Emitter.loop,
    Exit: Emitter.exit_,
    Assert: report.check,
    Print: report.print_,
    StackPut: memory.stack_put,
    Overflow: report.overflow,
    ClaimRow: lambda e, s: e.claim_row(s),
}
