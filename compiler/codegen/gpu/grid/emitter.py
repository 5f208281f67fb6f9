"""The state of a device function's emission.

The function has one 8-byte parameter for each word of the context and of the arguments that its code reads, and for what the host
has computed of the prologue.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....ir.nodes import Buffer, Op, Operand, Task
from ....ir.threads import once
from ....ir.types import DType, u1
from ....ir.walk import walk, written_places
from ...abi import CTX_PRINT, CTX_SCRATCH, CTX_STATUS_DEVICE, SCRATCH_FAILED, SCRATCH_MET, Message
from ...llvm.emitter import KernelInfo
from ...llvm.function import Fn, LlvmModule
from ...llvm.target import memory_type
from ...llvm.task_emitter import TaskEmitter
from ...llvm.uniform import Shapes
from ..barriers import arrays, meeting, threads_of
from ..hardware import GpuTarget, GridFn, ParamWord
from ..lanes import from_lane
from ..prologue import wanted, where
from ..side_by_side import copies_of
from ..uniform import Uniform

_TALK = (CTX_SCRATCH, CTX_STATUS_DEVICE, CTX_PRINT)


@dataclass(frozen=True, slots=True)
class Failures:
    """What device functions do about failed iterations: ``sets`` the word that later ones, and reductions, look at; ``looks``."""

    sets: bool = False
    looks: bool = False


class GridEmitter(TaskEmitter, GridFn):
    """The state of the emission of one task, or its prologue, into one device function.

    For adstacks: ``thread()``, ``threads_of_block``, ``hardware.thread_in_block``, ``hardware.dynamic_shared`` and ``scratch()``.
    """

    gpu, status_word = True, CTX_STATUS_DEVICE

    def __init__(self, module: LlvmModule, info: KernelInfo, task: Task, failures: Failures) -> None:
        super().__init__(module, info, task, Shapes(), 1, not task.parallel)
        assert isinstance(module.target, GpuTarget)
        self.target: GpuTarget = module.target
        self.scope = f'syncscope("{self.target.scope}") '
        self.hardware, self.failures = self.target.hardware, failures
        self.words: dict[ParamWord, str] = {}
        self.where = where(task)
        self.may_fail = fails(task)
        self.meeting = meeting(task, self.target.lanes, self.may_fail)
        self.arrays = arrays(task) if self.meeting is not None else {}  # once: each access asks where its array lies
        # whether the thread has an iteration, where its block meets: "" if so, a register, or a slot if it may fail
        self.part = ""
        self.barriers = 0
        self.way_out = ""  # where code that only such threads run ends
        self.threads_of_block = threads_of(task, self.target)
        self.copies, self.wide_accesses = copies_of(task, info.plain, self.target.wide_accesses)
        self.flexible = task.parallel and not (task.stacks or task.reductions or task.block) and self.copies == 1
        self.finish = self.label("finish")
        self.count = ""  # of iterations
        self._bounds = {x for x in wanted(task) if isinstance(x, Op)}

    # -- parameters
    def parameter(self, word: ParamWord) -> str:
        """The register of a parameter."""
        return self.words.setdefault(word, f"%p{len(self.words)}")

    def context(self, word: int, ty: str = "i64") -> str:
        return self.parameter(ParamWord("ctx", word, ty))

    def argument(self, word: int, ty: str) -> str:
        """A word of the argument buffer, as any type of at most 8 bytes."""
        if ty in ("i64", "ptr"):
            return self.parameter(ParamWord("arg", word, ty))
        return from_word(self, self.parameter(ParamWord("arg", word)), ty)

    def operand(self, x: Operand, v: bool) -> str:
        """A register or literal; what the host has computed is a parameter."""
        if isinstance(x, Op) and x in self._bounds and x not in self.values and x.op != "param":
            raw = from_word(self, self.parameter(ParamWord("value", x)), memory_type(x.dtype))
            return self.hoist(("truth", raw), f"icmp ne i8 {raw}, 0") if x.dtype is u1 else raw
        return super().operand(x, v)

    def varying(self, x: Operand) -> bool:
        """See ``TaskEmitter``; what the host has computed is one value."""
        return x in self.values and super().varying(x)

    def pointer_attributes(self) -> dict[ParamWord, str]:
        """Which pointers nothing else points to: the program's own memory (temporaries, heap, returned values) always; that of fields and
        arguments where it is one, or where the task writes none of them: a user may have two arrays of the same memory.

        Not that of the scratch memory and the like, through which blocks talk to each other.
        """
        if self.meeting is not None:  # at a barrier, memory is what other threads have made of it
            return {}
        pointers = [w for w in self.words if w.ty == "ptr" and (w.kind != "ctx" or w.what not in _TALK)]
        fields = {n: b for b, n in self.info.layout.buffers.items()}
        users = [w for w in pointers if w.kind == "arg" or w.what in fields]
        written = {p.buffer for p in written_places(self.task.body)} | {r.place.buffer for r in self.task.reductions}
        read_only = not any(b.kind == "field" or b.kind.startswith("arg") for b in written)
        out = {w: " noalias" for w in pointers if w not in users}
        if read_only or len(users) == 1:
            out |= dict.fromkeys(users, " noalias readonly" if read_only else " noalias")
        return out

    # -- the grid
    def thread(self) -> str:
        """The number of this thread in the grid, i64."""
        narrow = self.thread_narrow()
        return self.hoist("thread64", f"zext i32 {narrow} to i64")

    def thread_narrow(self) -> str:
        """The number of this thread in the grid, i32: a grid has fewer than 2**31 threads."""
        block, mine = self.hardware.block_number(self), self.hardware.thread_in_block(self)
        first = self.hoist("first", f"mul nuw nsw i32 {block}, {self._block()}")
        return self.hoist("thread", f"add nuw nsw i32 {first}, {mine}")

    def threads(self) -> str:
        """The number of threads in the grid, i64."""
        narrow = self.threads_narrow()
        return self.hoist("threads64", f"zext i32 {narrow} to i64")

    def threads_narrow(self) -> str:
        """The number of threads in the grid, i32."""
        return self.hoist("threads", f"mul nuw nsw i32 {self.hardware.blocks(self)}, {self._block()}")

    def _block(self) -> str:
        return self.hardware.threads(self) if self.flexible else str(self.threads_of_block)

    def scratch(self, word: int) -> str:
        """The address of a word of the scratch memory."""
        return self.hoist(("scratch", word), f"getelementptr i64, ptr {self.context(CTX_SCRATCH, 'ptr')}, i64 {word}")

    def failed(self) -> str:
        """Whether an iteration of this launch of the kernel has failed (i1)."""
        number = self.collect(self.scratch(SCRATCH_FAILED))
        return self.t(f"icmp eq i64 {number}, {self.parameter(ParamWord('launch'))}")

    # -- words that blocks leave for each other
    def publish(self, word: str, ptr: str) -> None:
        if self.target.coherent:
            super().publish(word, ptr)
            return
        for half, at in zip(self.halves(word), (ptr, self.t(f"getelementptr i8, ptr {ptr}, i64 4"))):
            self.put(f"store atomic i32 {half}, ptr {at} {self.scope}monotonic, align 4")

    def collect(self, ptr: str) -> str:
        if self.target.coherent:
            return super().collect(ptr)
        both = (ptr, self.t(f"getelementptr i8, ptr {ptr}, i64 4"))
        low, high = (self.t(f"load atomic i32, ptr {at} {self.scope}monotonic, align 4") for at in both)
        return self.from_halves(low, high)

    # -- threads that meet
    def is_active(self) -> str:
        """Whether this thread has an iteration that has not failed (i1)."""
        return self.t(f"load i1, ptr {self.part}") if self.may_fail else self.part

    def meet(self, s: Op) -> None:
        """All threads of the block, or of the wave, arrive."""
        match s.op:
            case "shuffle":
                value, lane = (self.operand(x, False) for x in s.args)
                self.values[s] = (from_lane(self, s.dtype, value, lane, "-1"), False)
            case "ballot":
                flag = self.operand(s.args[0], False)
                if self.part:
                    flag = self.t(f"and i1 {flag}, {self.is_active()}")
                found = self.hardware.ballot(self, "-1", flag)
                self.values[s] = (found if self.target.wave > 32 else self.t(f"zext i32 {found} to i64"), False)
            case _ if s.attr == "grid":
                self.meet_in_grid()
            case _:
                (self.hardware.wave_barrier if s.attr == "wave" else self.hardware.barrier)(self)

    def meet_in_grid(self) -> None:
        """All threads of the launch arrive."""
        assert self.target.grid_barrier is not None
        self.target.grid_barrier(self, self.scratch(SCRATCH_MET))

    def fence(self, s: Op) -> None:
        """Earlier writes of this thread are seen before its later ones, by the threads of its block or by all."""
        self.put(f'fence syncscope("{self.target.block_scope if s.attr == "block" else self.target.scope}") seq_cst')

    def block_memory(self, buffer: Buffer) -> str:
        """The address of a shared array."""
        begin, size = self.arrays[buffer]
        return self.hardware.array(self, self.number, begin, size)

    # -- what ends an iteration or leaves the device
    def leave(self) -> None:
        """End the task for this thread, at the end of the function. A failure is noted for the tasks that follow."""
        if self.failures.sets:
            self.publish(self.parameter(ParamWord("launch")), self.scratch(SCRATCH_FAILED))
        if self.way_out:
            self.put(f"store i1 false, ptr {self.part}")
        self.jump_out(self.way_out or self.finish)

    def jump_out(self, label: str) -> None:
        """Leave all loops and conditions that end before the label, and say so: all other branches belong to one of them."""
        self.put(f"br label %{label} ; leaves")

    @once
    def uniform(self) -> Uniform:
        """The values that are the same in all threads."""
        return Uniform(self.task, self.target.wave > 1)


def from_word(f: Fn, word: str, ty: str) -> str:
    """The low bytes of an i64 register as another type of memory."""
    bits = {"half": "i16", "float": "i32", "double": "i64"}.get(ty, ty)
    if bits != "i64":
        word = f.hoist(("low", word, bits), f"trunc i64 {word} to {bits}")
    return word if bits == ty else f.hoist(("as", word, ty), f"bitcast {bits} {word} to {ty}")


def to_word(f: Fn, value: str, dtype: DType) -> str:
    """What ``from_word`` reads: a value's own bytes, low end first, as i64."""
    if dtype is u1:
        return f.t(f"zext i1 {value} to i64")
    bits = f"i{dtype.bits}"
    if dtype.is_real:
        value = f.t(f"bitcast {f.ty(dtype, False)} {value} to {bits}")
    return value if bits == "i64" else f.t(f"zext {bits} {value} to i64")


def fails(task: Task) -> bool:
    """Whether an iteration can fail."""
    return any(isinstance(s, Message) for s in walk(task.body))
