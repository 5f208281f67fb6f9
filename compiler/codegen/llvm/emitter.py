"""The state of a task's emission: what accesses, messages and statements are written with.

With one lane every value is uniform and no mask exists. With more, control that depends on the lane becomes a mask.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ...ir.nodes import (
    Buffer,
    Const,
    FaultKind,
    Kernel,
    Local,
    Loop,
    LoopOrder,
    Op,
    Operand,
    Place,
    Print,
    RowOrder,
    Stack,
    Task,
)
from ..abi import CTX_STATUS, STATUS_VALUES, STATUS_WORDS, ContextLayout, Message
from ..ranges import ranges_of
from .function import Fn, LlvmModule
from .target import Unsupported, const_text
from .uniform import Shapes, SharedElements


@dataclass(frozen=True, slots=True)
class AtomicOrder:
    """The atomics of a kernel that are executed in the order of the iterations; see ``in_order``.

    Attributes:
        atomics: all of them.
        alone: the tasks of these that run on one thread.
        deferred: the tasks of the others, whose chunks make their additions one after another.
        windows: of sums into few elements that all iterations share, in tasks with lanes.
    """

    atomics: frozenset[Op] = frozenset()
    alone: frozenset[Task] = frozenset()
    deferred: frozenset[Task] = frozenset()
    windows: Mapping[Op, SharedElements] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """The facts about a kernel for all of its functions."""

    kernel: Kernel
    layout: ContextLayout
    arg_words: list[int]
    codes: dict[Message, int]
    sites: dict[Print, int]
    plain: frozenset[Op]
    far: frozenset[str] = frozenset()  # on a GPU, the tapes that do not lie on chip, see ``grid_rows.name_of``
    order: AtomicOrder = AtomicOrder()
    rows: Mapping[Task, RowOrder] = field(default_factory=dict)  # of the tasks whose rows have an order that is known
    loops: Mapping[Loop, LoopOrder] = field(default_factory=dict)  # of the serial loops whose sums may wait


class Emitter(Fn, ABC):
    """The state of the emission of one task into one function. ``serial``: nothing else runs, so an atomic is a load and a store."""

    gpu = False
    scope = ""  # of atomics, as LLVM writes it
    status_word = CTX_STATUS  # of the context, with the address of the status record for this code

    def __init__(self, module: LlvmModule, info: KernelInfo, task: Task, shapes: Shapes, lanes: int, serial: bool) -> None:
        super().__init__(module, lanes)
        self.info, self.task, self.shapes, self.serial = info, task, shapes, serial
        self.number = info.kernel.tasks.index(task)
        self.values: dict[Op, tuple[str, bool]] = {}
        self.wide: dict[Op, str] = {}  # i64 form of indices; of lane 0 when the index grows by one from lane to lane
        self.ranges = {} if self.gpu else ranges_of(task)
        self.locals: dict[Local, str] = {}
        self.window_sums: dict[SharedElements, str] = {}  # this chunk's own sums into windows
        self.mask = ""  # of the lanes that run; empty: all
        self.there = ""  # of the lanes that have an iteration: locals of the other lanes are never read
        self.iteration: tuple[str, bool] = ("0", False)
        self.stacks: dict[tuple[str, str], str] = {}  # address of slot 0 of this worker's row, by stack and plane
        self.waiting: Container[Op] = ()  # sums that are made behind the row, see ``RowSums``
        self.claimed = False  # before the first iteration
        self.in_turns = lanes > 1 and "lanes" in task.params  # as many lanes at a time as the launch has adstacks for
        self.turn = ""  # minus the first lane of those that run

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

    @property
    def side(self) -> str:
        """The number of iterations with adjacent adstack words."""
        return self.param("lanes") if self.in_turns else str(self.lanes)

    def bytes_side_by_side(self, size: int) -> str:
        """From one word of a row of an adstack to the next, where a word has ``size`` bytes."""
        return self.hoist(("side", size), f"mul i64 {self.side}, {size}") if self.in_turns else str(size * self.lanes)

    def local(self, x: Local) -> str:
        """The slot of a local."""
        slot = self.locals.get(x)
        if slot is None:
            slot = self.locals[x] = self.slot(self.ty(x.dtype, x in self.shapes.varying))
        return slot

    def failure_words(self) -> str:
        """The slot for the operands of a failure on their way to the status record."""
        slot = self.hoisted.get("failure")
        if slot is None:
            slot = self.hoisted["failure"] = self.slot(f"[{STATUS_WORDS - STATUS_VALUES} x i64]")
        return slot

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

    # -- what an emitter for another machine does in its own way
    def leave(self) -> None:
        """End the task for this worker: an iteration has failed."""
        self.put("ret void")

    def trial_base(self, place: Place) -> str:
        """The address of the trial's part of a place's buffer; with lanes, that of the first lane's trial."""
        raise Unsupported("places per trial outside of a batched kernel")

    def publish(self, word: str, ptr: str) -> None:
        """Store an i64 for other threads: a lock or a counter, and a fence, tell them when they may read it, or write it."""
        self.put(f"store i64 {word}, ptr {ptr}")

    def collect(self, ptr: str) -> str:
        """The i64 that was published at an address."""
        return self.t(f"load i64, ptr {ptr}")

    def report_failure(self, s: Message, args: tuple[Operand, ...], lanes: str) -> None:
        """Record a failure. ``lanes``: the mask of those that failed; empty: all of them, or there is one."""
        raise Unsupported("an assertion outside of a task")

    def goes_on(self, kind: FaultKind | Literal["stack"], lanes: str) -> bool:
        """Whether a thread continues after a failure. ``lanes``: see ``report_failure``.

        An assertion guards what follows. Where several iterations run side by side, one before the iteration that failed may fail further
        down, and comes first.
        """
        return self.lanes > 1 and kind not in ("assert", "bounds", "stack")

    def drop_failed(self) -> None:
        """The rest of the block is run by those lanes alone that have not failed."""

    def block_memory(self, buffer: Buffer) -> str:
        """The address of memory of a block; refused: only a GPU has any."""
        raise Unsupported("a shared array: the threads of a block meet on GPUs only")

    @abstractmethod
    def atomic(self, s: Op, ptr: str, values: list[str]) -> str:
        """An atomic that other threads may disturb, of one value; what the place held."""

    @abstractmethod
    def stack_word(self, stack: Stack, field: int, slot: Operand) -> tuple[str, str]:
        """The address of a state word, and its kind."""

    @abstractmethod
    def printed(self, s: Print, values: list[str]) -> None:
        """Hand over what a print statement prints, as i64 words."""
