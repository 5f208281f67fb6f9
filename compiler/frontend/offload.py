"""The top level of a kernel: loops become parallel tasks, what stands between them becomes serial tasks.

A kernel-level variable lives in locals while a serial task is lowered. When the task ends, what later statements mention is put where
later tasks find it: a cheap value that reads no memory is computed again there (``Recipe``); everything else goes to a place of the
``tmp`` buffer (``Shared``). Each serial task that changes a variable gives it a new place, so that no task overwrites what a backward
pass still needs. Inside a parallel loop ``s += x`` is an atomic on that place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import QdrunSyntaxError, QdrunTypeError
from ..ir.nodes import Assert, Axis, Block, Buffer, Const, GlobalStore, If, Kernel, Local, Loop, Op, Operand, Place, Print, Task
from ..ir.types import DType, i64, limits, u64
from ..ir.walk import stored_locals, walk
from ..transforms.clone import clone_block
from . import ops
from .block import block_dim
from .conditions import emit_condition
from .context import Context, can_repeat, clone
from .loops import Space, bind_index, bound_as, iterable, no_else, own_breaks, serial_for, space_of, unrolled
from .matrix import load_matrix, new_local
from .scope import Binding, Recipe, Shared, StructVar
from .statements import emit_if
from .syntax import RangeSpec
from .targets import Target, with_index
from .tensor import TensorRef
from .values import Matrix, MatrixLocal, Struct

TMP_WORD = 8
"""Bytes between two temporaries."""


class Tasks:
    """The tasks of the kernel so far, the serial task that is open, and the temporaries."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._open: Task | None = None
        self._preamble: Block = []
        self._buffer = Buffer("tmp")
        self._grads, self._duals = Buffer("tmp_grad"), Buffer("tmp_dual")

    def new(self, loc: Any) -> Task:
        """A task at the end of the kernel."""
        task = Task(f"{self.kernel.name}_{len(self.kernel.tasks)}", [], loc=loc)
        self.kernel.tasks.append(task)
        return task

    @contextmanager
    def serial(self, cx: Context) -> Iterator[None]:
        """Emit into the open serial task (a new one if there is none)."""
        if self._open is None:
            self._open = Task("", [], loc=cx.b.loc)
            self._preamble = []
        with cx.b.into(self._open.body):
            yield

    @contextmanager
    def emitting(self, cx: Context, top: bool) -> Iterator[None]:
        """Emit into the open serial task when ``top``, else where emission stands."""
        if not top:
            yield
            return
        with self.serial(cx):
            yield

    def fetch(self, cx: Context, binding: Binding) -> None:
        """Bring a variable of an earlier task into the open serial task: into locals, at the task's start."""
        with self.serial(cx), cx.b.into(self._preamble):
            assert isinstance(binding.value, Shared)
            binding.shared = binding.value
            value = binding.shared.ref.load(cx.b, ())
            is_matrix = isinstance(value, Matrix)
            binding.value = new_local(cx.b, value, binding.name) if is_matrix else cx.b.local(value, binding.name)  # type: ignore[arg-type]

    def close(self, cx: Context) -> None:
        """End the open serial task: pass on what later statements mention; drop the task if nobody can tell that it ran."""
        if self._open is None:
            return
        task, self._open = self._open, None
        changed = stored_locals(task.body)
        with cx.b.into(task.body):
            for frame in cx.frames:
                if not frame.top:
                    continue
                wanted = frame.wanted()
                for scope in frame.scopes:
                    for binding in scope.values():
                        self._pass_on(cx, binding, binding.name in wanted, changed)
        task.body = [*self._preamble, *task.body]
        if any(_has_effect(s) for s in walk(task.body)):
            task.name = f"{self.kernel.name}_{len(self.kernel.tasks)}"
            self.kernel.tasks.append(task)

    def _pass_on(self, cx: Context, binding: Binding, wanted: bool, changed: set[Local]) -> None:
        value = binding.value
        if isinstance(value, StructVar):
            for member in value.members.values():
                self._pass_on(cx, member, wanted, changed)
            return
        variables = value.locals if isinstance(value, MatrixLocal) else (value,) if isinstance(value, Local) else None
        if variables is None:
            binding.value = self._carry(cx, binding.name, value) if wanted else value
        elif binding.shared is not None and not changed.intersection(variables):
            binding.value = binding.shared
        elif wanted:
            content = load_matrix(cx.b, value) if isinstance(value, MatrixLocal) else cx.b.load(variables[0])
            binding.value = self._share(cx, binding.name, content)
        binding.shared = None

    def _carry(self, cx: Context, name: str, value: Any) -> Any:
        """A value in the form in which later tasks can read it."""
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(self._carry(cx, name, v) for v in value)
        if isinstance(value, list):
            return tuple(self._carry(cx, name, v) for v in value)
        if isinstance(value, Struct):
            return Struct(value.form, {key: self._carry(cx, f"{name}.{key}", item) for key, item in value.items.items()})
        if isinstance(value, Target):
            return with_index(value, lambda x: self._carry(cx, f"{name}[]", x))
        if not isinstance(value, (Op, Matrix)):
            return value
        items = value.items if isinstance(value, Matrix) else (value,)
        if all(isinstance(x, Const) for x in items):
            return value
        return Recipe(value) if all(can_repeat(x) for x in items) else self._share(cx, name, value)

    def _share(self, cx: Context, name: str, value: Operand | Matrix) -> Shared:
        """A new temporary that holds ``value``."""
        items, element = (value.items, value.shape) if isinstance(value, Matrix) else ((value,), ())
        ref = TensorRef(name, tuple(self._place(name, x.dtype) for x in items), element, 0, extents=())
        ref.store(cx.b, (), value)
        return Shared(ref)

    def _place(self, name: str, dtype: DType) -> Place:
        offset = TMP_WORD * len(self.kernel.tmps)
        grad = dual = None
        if dtype.is_real:
            grad = Place(f"{name}_grad", dtype, self._grads, 0, (), (), offset, dtype.size, is_grad=True)
            dual = Place(f"{name}_dual", dtype, self._duals, 0, (), (), offset, dtype.size)
        place = Place(name, dtype, self._buffer, 0, (), (), offset, dtype.size, grad, dual=dual)
        self.kernel.tmps.append(place)
        return place


def _has_effect(s: object) -> bool:
    return isinstance(s, (GlobalStore, Assert, Print)) or (isinstance(s, Op) and s.op == "atomic")


def top_if(cx: Context, node: ast.If) -> str | None:
    """An ``if`` at the top level: when its condition is known now, its statements stand at the top level, too."""
    with cx.tasks.serial(cx):
        cond = emit_condition(cx, node.test)
        if not isinstance(cond, bool):
            return emit_if(cx, node, cond)
        body = node.body if cond else node.orelse
        if any(isinstance(s, ast.For) and own_breaks(s.body) for s in body) and not _is_unrolled_break(cx, body):
            return cx.block(body)  # a loop that is left early runs in order
    return cx.top_block(body)


def _is_unrolled_break(cx: Context, body: list[ast.stmt]) -> bool:
    """Whether all loops with breaks of their own among ``body`` are unrolled."""
    return all(_is_unrolled(cx, s) for s in body if isinstance(s, ast.For) and own_breaks(s.body))


def top_for(cx: Context, node: ast.For) -> str | None:
    """A ``for`` at the top level: a parallel task, or unrolled.

    Raises:
        QdrunSyntaxError: it has an ``else``, or its steps cannot be numbered.
        QdrunTypeError: kernels cannot run over its iterable.
    """
    no_else(node)
    config = dict(cx.next_loop)
    cx.next_loop.clear()
    if config.get("serialize") and own_breaks(node.body):
        with cx.tasks.serial(cx):
            over, unroll = iterable(cx, node.iter)
            if not unroll:
                serial_for(cx, node, over)
                return None
    if _is_unrolled(cx, node):
        with cx.tasks.serial(cx):
            over, _ = iterable(cx, node.iter)
        return unrolled(cx, node, over, cx.top_block)
    cx.tasks.close(cx)
    _parallel_for(cx, node, bool(config.get("serialize")), block_dim(config.get("block_dim")))
    return None


def _is_unrolled(cx: Context, node: ast.For) -> bool:
    """Whether a loop's iterable is static; what the question emits is thrown away."""
    with cx.scratch():
        before, cx.where = cx.where, "prologue"
        try:
            return iterable(cx, node.iter)[1]
        finally:
            cx.where = before


def _parallel_for(cx: Context, node: ast.For, serialize: bool, block: int) -> None:
    """One task: bounds into its prologue, the body into its body."""
    task = cx.tasks.new(cx.b.loc)
    task.serialize, task.block = serialize, block
    before = cx.where
    try:
        cx.where = "prologue"
        with cx.b.into(task.prologue):
            over, _ = iterable(cx, node.iter)
            with cx.at(node.iter):
                space = space_of(cx, over)
            task.axes = [Axis(Op("index", (), lo.dtype, None, cx.b.loc), lo, hi) for lo, hi in _unit_step(cx, space)]
        _check_before(cx, task)
        if not task.axes:
            raise QdrunTypeError("a loop needs at least one axis", hint="this field has none: use x[None] without a loop")
        cx.where = "parallel"
        with cx.b.into(task.body), cx.frame.scope(), cx.frame.loop("parallel"):
            bind_index(cx, node.target, space, _indices(cx, over, space, task))
            cx.block(node.body)
    finally:
        cx.where = before


def _check_before(cx: Context, task: Task) -> None:
    """Checks in what bounds read belong to a serial task of their own: a prologue cannot stop a launch."""
    if not any(isinstance(s, Assert) for s in walk(task.prologue)):
        return
    check = Task(f"{task.name}_check", clone_block(task.prologue, {}), loc=task.loc)
    tasks = cx.tasks.kernel.tasks
    tasks.insert(len(tasks) - 1, check)
    _drop_checks(task.prologue)


def _drop_checks(block: Block) -> None:
    block[:] = [s for s in block if not isinstance(s, Assert)]
    for s in block:
        for inner in (s.then, s.orelse) if isinstance(s, If) else (s.body,) if isinstance(s, Loop) else ():
            _drop_checks(inner)


def _unit_step(cx: Context, space: Space) -> list[tuple[Operand, Operand]]:
    """The axes of a task: a range with a step is counted from 0."""
    if space.step == 1:
        return space.axes
    begin, end = space.axes[0]
    low, high = (begin, end) if space.step > 0 else (end, begin)
    wide, step = begin.dtype.bits == 64, abs(space.step)
    low, high = (ops.cast_scalar(cx.b, x, i64) for x in (low, cx.b.op("max", low, high)))
    # 64-bit ends may lie further apart than i64 can say; as u64 the distance is exact
    distance = ops.cast_scalar(cx.b, cx.b.op("sub", high, low), u64 if wide else i64)
    more = cx.b.op("ne", cx.b.op("mod", distance, Const(step, distance.dtype)), Const(0, distance.dtype))
    whole = cx.b.op("floordiv", distance, Const(step, distance.dtype))
    trips = cx.b.op("add", whole, cx.b.cast(more, distance.dtype))
    most = Const(limits(begin.dtype)[1], distance.dtype)
    return [(Const(0, begin.dtype), ops.cast_scalar(cx.b, cx.b.op("min", trips, most), begin.dtype))]


def _indices(cx: Context, over: Any, space: Space, task: Task) -> list[Operand]:
    """The loop's indices inside the body."""
    if space.step == 1:
        return [a.index for a in task.axes]
    begin = over.begin if isinstance(over, RangeSpec) else over.start
    begin = ops.to_operand(cx.b, begin)
    if not can_repeat(begin):
        hint = "start a range with a step at a literal, an argument or a shape"
        raise QdrunSyntaxError("a parallel loop with a step cannot start at a value that is read from memory", hint=hint)
    start = bound_as(cx, clone(cx.b, begin, {}), task.axes[0].index.dtype)
    return [ops.to_operand(cx.b, ops.binary(cx.b, "+", start, ops.binary(cx.b, "*", task.axes[0].index, space.step)))]
