"""A compiled kernel in one program: its launch context, and its launches."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..adstack.plan import HeapPlan, PlanOptions, make_plan
from ..adstack.sizing import TaskSizing
from ..codegen.abi import (
    CTX_HEAP,
    CTX_POOL,
    CTX_RET,
    CTX_ROW_STRIDE,
    CTX_SEED,
    CTX_STATUS,
    CTX_TMP,
    CTX_TMP_GRAD,
    PLANES,
    STATUS_WORDS,
)
from ..errors import QdrunRuntimeError
from ..ir.nodes import ArgDecl, Kernel, Loop, Place
from ..runtime.cpu import Options as CompileOptions
from ..runtime.cpu import register_context, unregister_context
from ..runtime.device import Allocation
from ..runtime.status import raise_status
from ..transforms.injective import race_free
from ..transforms.reduce import reduce_kernel

if TYPE_CHECKING:
    from .program import Program

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@dataclass
class Call:
    """The arguments of one launch: the words of the argument buffer, and what the planner may read of them."""

    words: bytearray
    scalars: dict[int, int | float] = field(default_factory=dict)  # by ArgDecl.index
    arrays: dict[int, np.ndarray] = field(default_factory=dict)  # by ArgDecl.index; element axes last
    after: list[Callable[[], None]] = field(default_factory=list)  # copies back to arrays that could not be passed as they are


class Executable:
    """One kernel, compiled for one program, with the context that its launches share."""

    def __init__(self, program: Program, kernel: Kernel) -> None:
        self.program, self.name = program, kernel.name
        ready = reduce_kernel(kernel)
        plain = frozenset(op for task in ready.tasks for op in race_free(task))
        options = program.options
        self.compiled = program.device.compile(ready, CompileOptions(offline_cache=options.offline_cache, plain=plain))
        self.returns = kernel.returns
        layout = self.compiled.layout
        self._memory: list[Allocation] = []
        self.context = self._words(layout.words)
        self._status = self._words(STATUS_WORDS)
        self._returned = self._words(len(kernel.returns))
        tmp = self._words(len(kernel.tmps), "temporaries")
        tmp_grad = self._words(sum(p.grad is not None for p in kernel.tmps) and len(kernel.tmps), "temporaries")
        fixed = {CTX_STATUS: self._status, CTX_RET: self._returned, CTX_TMP: tmp, CTX_TMP_GRAD: tmp_grad}
        for word, array in fixed.items():
            self.context[word] = array.ctypes.data if array.size else 0
        self.context[CTX_POOL] = program.device.pool.address
        for buffer, word in layout.buffers.items():
            assert isinstance(buffer.owner, Allocation)
            self.context[word] = buffer.owner.ptr
        self._buffers = [b.owner for b in layout.buffers]
        self.context_address = self.context.ctypes.data
        self.status_address = self._status.ctypes.data
        self._entry = _ENTRY(self.compiled.address)
        register_context(self.context_address, self.compiled)

    def _words(self, n: int, category: str = "context") -> np.ndarray:
        allocation = self.program.allocate(8 * n, category)
        self._memory.append(allocation)
        return allocation.view.view(np.uint64)

    def launch(self, call: Call, capacity: Callable[[Loop], int | None] | None = None) -> None:
        """Run once and raise what the kernel reported.

        Raises:
            QdrunAssertionError: an assert or a bounds check failed.
            AdStackOverflow: a loop ran further than its adstack was planned for.
        """
        if self.program.closed:
            raise QdrunRuntimeError(f"kernel `{self.name}` belongs to a program that is closed; do: qd.init() and make the fields again")
        self.context[CTX_SEED] = self.program.next_seed()
        call.words[0:8] = self.context_address.to_bytes(8, "little")
        buffer = (ctypes.c_char * len(call.words)).from_buffer(call.words)
        self._entry(ctypes.addressof(buffer))
        for copy_back in call.after:
            copy_back()
        if self._status[0]:
            raise_status(self.compiled, self.status_address, capacity)

    def returned(self) -> list[int | float | bool]:
        """The scalars that the last launch returned."""
        return [self._returned[k : k + 1].view(np.uint8)[: d.size].view(d.numpy)[0].item() for k, d in enumerate(self.returns)]

    def close(self) -> None:
        """Forget the context. Its memory goes with the program."""
        unregister_context(self.context_address)


class GradientExecutable(Executable):
    """A reverse kernel: each launch is planned, its heap provided, its parameters set."""

    def __init__(self, program: Program, kernel: Kernel, sizing: tuple[TaskSizing, ...]) -> None:
        super().__init__(program, kernel)
        self.sizing = sizing
        self._depends_on_data = any(r for t in sizing for r in _array_reads(t))
        self._plans: dict[tuple[object, ...], HeapPlan] = {}

    def plan(self, call: Call) -> HeapPlan:
        """The heap of a launch with these arguments. Nothing runs.

        Plans that depend on scalars and shapes alone are kept; contents of arrays are read each time.
        """
        key = (tuple(call.scalars.items()), tuple((k, a.shape) for k, a in call.arrays.items()))
        known = self._plans.get(key)
        if known is None or self._depends_on_data:
            known = make_plan(self.name, self.sizing, LaunchHost(call), self._options())
            if len(self._plans) >= 256:
                self._plans.clear()
            self._plans[key] = known
        return known

    def _options(self) -> PlanOptions:
        o = self.program.options
        return PlanOptions(self.program.device.threads, o.ad_checkpoint_levels, fixed_slots=o.ad_stack_size)

    def launch_gradient(self, call: Call) -> HeapPlan:
        """Plan, provide exactly the planned heap, run.

        Raises:
            AdStackOverflow: a loop whose count only running can tell went past its capacity.
            OutOfMemory: the heap does not fit the program's limit; names the bytes.
        """
        plan = self.plan(call)
        if plan.bytes:
            heap, stride = self.program.heap(plan.planes), plan.row_stride
            for k, plane in enumerate(PLANES):
                self.context[CTX_HEAP + k] = heap[plane]
                self.context[CTX_ROW_STRIDE + k] = stride[plane]
        words = self.compiled.layout.params
        for task in plan.tasks:
            for name, value in task.params.items():
                self.context[words[task.position, name]] = value
        self.launch(call, lambda loop: _capacity(plan, loop))
        return plan


def _capacity(plan: HeapPlan, loop: Loop) -> int | None:
    found = [p.plan.capacity for t in plan.tasks for p in t.loops if p.loc == loop.loc]
    return found[0] if found else None


def _array_reads(task: TaskSizing) -> list[object]:
    from ..adstack.sizeexpr import Read, parts

    ranges = [*task.axes]
    for s in task.region.all_loops():
        ranges += [s.range, *s.nest]
    return [e for r in ranges for end in (r.begin, r.end) if end is not None for e in parts(end) if isinstance(e, Read)]


class LaunchHost:
    """What the planner may ask about a launch: arguments, shapes, and the contents of integer arrays."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def scalar(self, arg: ArgDecl) -> int:
        """The value of an integer argument."""
        return int(self._call.scalars[arg.index])

    def extent(self, arg: ArgDecl, axis: int) -> int:
        """The extent of an ndarray argument."""
        return self._call.arrays[arg.index].shape[axis]

    def array(self, place: Place) -> np.ndarray:
        """The current content of a field component or an ndarray argument."""
        owner = place.buffer.owner
        if isinstance(owner, Allocation):
            assert place.shape is not None and place.strides is not None
            return np.ndarray(place.shape, place.dtype.numpy, owner.view.data, place.offset, place.strides)
        assert isinstance(owner, ArgDecl)
        whole = self._call.arrays[owner.index]
        element = whole.reshape(*whole.shape[: owner.ndim], -1)
        return element[..., place.offset // place.dtype.size]
