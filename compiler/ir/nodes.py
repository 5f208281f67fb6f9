"""Statements, blocks, tasks and kernels.

A kernel is a list of tasks. A task is either serial (no axes) or one iteration of a parallel loop over its axes. A block is a
plain ``list`` of statements. A value is an ``Op`` (defined once, in its block, before its uses) or a ``Const``; a ``Local`` is a
mutable variable of one iteration, whose declaration is its first store. Everything is scalar.

Nodes compare by identity. They are created by ``builder.StatementBuilder`` and walked with ``walk``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Literal, Union

from .types import DType, i32

new_id = count(1).__next__
"""Gives a number that no node of this process has; later ones are larger."""


@dataclass(frozen=True, slots=True)
class Loc:
    """A place in the user's source: ``line`` is 1-based in the file, ``col``/``end`` are 0-based columns in ``text``."""

    file: str
    line: int
    col: int
    end: int
    text: str
    kernel: str = ""
    mode: Literal["", "gradient", "tangent"] = ""  # it is the adjoint of the statement here, or its tangent
    at: tuple[tuple[str, int], ...] = ()  # the iterations of the loops around it that are written out

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Const:
    """A literal. ``value`` is a Python int, float or bool.

    ``exact``: the front end has it from numbers of the source alone; such a real has its full precision until it is emitted or meets a
    value of a type. All others are rounded to their type by each operation, as values that only running can tell.
    """

    value: int | float | bool
    dtype: DType
    exact: bool = field(default=False, compare=False, repr=False)


@dataclass(eq=False, slots=True)
class Local:
    """A mutable variable of one iteration."""

    dtype: DType
    name: str = "v"
    id: int = field(default_factory=new_id)


@dataclass(eq=False, slots=True, repr=False)
class Op:
    """A value: a pure operation, a load, or an atomic (which returns the old content). ``ops.TABLE`` lists the codes."""

    op: str
    args: tuple[Operand, ...] = ()
    dtype: DType = i32
    attr: object = None
    loc: Loc | None = None
    id: int = field(default_factory=new_id)

    def __repr__(self) -> str:  # one line: operands nest as deep as the program
        return f"<{self.op} %{self.id}: {self.dtype}>"


Operand = Union[Op, Const]

FaultKind = Literal["assert", "bounds", "overflow", "nan", "input"]

BufferKind = Literal["field", "arg", "arg_grad", "arg_dual", "tmp", "tmp_grad", "tmp_dual", "ret", "block", "trial"]


@dataclass(eq=False, slots=True)
class Buffer:
    """One base address that a launch must supply. ``owner`` is the field storage or the ``ArgDecl`` it belongs to.

    One of kind ``block`` has no such address: each block of threads of a task has its own, for as long as it runs. That of kind ``trial``
    is the launch parameter that ``owner`` names.
    """

    kind: BufferKind
    owner: object = None


@dataclass(eq=False, slots=True)
class CellBlocks:
    """How a place in a level with a budget lies in memory: as blocks, one for each active cell of the level, in any order.

    Block 0 holds zeros, which is what reads of inactive cells find; the last one takes what is written to them. ``passes.pools`` turns
    accesses to the place into accesses to its blocks.

    Attributes:
        slots: the number of the block of each cell; 0: it has none.
        sizes: elements of a cell along each axis of the place.
        axes: the axes of the place that are the axes of ``slots``.
        blocks: how many there are, with the first and the last.
        stride: bytes from one block to the next.
    """

    slots: Place
    sizes: tuple[int, ...]
    axes: tuple[int, ...]
    blocks: int
    stride: int


@dataclass(eq=False, slots=True)
class Place:
    """A scalar-valued array in memory: a field, one component of a vector field, an ndarray argument, a temporary.

    Address of element (i0, i1, ..) = base(buffer) + offset + sum(i_k * strides[k]), in bytes. ``shape`` and ``strides`` are None
    for an ndarray argument, whose extents come with the launch: row-major, ``elem_bytes`` from one element to the next.

    ``trial_bytes``: in a batched program, the bytes that each trial has in the buffer, laid out as ``trials.TrialLayout`` says; 0: all
    trials share the place. An ndarray argument has its own (``ArgDecl.per_trial``).

    ``pool``: it lies in blocks; ``shape`` is that of all elements then, and ``strides`` are those in a block.
    """

    name: str
    dtype: DType
    buffer: Buffer
    ndim: int
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    offset: int = 0
    elem_bytes: int = 0
    grad: Place | None = None
    is_grad: bool = False
    dual: Place | None = None  # where forward mode keeps the tangent
    trial_bytes: int = 0
    pool: CellBlocks | None = None

    @property
    def per_trial(self) -> bool:
        """Whether each trial of a batch has its own."""
        return self.trial_bytes > 0 or (isinstance(self.buffer.owner, ArgDecl) and self.buffer.owner.per_trial)

    @property
    def differentiable(self) -> bool:
        """Whether an adjoint is stored for it."""
        return self.grad is not None


@dataclass(eq=False, slots=True)
class ArgDecl:
    """One entry of the argument buffer: a scalar (one word) or an ndarray (address, extents, addresses of its gradient and dual).

    ``per_trial``: each trial of a batch has its own. The word of such a scalar is the address of one value for each trial.
    """

    name: str
    kind: Literal["scalar", "ndarray"]
    dtype: DType
    ndim: int = 0
    element: tuple[int, ...] = ()  # () scalar elements, (n,) vectors, (n, m) matrices
    needs_grad: bool = False
    index: int = 0  # position among the kernel's ArgDecls
    needs_dual: bool = False
    per_trial: bool = False


@dataclass(eq=False, slots=True)
class LocalStore:
    """``local = value``"""

    local: Local
    value: Operand
    loc: Loc | None = None


@dataclass(eq=False, slots=True)
class GlobalStore:
    """``place[index] = value`` (not atomic)"""

    place: Place
    index: tuple[Operand, ...]
    value: Operand
    loc: Loc | None = None


@dataclass(eq=False, slots=True)
class If:
    """``site``/``site_local`` are set by exit lowering: ``then`` always leaves the loop that owns ``site_local`` through ``site``."""

    cond: Operand
    then: list[Stmt] = field(default_factory=list)
    orelse: list[Stmt] = field(default_factory=list)
    site: int = 0
    site_local: Local | None = None
    loc: Loc | None = None


@dataclass(eq=False, slots=True)
class Loop:
    """``for index in range(begin, end, step)`` run by one thread; ``end`` None: for ever.

    ``exit``, when set, is an integer local that the body resets at its top; after the body the loop is left if it is positive.
    """

    index: Op
    begin: Operand
    end: Operand | None
    body: list[Stmt] = field(default_factory=list)
    exit: Local | None = None
    step: int = 1
    loc: Loc | None = None
    id: int = field(default_factory=new_id)


@dataclass(eq=False, slots=True)
class Exit:
    """break / continue / return. Only front-end output has these: ``passes.exits`` removes them."""

    kind: Literal["break", "continue", "return"]
    loc: Loc | None = None


@dataclass(eq=False, slots=True)
class Assert:
    """Stops the launch with an error when ``cond`` is false. ``message`` may hold ``{}`` for each operand of ``args``.

    One of kind "bounds" guards the index of the access that follows, in reverse kernels too. One of another kind than "assert" guards
    nothing: iterations that run in the lanes of one thread may go on. ``loops`` names the last operands of ``args``, which are indices
    of the loops around.
    """

    cond: Operand
    message: str
    args: tuple[Operand, ...] = ()
    loc: Loc | None = None
    kind: FaultKind = "assert"
    loops: tuple[str, ...] = ()


@dataclass(eq=False, slots=True)
class Print:
    """Prints the parts one after another; a part is text or a value. ``formats``: of each part, as ``print_formats`` reads them.

    ``once``: a report, which the host prints the first time only.

    With ``stop`` it is a breakpoint instead, which only the interpreter has: the parts are the components of the variables that
    ``stop`` names, each with its shape.
    """

    parts: tuple[str | Operand, ...]
    loc: Loc | None = None
    stop: tuple[tuple[str, tuple[int, ...]], ...] | None = None
    formats: tuple[str, ...] = ()
    once: bool = False


@dataclass(eq=False, slots=True)
class Stack:
    """An adstack of a loop. Slot q holds one word for each local. ``name`` also names its launch parameter (its first word)."""

    loop: Loop
    kind: Literal["ck1", "ck2", "tape"]
    locals: tuple[Local, ...]
    name: str


@dataclass(eq=False, slots=True)
class StackPut:
    """Writes ``values`` into slot ``slot``. ``Op("stack_get", (slot,), attr=(stack, field))`` reads one word back."""

    stack: Stack
    slot: Operand
    values: tuple[Operand, ...]


@dataclass(eq=False, slots=True)
class Overflow:
    """The loop ran more iterations than its adstacks were planned for: record ``code`` and stop the task."""

    loop: Loop
    code: int


@dataclass(eq=False, slots=True)
class ClaimRow:
    """Makes sure that the worker has an adstack row: the first one that it meets in a launch of the task takes the next free row.

    The row is the worker's until the task ends. When all planned rows (the task's launch parameter ``rows``) are taken, the launch stops.
    """

    loc: Loc | None = None


Stmt = Union[Op, LocalStore, GlobalStore, If, Loop, Exit, Assert, Print, StackPut, Overflow, ClaimRow]
Block = list[Stmt]


@dataclass(eq=False, slots=True)
class Axis:
    """One axis of a parallel loop: ``index`` runs over [begin, end). The bounds are values of the task's prologue or constants."""

    index: Op
    begin: Operand
    end: Operand


@dataclass(eq=False, slots=True)
class Reduction:
    """``local`` starts each chunk of iterations as the identity of ``code`` and keeps its value from one iteration to the next.

    The chunks' values are combined in chunk order after the loop, then combined with ``place[index]``: no atomics, the same bits
    on every run. ``index`` holds constants or values of the prologue. Where the element need not exist in a launch that never updates it
    (``sure`` is false), ``place`` is left alone if the values combine to the identity.
    """

    local: Local
    place: Place
    index: tuple[Operand, ...]
    code: Literal["add", "min", "max"]
    sure: bool = True


@dataclass(eq=False, slots=True)
class Task:
    """``prologue`` runs once, before the loop, and its values are read by the axes' bounds only."""

    name: str
    body: Block
    axes: list[Axis] = field(default_factory=list)
    prologue: Block = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)
    params: list[str] = field(default_factory=list)  # launch parameters, i64 words, read by Op("param", attr=name)
    serialize: bool = False
    reductions: list[Reduction] = field(default_factory=list)
    loc: Loc | None = None
    block: int = 0  # threads of a block on a GPU, as the loop was told; 0: as the backend likes it
    cost: int = 0  # what an iteration is taken to cost; 0: what its statements do. The checks of a debugged kernel do not count

    @property
    def parallel(self) -> bool:
        """Whether iterations may run at the same time."""
        return bool(self.axes) and not self.serialize


@dataclass(eq=False, slots=True)
class Kernel:
    """``returns`` are the types of the returned scalars, in the order in which the task stores them to ``ret`` places."""

    name: str
    args: list[ArgDecl]
    tasks: list[Task]
    returns: list[DType] = field(default_factory=list)
    tmps: list[Place] = field(default_factory=list)
    loc: Loc | None = None
    frees: str = ""  # a field in a level with a budget, blocks of which the kernel may give back


# -- in which order iterations may run: those of a row, which differ in the last axis of a parallel loop alone, and of serial loops


@dataclass(frozen=True, slots=True)
class RowSum:
    """One of the sums that may be made when all iterations of a row have run.

    Attributes:
        add: it adds to an element, or subtracts from it.
        lag: the iteration that adds to an element comes so many after the one whose add of the group comes first in the text.
    """

    add: Op
    lag: int


@dataclass(frozen=True, slots=True)
class RowOrder:
    """The iterations of a row touch different elements, unless they only read them, but for sums.

    Attributes:
        sums: groups of sums that meet at elements. Those of a group are made element by element, in this order, which is that of the
            iterations; groups do not meet.
        adds: other sums, which meet at elements that are not known. They are made iteration by iteration.
    """

    sums: tuple[tuple[RowSum, ...], ...] = ()
    adds: tuple[Op, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalSum:
    """``store`` puts into a variable what becomes of its value, ``load``, by updates one after the other.

    Attributes:
        updates: operations on the result of the one before, first on ``load``, and on another value.
    """

    load: Op
    updates: tuple[Op, ...]
    store: LocalStore

    @property
    def steps(self) -> list[tuple[Op, int]]:
        """The updates, each with the number of the operand that is the result of the one before."""
        before = (self.load, *self.updates)
        return [(x, 0 if x.args[0] is y else 1) for y, x in zip(before, self.updates)]


@dataclass(frozen=True, slots=True)
class LoopOrder:
    """The iterations of a serial loop have nothing in common but sums in variables, and adds to memory, in the order of the text."""

    sums: tuple[LocalSum, ...]
    adds: tuple[Op, ...]
