"""A task as a device function: every thread takes the iterations ``thread, thread + threads, ..``.

The function has one 8-byte parameter for each word of the context and of the arguments that its code reads, and for what the host
has computed of the prologue. A failed iteration leaves by a jump to the function's end, so that all threads of a block reach its barriers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.nodes import Block, Buffer, ClaimRow, Local, Loop, Op, Operand, Print, Stack, Task
from ...ir.threads import once
from ...ir.types import DType, i64, u1
from ...ir.walk import walk, written_places
from ..abi import CTX_PRINT, CTX_SCRATCH, CTX_STATUS, SCRATCH_FAILED, SCRATCH_PARTIALS, SCRATCH_VALUES, Message
from . import grid_block, grid_copies, grid_reduce, grid_rows, grid_warp, grid_wide, ring
from .emitter import Emitter, KernelInfo
from .function import Fn, Module
from .gpu import GpuTarget, Hardware, Word
from .prologue import begin_and_size, constant, literal_count, wanted, where
from .target import Unsupported, memory_type
from .task import conditional_locals
from .uniform import Shapes

_NARROW_COUNT = (1 << 31) - (1 << 24)  # a thread's next iteration is at most 2**24 threads away

_TALK = (CTX_SCRATCH, CTX_STATUS, CTX_PRINT)


@dataclass(frozen=True, slots=True)
class DeviceFunction:
    """A function of the device module and its parameters in order. ``before``: of one thread, for the prologue of its task;
    ``flexible``: its launch decides how large blocks are; ``wide``: a thread takes so many iterations at once by wide accesses, or 1.
    """

    name: str
    task: Task
    number: int
    words: list[Word]
    before: bool = False
    flexible: bool = False
    wide: int = 1


@dataclass(frozen=True, slots=True)
class Failures:
    """What device functions do about failed iterations: ``sets`` the word that later ones, and reductions, look at; ``looks``."""

    sets: bool = False
    looks: bool = False


class GridEmitter(Emitter):
    """Emits one task, or its prologue, into one device function.

    For adstacks: ``thread()``, ``threads_of_block``, ``hardware.thread_in_block``, ``hardware.dynamic_shared`` and ``scratch()``.
    """

    gpu = True
    scope = 'syncscope("device") '

    def __init__(self, module: Module, info: KernelInfo, task: Task, hardware: Hardware, failures: Failures) -> None:
        super().__init__(module, info, task, Shapes(), 1, not task.parallel)
        assert isinstance(module.target, GpuTarget)
        self.target: GpuTarget = module.target
        self.hardware, self.failures = hardware, failures
        self.words: dict[Word, str] = {}
        self.where = where(task)
        self.meeting, self.may_fail = grid_block.meeting(task), fails(task)
        self.part = (
            ""  # whether the thread has an iteration, where its block meets: "" if so, a register, or a slot if it may fail
        )
        self.barriers = 0
        self.way_out = ""  # where code that only such threads run ends
        self.threads_of_block = grid_block.threads_of(task, self.target)
        self.copies, self.wide_accesses = grid_copies.copies_of(task, info.plain)
        self.flexible = task.parallel and not (task.stacks or task.reductions or task.block) and self.copies == 1
        self.finish = self.label("finish")
        self.count = ""  # of iterations
        self._bounds = {x for x in wanted(task) if isinstance(x, Op)}

    # -- parameters
    def parameter(self, word: Word) -> str:
        """The register of a parameter."""
        return self.words.setdefault(word, f"%p{len(self.words)}")

    def context(self, word: int, ty: str = "i64") -> str:
        """A word of the launch context."""
        return self.parameter(Word("ctx", word, ty))

    def argument(self, word: int, ty: str) -> str:
        """A word of the argument buffer, as any type of at most 8 bytes."""
        if ty in ("i64", "ptr"):
            return self.parameter(Word("arg", word, ty))
        return from_word(self, self.parameter(Word("arg", word)), ty)

    def operand(self, x: Operand, v: bool) -> str:
        """A register or literal; what the host has computed is a parameter."""
        if isinstance(x, Op) and x in self._bounds and x not in self.values and x.op != "param":
            raw = from_word(self, self.parameter(Word("value", x)), memory_type(x.dtype))
            return self.hoist(("truth", raw), f"icmp ne i8 {raw}, 0") if x.dtype is u1 else raw
        return super().operand(x, v)

    def varying(self, x: Operand) -> bool:
        """See ``Emitter``; what the host has computed is one value."""
        return x in self.values and super().varying(x)

    def pointer_attributes(self) -> dict[Word, str]:
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
        """How many threads the grid has, i64."""
        narrow = self.threads_narrow()
        return self.hoist("threads64", f"zext i32 {narrow} to i64")

    def threads_narrow(self) -> str:
        """How many threads the grid has, i32."""
        return self.hoist("threads", f"mul nuw nsw i32 {self.hardware.blocks(self)}, {self._block()}")

    def _block(self) -> str:
        return self.hardware.threads(self) if self.flexible else str(self.threads_of_block)

    def scratch(self, word: int) -> str:
        """The address of a word of the scratch memory."""
        return self.hoist(("scratch", word), f"getelementptr i64, ptr {self.context(CTX_SCRATCH, 'ptr')}, i64 {word}")

    def failed(self) -> str:
        """Whether an iteration of this launch of the kernel has failed (i1)."""
        number = self.t(f"load i64, ptr {self.scratch(SCRATCH_FAILED)}")
        return self.t(f"icmp eq i64 {number}, {self.parameter(Word('launch'))}")

    # -- threads that meet
    def block(self, block: Block) -> None:
        """See ``Emitter``; where threads meet, those without an iteration go along."""
        if self.meeting is None or id(block) not in self.meeting.open:
            super().block(block)
            return
        for s in block:
            grid_block.run(self, s, self.meeting)

    def is_active(self) -> str:
        """Whether this thread has an iteration that has not failed (i1)."""
        return self.t(f"load i1, ptr {self.part}") if self.may_fail else self.part

    def barrier(self, s: Op) -> None:
        """All threads of the block arrive."""
        self.hardware.barrier(self)

    def block_memory(self, buffer: Buffer) -> str:
        """The address of a shared array."""
        begin, size = grid_block.arrays(self.task)[buffer]
        return self.hardware.array(self, self.number, begin, size)

    def narrow_count(self, begins: list[str]) -> bool:
        """Whether iterations fit into i32."""
        return _narrow(self, begins)

    def start_iteration(self, now: str, ty: str, begins: list[str], sizes: list[str]) -> None:
        """The indices of an iteration."""
        _indices(self, now, ty, begins, sizes)

    # -- what ends an iteration or leaves the device
    def leave(self) -> None:
        """End the task for this thread, at the end of the function. A failure is noted for the tasks that follow."""
        if self.failures.sets:
            self.put(f"store i64 {self.parameter(Word('launch'))}, ptr {self.scratch(SCRATCH_FAILED)}")
        if self.way_out:
            self.put(f"store i1 false, ptr {self.part}")
        self.jump(self.way_out or self.finish)

    def atomic(self, s: Op, ptr: str, values: list[str]) -> str:
        """Together with the other threads of the warp where all of them mean one element."""
        together = grid_warp.atomic(self, s, ptr, values)
        return super().atomic(s, ptr, values) if together is None else together

    @once
    def uniform(self) -> grid_warp.Uniform:
        """What is the same in all threads."""
        return grid_warp.Uniform(self.task)

    def claim_row(self, s: ClaimRow) -> None:
        """Give the thread a row of the adstack heap, if it has none."""
        if not self.claimed:
            grid_rows.claim(self, s)

    def said_of(self, s: Loop) -> str:
        """What LLVM is told of a loop."""
        return grid_rows.unrolling(self, s) or super().said_of(s)

    def stack_word(self, stack: Stack, field: int, slot: Operand) -> tuple[str, str]:
        """The address of a state word, and its kind."""
        return grid_rows.word(self, stack, field, slot), "uniform"

    def printed(self, s: Print, values: list[str]) -> None:
        """Append a record to the print ring."""
        ring.append(self, s, values)


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


def emit_task(e: GridEmitter, name: str) -> DeviceFunction:
    """Add the device function of a task to its module."""
    unset = conditional_locals(e.task)
    _prologue(e)
    grid_reduce.start(e)
    bounds = _bounds(e)
    e.count = bounds[2]
    if e.failures.looks:
        _skip_after_failure(e)
    grid_rows.start(e)
    if e.meeting is not None:
        grid_block.iterations(e, e.meeting, unset, *bounds)
    elif e.task.axes:
        _iterations(e, unset, *bounds)
    else:
        for x in unset:
            e.reset(x)
        e.block(e.task.body)
    e.jump(e.finish)
    e.at(e.finish)
    grid_reduce.finish(e)
    e.put("ret void")
    return _define(e, name, False)


def emit_before(e: GridEmitter, name: str) -> DeviceFunction:
    """Add the function of one thread that leaves the values of the prologue in the scratch memory."""
    values = wanted(e.task)
    if len(values) > SCRATCH_PARTIALS - SCRATCH_VALUES:
        raise Unsupported(f"a parallel loop with {len(values)} bounds that are read from memory")
    e.threads_of_block, e.where, e.flexible = 1, "thread", False
    _prologue(e)
    for k, x in enumerate(values):
        word = e.convert(e.operand(x, False), x.dtype, i64, False)
        e.put(f"store i64 {word}, ptr {e.scratch(SCRATCH_VALUES + k)}")
    e.put("ret void")
    return _define(e, name, True)


def _define(e: GridEmitter, name: str, before: bool) -> DeviceFunction:
    size = 8 * len(e.words)
    if size > e.target.most_bytes:
        raise Unsupported(f"a task that uses {len(e.words)} fields and arguments; a GPU takes {e.target.most_bytes // 8}")
    e.module.functions.append(e.hardware.define(e, name))
    wide = e.copies if e.wide_accesses is not None and not before else 1
    return DeviceFunction(name, e.task, e.number, list(e.words), before, e.flexible, wide)


def _skip_after_failure(e: GridEmitter) -> None:
    """No iteration runs after a task that has failed, as on the CPU. The blocks of this one still arrive: it may be failing as well."""
    go = e.label("go")
    e.branch(e.failed(), e.finish, go, unlikely=True)
    e.at(go)


def _prologue(e: GridEmitter) -> None:
    """Compute the prologue's values in every thread, or read what one thread has left."""
    if e.where == "thread":
        for x in conditional_locals(Task("", e.task.prologue)):
            e.reset(x)
        e.block(e.task.prologue)
    elif e.where == "before":
        for k, x in enumerate(wanted(e.task)):
            if isinstance(x, Op) and x.op != "param" and x not in e.values:
                word = e.t(f"load i64, ptr {e.scratch(SCRATCH_VALUES + k)}")
                e.values[x] = (e.convert(word, i64, x.dtype, False), False)


def _bounds(e: GridEmitter) -> tuple[list[str], list[str], str]:
    """Begin and size of each axis and the number of iterations, each a literal or an i64 register."""
    begins, sizes, product = [], [], ""
    for k, axis in enumerate(e.task.axes):
        begin, end = constant(axis.begin), constant(axis.end)
        if e.where == "host":
            begins.append(str(begin) if begin is not None else e.parameter(Word("begin", k)))
            known = begin is not None and end is not None
            sizes.append(str(max(0, end - begin)) if known else e.parameter(Word("size", k)))  # type: ignore[operator]
            continue
        if begin is not None and end is not None:  # the prologue has something else, the place of a reduction
            begins.append(str(begin))
            sizes.append(str(max(0, end - begin)))
        else:
            first, size = begin_and_size(e, axis)
            begins.append(first)
            sizes.append(size)
        product = e.t(f"mul i64 {product}, {sizes[-1]}") if product else sizes[-1]
    count = literal_count(e.task)
    if not e.task.axes:
        product = ""
    elif count is not None:
        product = str(count)
    elif e.where == "host":
        product = e.parameter(Word("count"))
    return begins, sizes, product


def _iterations(e: GridEmitter, unset: list[Local], begins: list[str], sizes: list[str], count: str) -> None:
    """The loop of one thread over its iterations."""
    ty = "i32" if _narrow(e, begins) else "i64"
    first, stride = (e.thread_narrow(), e.threads_narrow()) if ty == "i32" else (e.thread(), e.threads())
    if e.task.stacks and e.task.parallel:  # as many threads as the plan has: each has at most one row
        stride = e.param("threads")
        over = e.t(f"icmp sge i64 {first}, {stride}")
        stay = e.label("stay")
        e.branch(over, e.finish, stay)
        e.at(stay)
    it = e.slot(ty)
    e.put(f"store {ty} {first}, ptr {it}")
    copies = grid_copies.start(e, e.copies)
    if len(copies) > 1:
        (_tiles if grid_copies.TILED else _pass)(e, Walk(it, ty, stride, count, begins, sizes), copies, unset)
        grid_copies.join(e, copies)
    _pass(e, Walk(it, ty, stride, count, begins, sizes), copies[:1], unset)


@dataclass(frozen=True, slots=True)
class Walk:
    """How a thread walks: the slot of its next iteration, the type of iteration numbers, and registers of that type."""

    it: str
    ty: str
    stride: str
    count: str
    begins: list[str]
    sizes: list[str]


def _pass(e: GridEmitter, w: Walk, copies: list[grid_copies.Copy], unset: list[Local]) -> None:
    """Iterations while there are enough left for all copies of the body."""
    ty, body, out = w.ty, e.label("iteration"), e.label("done")
    ahead = e.t(f"mul nsw {ty} {w.stride}, {len(copies) - 1}") if len(copies) > 1 else ""

    def enough(now: str) -> str:
        last = e.t(f"add nsw {ty} {now}, {ahead}") if ahead else now
        return e.t(f"icmp slt {ty} {last}, {w.count}")

    e.branch(enough(e.t(f"load {ty}, ptr {w.it}")), body, out)
    e.at(body)
    now = e.t(f"load {ty}, ptr {w.it}")
    for copy in copies:
        copy.enter(e)
        _indices(e, now, ty, w.begins, w.sizes)
        copy.iteration = e.iteration
        now = e.t(f"add nsw {ty} {now}, {w.stride}")
    grid_copies.body(e, copies, unset)
    e.put(f"store {ty} {now}, ptr {w.it}")
    e.branch(enough(now), body, out)
    e.at(out)


def _tiles(e: GridEmitter, w: Walk, copies: list[grid_copies.Copy], unset: list[Local]) -> None:
    """Blocks take whole tiles, as many iterations as the block has threads for each copy of the body, where that leaves no thread idle.
    The rest begins after the last of them. Copies lie a block's threads apart, but those that share accesses follow one another.
    """
    ty, n, body, out = w.ty, len(copies), e.label("tile"), e.label("tiled")
    group = e.wide_accesses.group if e.wide_accesses is not None else 1
    size = n * e.threads_of_block
    whole = e.t(f"udiv {ty} {w.count}, {size}")
    use = e.t(f"icmp sge {ty} {w.count}, {e.t(f'mul nsw {ty} {w.stride}, {n}')}")
    if e.wide_accesses is not None:
        use = e.t(f"and i1 {use}, {grid_wide.aligned(e, e.wide_accesses, w.begins[-1], w.sizes[-1])}")
    tiles = e.t(f"select i1 {use}, {ty} {whole}, {ty} 0")
    at, wide = e.slot(ty), ty == "i64"
    block, blocks, mine = (
        e.t(f"zext i32 {x} to i64") if wide else x
        for x in (e.hardware.block_number(e), e.hardware.blocks(e), e.hardware.thread_in_block(e))
    )
    e.put(f"store {ty} {block}, ptr {at}")
    e.branch(e.t(f"icmp slt {ty} {block}, {tiles}"), body, out)
    e.at(body)
    tile = e.t(f"load {ty}, ptr {at}")
    if group > 1:
        mine = e.t(f"mul nuw nsw {ty} {mine}, {group}")
    first = e.t(f"add nuw nsw {ty} {e.t(f'mul nuw nsw {ty} {tile}, {size}')}, {mine}")
    for k, copy in enumerate(copies):
        copy.enter(e)
        beyond = k // group * group * e.threads_of_block + k % group
        _indices(e, e.t(f"add nuw nsw {ty} {first}, {beyond}"), ty, w.begins, w.sizes)
        copy.iteration = e.iteration
    grid_copies.body(e, copies, unset)
    following = e.t(f"add nuw nsw {ty} {tile}, {blocks}")
    e.put(f"store {ty} {following}, ptr {at}")
    e.branch(e.t(f"icmp slt {ty} {following}, {tiles}"), body, out)
    e.at(out)
    first, done = e.t(f"load {ty}, ptr {w.it}"), e.t(f"mul nsw {ty} {tiles}, {size}")
    e.put(f"store {ty} {e.t(f'add nsw {ty} {first}, {done}')}, ptr {w.it}")


def _narrow(e: GridEmitter, begins: list[str]) -> bool:
    """Whether iterations and indices fit into i32, which is known of literal bounds."""
    count = literal_count(e.task)
    if count is None or count > _NARROW_COUNT or (e.task.stacks and e.task.parallel):
        return False
    return all(abs(int(b)) + count <= _NARROW_COUNT for b in begins)


def _indices(e: GridEmitter, now: str, ty: str, begins: list[str], sizes: list[str]) -> None:
    """The iteration's number taken apart, the last axis fastest. A literal size becomes a multiplication; LLVM divides in 32 bits where
    both numbers are small.
    """
    e.iteration = (now if ty == "i64" else e.t(f"zext i32 {now} to i64"), False)
    left, nsw = now, "" if e.meeting is not None else "nsw "  # a thread without an iteration may be past the end of the type
    for k in range(len(e.task.axes) - 1, -1, -1):
        axis = e.task.axes[k]
        relative = left
        if k:
            relative, left = e.t(f"urem {ty} {left}, {sizes[k]}"), e.t(f"udiv {ty} {left}, {sizes[k]}")
        index = relative if begins[k] == "0" else e.t(f"add {nsw}{ty} {relative}, {begins[k]}")
        wide = index if ty == "i64" else e.t(f"sext i32 {index} to i64")
        e.wide[axis.index] = wide
        e.values[axis.index] = (_narrowed(e, axis.index.dtype, index, ty, wide), False)


def _narrowed(e: GridEmitter, d: DType, index: str, ty: str, wide: str) -> str:
    """An index in its own type: bounds of that type enclose it, so the truncation loses nothing."""
    if d.bits == 64:
        return wide
    if d.bits == 32 and ty == "i32":
        return index
    flag = "" if e.meeting is not None else "nuw " if d.kind == "u" else "nsw "
    return e.t(f"trunc {flag}{ty} {index} to {e.ty(d, False)}")
