"""The reference interpreter: what the IR means, in plain Python. Every backend and every pass is tested against it.

``ir.meaning`` says what the pure operations compute; here is the rest: memory, control flow, tasks, reductions. Iterations of a
parallel loop run one after another, the last axis fastest: a kernel without races gives the one right answer. Speed is no aim.

What the nodes leave to this file:

- ``return`` leaves the current iteration of its task (a serial task has one), ``continue`` outside a loop does the same;
- a loop's index is computed without wrapping, as Python's ``range`` does; an endless loop's index wraps;
- locals and adstack slots are forgotten between iterations: reading one that the same iteration has not written is an error;
- a reduction over no iterations does not touch its place;
- there is one worker: its first ``ClaimRow`` in a task takes the one row that it needs;
- an index outside the place's extents, or bytes outside the buffer, is an error (users' bounds checks are asserts in the IR).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from ...codegen.abi import WAYS
from ...errors import AdStackOverflow, describe
from ...ir.meaning import Scalar, evaluate, identity, scalar, update
from ...ir.nodes import (
    ArgDecl,
    Assert,
    Block,
    Buffer,
    ClaimRow,
    Const,
    Exit,
    GlobalStore,
    If,
    Kernel,
    Loc,
    Local,
    LocalStore,
    Loop,
    Op,
    Operand,
    Overflow,
    Place,
    Print,
    Reduction,
    Stack,
    StackPut,
    Stmt,
    Task,
)
from ...ir.types import i64, u64
from ...ir.walk import atomic_of, kernel_places
from ..status import failed, site_text

Shapes = Mapping[ArgDecl, tuple[int, ...]]
Number = int | float | bool


class InterpreterError(Exception):
    """The IR does something that has no meaning: reads what was never written, or leaves its memory. ``loc``: where."""

    loc: Loc | None = None


class Memory:
    """The bytes behind each buffer. Buffers that a launch supplies by one address (temporaries, returns) share their bytes."""

    def __init__(self, shapes: Shapes | None = None) -> None:
        self.shapes: dict[ArgDecl, tuple[int, ...]] = dict(shapes or {})
        self._bytes: dict[object, np.ndarray] = {}

    @classmethod
    def of(cls, arrays: Mapping[Place, np.ndarray]) -> Memory:
        """Memory in which each place (alone in its buffer) is the given contiguous array, shared, not copied."""
        memory = cls()
        for place, array in arrays.items():
            if isinstance(place.buffer.owner, ArgDecl):
                memory.shapes[place.buffer.owner] = array.shape
            memory.bind(place.buffer, array)
        return memory

    def bind(self, buffer: Buffer, array: np.ndarray) -> None:
        """Let ``buffer`` be the bytes of a contiguous array."""
        if not array.flags.c_contiguous:
            raise ValueError("only a contiguous array can stand for a buffer")
        self._bytes[_base(buffer)] = array.reshape(-1).view(np.uint8)

    def bytes(self, buffer: Buffer) -> np.ndarray:
        """The bytes of a buffer."""
        return self._bytes[_base(buffer)]

    def fill(self, kernel: Kernel) -> None:
        """Give zeroed bytes to every buffer of the kernel that has none yet."""
        need: dict[object, int] = {}
        for place in (*kernel_places(kernel), *kernel.tmps):
            need[_base(place.buffer)] = max(need.get(_base(place.buffer), 0), self.end(place))
        for base, nbytes in need.items():
            self._bytes.setdefault(base, np.zeros(nbytes + -nbytes % 8, np.uint8))

    def end(self, place: Place) -> int:
        """The bytes of its buffer that a place reaches to."""
        last = sum((n - 1) * s for n, s in zip(self.extents(place), self.strides(place)))
        return 0 if 0 in self.extents(place) else place.offset + last + place.dtype.size

    def extents(self, place: Place) -> tuple[int, ...]:
        """The extents of the axes of a place."""
        return self.shapes[_owner(place)][: place.ndim] if place.shape is None else place.shape

    def strides(self, place: Place) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis."""
        if place.strides is not None:
            return place.strides
        out = [place.elem_bytes]
        for extent in reversed(self.extents(place)[1:]):
            out.insert(0, out[0] * extent)
        return tuple(out[: place.ndim])

    def array(self, place: Place) -> np.ndarray:
        """The place as a numpy array: a view of the buffer's bytes."""
        data = self.bytes(place.buffer)
        return np.ndarray(self.extents(place), place.dtype.numpy, data.data, place.offset, self.strides(place))

    def address(self, place: Place, index: tuple[int, ...]) -> slice:
        """The bytes of one element within its buffer."""
        if any(not 0 <= i < n for i, n in zip(index, self.extents(place), strict=True)):
            raise InterpreterError(f"{place.name}{list(index)} is outside its shape {self.extents(place)}")
        start = place.offset + sum(i * s for i, s in zip(index, self.strides(place), strict=True))
        if start < 0 or start + place.dtype.size > len(self.bytes(place.buffer)):
            raise InterpreterError(
                f"{place.name}{list(index)} is outside the {len(self.bytes(place.buffer))} bytes of its buffer"
            )
        return slice(start, start + place.dtype.size)

    def read(self, place: Place, index: tuple[int, ...]) -> Scalar:
        """The value of one element."""
        return self.bytes(place.buffer)[self.address(place, index)].view(place.dtype.numpy)[0]

    def write(self, place: Place, index: tuple[int, ...], value: Scalar) -> None:
        """Replace one element."""
        self.bytes(place.buffer)[self.address(place, index)] = np.frombuffer(value.tobytes(), np.uint8)


def _owner(place: Place) -> ArgDecl:
    assert isinstance(place.buffer.owner, ArgDecl)
    return place.buffer.owner


def _base(buffer: Buffer) -> object:
    """The key of a buffer in a launch: buffers with the same base share an address."""
    if buffer.kind == "field":
        return buffer
    return (buffer.kind, buffer.owner) if buffer.kind.startswith("arg") else buffer.kind


@dataclass
class Result:
    """The results of a launch: the returned scalars and the printed lines."""

    returns: list[Number]
    prints: list[str]


class _Leave(Exception):
    """Control leaves a block through an ``Exit``."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


@dataclass
class _LaunchState:
    """The state that all iterations of all tasks share."""

    memory: Memory
    scalars: Mapping[ArgDecl, Number]
    params: Mapping[tuple[int, str], int]
    seed: int
    write: Callable[[str], object]
    stop: Callable[[Print, list[Scalar]], None] | None
    reported: set[Print]
    claimed: set[int] = field(default_factory=set)  # the tasks whose one worker has its adstack row


@dataclass
class _Iteration:
    """The state of one iteration: its values, locals and adstack row."""

    launch: _LaunchState
    task: int
    number: int = 0
    values: dict[Op, Scalar] = field(default_factory=dict)
    locals: dict[Local, Scalar] = field(default_factory=dict)
    row: dict[tuple[Stack, int, int], Scalar] = field(default_factory=dict)

    def value(self, x: Operand) -> Scalar:
        """An operand's value."""
        if isinstance(x, Const):
            return scalar(x.value, x.dtype)
        if x.op == "param":
            return scalar(self.launch.params[self.task, str(x.attr)], i64)
        return self.values[x]

    def index(self, index: tuple[Operand, ...]) -> tuple[int, ...]:
        """The values of indices."""
        return tuple(int(self.value(i)) for i in index)

    def block(self, block: Block) -> None:
        """Run every statement."""
        for s in block:
            try:
                self.stmt(s)
            except InterpreterError as e:
                e.loc = e.loc or getattr(s, "loc", None)
                raise

    def stmt(self, s: Stmt) -> None:
        """Run one statement: one case each."""
        match s:
            case Op():
                self.values[s] = self.op(s)
            case LocalStore(local=local, value=value):
                self.locals[local] = self.value(value)
            case GlobalStore(place=place, index=index, value=value):
                self.launch.memory.write(place, self.index(index), self.value(value))
            case If():
                self.block(s.then if self.value(s.cond) else s.orelse)
            case Loop():
                self.loop(s)
            case Exit():
                raise _Leave(s.kind)
            case Assert():
                if not self.value(s.cond):
                    raise failed(s, [self.value(a).item() for a in s.args])
            case Print(stop=None):
                if s.once and s in self.launch.reported:
                    return
                self.launch.reported.add(s)
                self.launch.write(site_text(s, [self.value(p).item() for p in s.parts if not isinstance(p, str)]))
            case Print():
                if self.launch.stop is not None:
                    self.launch.stop(s, [self.value(p) for p in s.parts if not isinstance(p, str)])
            case ClaimRow():
                if self.task not in self.launch.claimed and self.launch.params[self.task, "rows"] < 1:
                    raise AdStackOverflow(describe("an iteration needs an adstack row, and none was planned", s.loc))
                self.launch.claimed.add(self.task)
            case StackPut():
                self.claimed()
                for word, value in enumerate(s.values):
                    self.row[s.stack, int(self.value(s.slot)), word] = self.value(value)
            case Overflow():
                raise AdStackOverflow(describe("a loop ran more iterations than its adstack was planned for", s.loop.loc))

    def claimed(self) -> None:
        """An adstack access needs a row."""
        if self.task not in self.launch.claimed:
            raise InterpreterError("an adstack is used before a row is claimed")

    def loop(self, s: Loop) -> None:
        """Run a loop: until its range ends, its exit local is positive, or a ``break`` leaves it."""
        begin = int(self.value(s.begin))
        span: Iterator[int] = count(begin, s.step) if s.end is None else iter(range(begin, int(self.value(s.end)), s.step))
        for i in span:
            self.values[s.index] = scalar(i, s.index.dtype)
            try:
                self.block(s.body)
            except _Leave as leave:
                if leave.kind == "return":
                    raise
                if leave.kind == "break":
                    break
            if s.exit is not None and self.locals[s.exit] > 0:
                break

    def op(self, s: Op) -> Scalar:
        """The value of an operation: leaves and memory here, the rest in ``ir.meaning``."""
        attr: Any = s.attr
        memory = self.launch.memory
        match s.op:
            case "arg":
                return scalar(self.launch.scalars[attr], s.dtype)
            case "shape":
                return scalar(memory.shapes[attr[0]][attr[1]], s.dtype)
            case "iter":
                return scalar(self.number, s.dtype)
            case "seed":
                return scalar(self.launch.seed, u64)
            case "fence":  # iterations run one after another
                return scalar(0, s.dtype)
            case "load":
                if attr not in self.locals:
                    raise InterpreterError(f"local {attr.name} is read before it is written")
                return self.locals[attr]
            case "gload":
                return memory.read(attr, self.index(s.args))
            case "atomic":
                place, code = atomic_of(s)
                index, values = self.index(s.args[: place.ndim]), [self.value(a) for a in s.args[place.ndim :]]
                old = memory.read(place, index)
                memory.write(place, index, update(code, old, *values))
                return old
            case "stack_get":
                self.claimed()
                key = (attr[0], int(self.value(s.args[0])), attr[1])
                if key not in self.row:
                    raise InterpreterError(f"slot {key[1]} word {key[2]} of {attr[0].name} is read before it is written")
                return self.row[key]
        return evaluate(s.op, [self.value(a) for a in s.args], s.dtype)


def _iterations(task: Task, prologue: _Iteration) -> Iterator[dict[Op, Scalar]]:
    """The axis indices of each iteration, the last axis fastest; once and empty for a task without axes."""
    bounds = [(int(prologue.value(a.begin)), int(prologue.value(a.end))) for a in task.axes]
    for position in np.ndindex(*(max(0, end - begin) for begin, end in bounds)):
        yield {a.index: scalar(lo + k, a.index.dtype) for a, (lo, _), k in zip(task.axes, bounds, position)}


class _Sum:
    """A reduction of a task: its partial results in a chunk, and what the chunks have given. See ``codegen.sums.partial_sums``."""

    def __init__(self, reduction: Reduction) -> None:
        self.reduction = reduction
        self.total = self._none = identity(reduction.code, reduction.place.dtype)
        self._ways = WAYS if reduction.place.dtype.is_real else 1
        self._partials = [self._none] * self._ways

    def start(self) -> Scalar:
        """What an iteration of a chunk starts with."""
        if self._ways == 1:
            return self._partials[0]
        return scalar(-0.0, self.reduction.place.dtype) if self.reduction.code == "add" else self._none

    def end_iteration(self, number: int, value: Scalar) -> None:
        """Combine what an iteration has with a partial result."""
        way = number % self._ways
        self._partials[way] = update(self.reduction.code, self._partials[way], value) if self._ways > 1 else value

    def end_chunk(self) -> None:
        """Combine the partial results in halves, and the chunk's with those of earlier ones."""
        code, partials = self.reduction.code, self._partials
        while len(partials) > 1:
            half = len(partials) // 2
            partials = [update(code, a, b) for a, b in zip(partials[:half], partials[half:])]
        self.total = update(code, self.total, partials[0])
        self._partials = [self._none] * self._ways


def _run_task(task: Task, position: int, launch: _LaunchState, chunk: int | None) -> None:
    prologue = _Iteration(launch, position)
    prologue.block(task.prologue)
    sums = [_Sum(r) for r in task.reductions]
    some = False
    for n, indices in enumerate(_iterations(task, prologue)):
        number = n % chunk if chunk else n
        if some and not number:
            for x in sums:
                x.end_chunk()
        some = True
        run = _Iteration(launch, position, n, dict(indices), {x.reduction.local: x.start() for x in sums})
        try:
            run.block(task.body)
        except _Leave as leave:
            if leave.kind == "break":
                raise InterpreterError("break outside a loop") from None
        for x in sums:
            x.end_iteration(number, run.locals[x.reduction.local])
    if not some:
        return
    for x in sums:
        x.end_chunk()
        r = x.reduction
        if r.sure or x.total != identity(r.code, r.place.dtype):
            index = prologue.index(r.index)
            launch.memory.write(r.place, index, update(r.code, launch.memory.read(r.place, index), x.total))


def run_kernel(
    kernel: Kernel,
    memory: Memory,
    scalars: Mapping[ArgDecl, Number] | None = None,
    shapes: Shapes | None = None,
    params: Mapping[tuple[int, str], int] | None = None,
    *,
    seed: int = 0,
    chunk: int | None = None,
    write: Callable[[str], object] | None = None,
    stop: Callable[[Print, list[Scalar]], None] | None = None,
    reported: set[Print] | None = None,
) -> Result:
    """Run a kernel once.

    Args:
        kernel: lowered or not.
        memory: changed in place; buffers that it lacks (temporaries, returns) start as zeros.
        scalars: the scalar arguments.
        shapes: the extents of the ndarray arguments, when ``memory`` does not know them.
        params: launch parameters by task number and name.
        seed: the launch's random seed.
        chunk: how many iterations share one partial value of each reduction; None: all.
        write: takes what the kernel prints, when it prints it; None: it is collected in the result.
        stop: called at a breakpoint with the statement and the values of its parts; None: breakpoints are passed over.
        reported: the reports that were printed before, which are not printed again; this launch adds its own.

    Raises:
        QdrunAssertionError: an assert of the kernel failed.
        AdStackOverflow: an ``Overflow`` was reached.
        InterpreterError: the IR has no meaning here.
    """
    memory.shapes.update(shapes or {})
    memory.fill(kernel)
    prints: list[str] = []
    launch = _LaunchState(
        memory, scalars or {}, params or {}, seed, write or prints.append, stop, set() if reported is None else reported
    )
    for number, task in enumerate(kernel.tasks):
        _run_task(task, number, launch, chunk)
    returns: list[Number] = []
    for k, dtype in enumerate(kernel.returns):
        word = memory.bytes(Buffer("ret"))[8 * k : 8 * k + dtype.size]
        returns.append(word.view(dtype.numpy)[0].item())
    return Result(returns, prints)
