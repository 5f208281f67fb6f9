"""The tasks of a kernel while it is lowered, and what passes from one to the next.

A kernel-level variable lives in locals while a serial task is lowered. When the task ends, what later statements mention is put where
later tasks find it: a cheap value that reads no memory is computed again there (``Rematerialized``); everything else goes to a place of the
``tmp`` buffer (``Temporary``). Each serial task that changes a variable gives it a new place, so that no task overwrites what a backward
pass still needs. Inside a parallel loop ``s += x`` is an atomic on that place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ...ir.nodes import Assert, Block, Buffer, Const, GlobalStore, If, Kernel, Local, Op, Operand, Place, Print, Task
from ...ir.types import DType, i32
from ...ir.walk import stored_locals, walk
from ..state.bindings import can_repeat
from ..state.builder import FrontBuilder
from ..state.scope import Binding, Frame, Rematerialized, StructVar, Temporary
from ..values.matrix import load_matrix, new_local
from ..values.tensor import TensorRef
from ..values.values import MatrixLocal, MatrixValue, StructValue
from .targets import Target, with_index

TMP_WORD = 8
"""Bytes between two temporaries."""


class Tasks:
    """The tasks of the kernel so far, the serial task that is open, and the temporaries."""

    def __init__(self, kernel: Kernel, b: FrontBuilder) -> None:
        self.kernel, self.b = kernel, b
        self._open: Task | None = None
        self._preamble: Block = []
        self._buffer = Buffer("tmp")
        self.returned: list[Place] | None = None  # where the kernel's result goes
        self._left: list[Place] = []  # of the tasks so far, whether a return has ended the kernel
        self._leaving: Place | None = None  # that of the open task
        self._grads, self._duals = Buffer("tmp_grad"), Buffer("tmp_dual")

    def new(self, loc: Any) -> Task:
        """A task at the end of the kernel."""
        task = Task(f"{self.kernel.name}_{len(self.kernel.tasks)}", [], loc=loc)
        self.kernel.tasks.append(task)
        return task

    @contextmanager
    def serial(self) -> Iterator[None]:
        """Emit into the open serial task (a new one if there is none)."""
        if self._open is None:
            self._open = Task("", [], loc=self.b.loc)
            self._preamble = []
        with self.b.into(self._open.body):
            yield

    @contextmanager
    def emitting(self, top: bool) -> Iterator[None]:
        """Emit into the open serial task when ``top``, else where emission stands."""
        if not top:
            yield
            return
        with self.serial():
            yield

    def fetch(self, binding: Binding) -> None:
        """Bring a variable of an earlier task into the open serial task: into locals, at the task's start."""
        with self.serial(), self.b.into(self._preamble):
            assert isinstance(binding.value, Temporary)
            binding.temporary = binding.value
            value = binding.temporary.ref.load(self.b, ())
            is_matrix = isinstance(value, MatrixValue)
            binding.value = new_local(self.b, value, binding.name) if is_matrix else self.b.local(value, binding.name)  # type: ignore[arg-type]

    def close(self, frames: list[Frame]) -> None:
        """End the open serial task: pass on what later statements mention; drop the task if it has no effect."""
        if self._open is None:
            return
        task, self._open = self._open, None
        changed = stored_locals(task.body)
        with self.b.into(task.body):
            for frame in frames:
                if not frame.top:
                    continue
                wanted = frame.wanted()
                for scope in frame.scopes:
                    for binding in scope.values():
                        self._pass_on(binding, binding.name in wanted, changed)
        task.body = self._guarded([*self._preamble, *task.body])
        if self._leaving is not None:
            self._left.append(self._leaving)
            self._leaving = None
        if any(_has_effect(s) for s in walk(task.body)):
            task.name = f"{self.kernel.name}_{len(self.kernel.tasks)}"
            self.kernel.tasks.append(task)

    def leave(self) -> None:
        """Note that a return in the open serial task ends the kernel: later tasks do nothing then."""
        if self._leaving is None:
            self._leaving = self._place("returned", i32)
            self._preamble.append(GlobalStore(self._leaving, (), Const(0, i32), self.b.loc))
        self.b.gstore(self._leaving, (), Const(1, i32))

    def going(self) -> Operand | None:
        """Whether no earlier task has ended the kernel; None: none can. Emits loads."""
        going: Operand | None = None
        for place in self._left:
            here = self.b.op("eq", self.b.gload(place, ()), Const(0, i32))
            going = here if going is None else self.b.op("and", going, here)
        return going

    def _guarded(self, body: Block) -> Block:
        """A task's statements, which run if no earlier task has ended the kernel."""
        out: Block = []
        with self.b.into(out):
            going = self.going()
            if going is None:
                return body
            self.b.put(If(going, body))
        return out

    def _pass_on(self, binding: Binding, wanted: bool, changed: set[Local]) -> None:
        value = binding.value
        if isinstance(value, StructVar):
            for member in value.members.values():
                self._pass_on(member, wanted, changed)
            return
        variables = value.locals if isinstance(value, MatrixLocal) else (value,) if isinstance(value, Local) else None
        if variables is None:
            binding.value = self._carry(binding.name, value) if wanted else value
        elif binding.temporary is not None and not changed.intersection(variables):
            binding.value = binding.temporary
        elif wanted:
            content = load_matrix(self.b, value) if isinstance(value, MatrixLocal) else self.b.load(variables[0])
            binding.value = self._store_temporary(binding.name, content)
        binding.temporary = None

    def _carry(self, name: str, value: Any) -> Any:
        """A value in the form in which later tasks can read it."""
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(self._carry(name, v) for v in value)
        if isinstance(value, list):
            return tuple(self._carry(name, v) for v in value)
        if isinstance(value, StructValue):
            return StructValue(value.form, {key: self._carry(f"{name}.{key}", item) for key, item in value.items.items()})
        if isinstance(value, TensorRef) and value.begin is not None:
            begin, length = (self._carry(f"{name}.{what}", getattr(value, what)) for what in ("begin", "length"))
            return replace(value, begin=begin, length=length)
        if isinstance(value, Target):
            return with_index(value, lambda x: self._carry(f"{name}[]", x))
        if not isinstance(value, (Op, MatrixValue)):
            return value
        items = value.items if isinstance(value, MatrixValue) else (value,)
        if all(isinstance(x, Const) for x in items):
            return value
        return Rematerialized(value) if all(can_repeat(x) for x in items) else self._store_temporary(name, value)

    def _store_temporary(self, name: str, value: Operand | MatrixValue) -> Temporary:
        """A new temporary that holds ``value``."""
        items, element = (value.items, value.shape) if isinstance(value, MatrixValue) else ((value,), ())
        ref = TensorRef(name, tuple(self._place(name, x.dtype) for x in items), element, 0, extents=())
        ref.store(self.b, (), value)
        return Temporary(ref)

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
